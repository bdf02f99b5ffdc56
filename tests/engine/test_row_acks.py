"""Acknowledged rows are counted in the server's answers, wherever the bytes are cut."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from picopyn.engine.row_acks import RowAcks


def message(kind: bytes, body: bytes = b"") -> bytes:
    """One message of a server."""
    return kind + struct.pack(">I", len(body) + 4) + body


def complete(tag: bytes) -> bytes:
    """The end of one row's statement."""
    return message(b"C", tag + b"\x00")


BOUND = message(b"2")
OTHERS = st.sampled_from(
    [
        BOUND,
        message(b"1"),
        message(b"Z", b"I"),
        message(b"N", b"SNOTICE\x00MC\x00\x00\x00\x0f\x00\x00"),
        message(b"D", b"\x00\x01\x00\x00\x00\x04C\x00\x00\x00"),
        message(b"E", b"SERROR\x00C42601\x00\x00"),
        complete(b"ROLLBACK"),
    ]
)
ROWS = st.sampled_from([BOUND + complete(b"INSERT 0 1"), BOUND + complete(b"UPDATE 12"), complete(b"SELECT 3")])


@given(st.lists(st.tuples(ROWS, st.just(1)) | st.tuples(OTHERS, st.just(0)), max_size=60), st.data())
def test_completed_statements_are_counted(messages: list[tuple[bytes, int]], data: st.DataObject) -> None:
    """Nothing else is, and it does not matter how the bytes arrive."""
    stream = b"".join(part for part, _ in messages)
    acks, at = RowAcks(), 0
    while at < len(stream):
        size = data.draw(st.integers(1, max(len(stream) // 3, 1)))
        acks.feed(stream[at : at + size])
        at += size
    assert acks.acknowledged == sum(count for _, count in messages)


def test_a_new_attempt_counts_on() -> None:
    """What was acknowledged before stays; bytes that were left over do not."""
    acks = RowAcks()
    one = BOUND + complete(b"INSERT 0 1")
    acks.feed(one * 1000 + one[:7])
    assert acks.begin_again() == 1000
    acks.feed(one * 3)
    assert (acks.began, acks.acknowledged, acks.total) == (0, 3, 1003)
    assert acks.begin_again() == 3
    assert (acks.began, acks.total) == (1000, 1003)
