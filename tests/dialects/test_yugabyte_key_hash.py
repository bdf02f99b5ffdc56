"""YugabyteDB's hash code: every published vector, a slow twin, and what asyncpg really sends."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from struct import pack
from typing import Any

import asyncpg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from picopyn.dialects.base import KeyHash
from picopyn.dialects.yugabyte.hash_code import HASH_CODES, hash_code
from picopyn.dialects.yugabyte.key_hash import YUGABYTE_KEY_HASH
from tests.dialects import slow_hash_code
from tests.dialects.sent_bytes import SentBytes

BOOL, BYTEA, INT8, INT2, INT4, TEXT, FLOAT4, FLOAT8, BPCHAR = 16, 17, 20, 21, 23, 25, 700, 701, 1042
DATE, TIMESTAMP, TIMESTAMPTZ, UUID = 1082, 1114, 1184, 2950

#: Codes that real servers gave. *Source*: yugabyte-smart-drivers.md section 7.3, lines marked as published.
PUBLISHED = [
    ([(INT4, 1), (INT4, 2), (TEXT, "sample string")], 23017),
    ([(TEXT, "yb")], 5962),
    ([(TEXT, "ybdb")], 44116),
    ([(TEXT, "yugabyte")], 8000),
    ([(TEXT, "yugabytedb")], 30096),
    ([(TEXT, "github.com/yugabyte/yugabyte-db/")], 58057),
    ([(INT4, 7), (BYTEA, bytes.fromhex("a94a8fe5ccb19ba61c4c0873d391e987982fbbd3"))], 25484),
    ([(INT4, 0), (BYTEA, b"\0")], 38972),
    ([(INT4, 1), (BYTEA, bytes.fromhex("0102030405"))], 43708),
    ([(INT4, 2147483647), (BYTEA, b"\xff")], 48239),
    ([(INT4, -2147483648), (BYTEA, b"key")], 52240),
    ([(INT4, -1), (BYTEA, bytes.fromhex("deadbeef"))], 59218),
    ([(INT4, 123456), (BYTEA, bytes(range(32)))], 61389),
    ([(INT8, -5), (TEXT, "senzing")], 4373),
    ([(INT8, 9223372036854775807), (TEXT, "kv")], 6310),
    ([(INT8, 0), (TEXT, "a")], 54981),
    ([(INT4, 5)], 2675),
]
#: The same section, computed by other code than ours.
COMPUTED = [
    *(([(INT4, n)], code) for n, code in {0: 47650, 1: 4624, 2: 49348, 3: 64672, 4: 40623, 10: 29135}.items()),
    *(([(INT4, n)], code) for n, code in {42: 21465, 100: 44277, -1: 48768, 2**31 - 1: 40388, -(2**31): 4001}.items()),
    *(([(INT8, n)], code) for n, code in {0: 59242, 1: 60841, 2: 53162, 42: 48975, -1: 22565}.items()),
    *(([(INT8, n)], code) for n, code in {2**63 - 1: 13015, -(2**63): 25616}.items()),
    *(([(INT2, n)], code) for n, code in {0: 22414, 1: 13059, 2: 26637, -1: 60647, 32767: 63752}.items()),
    *(([(BOOL, value)], code) for value, code in {True: 36855, False: 56384}.items()),
    *(([(TEXT, text)], code) for text, code in {"": 19780, "a": 44389, "k1": 39051, "abc": 24420}.items()),
    *(([(TEXT, text)], code) for text, code in {"hello": 17710, "user-1": 14759, "é": 28775}.items()),
    ([(UUID, uuid.UUID(int=0))], 51732),
    ([(UUID, "123e4567-e89b-12d3-a456-426614174000")], 22806),
    ([(UUID, uuid.UUID(int=2**128 - 1))], 60798),
    ([(DATE, date(2024, 6, 1))], 7824),
    ([(TIMESTAMP, datetime(2024, 6, 1))], 2597),
    ([(TIMESTAMPTZ, datetime(2024, 6, 1, 2, tzinfo=timezone(timedelta(hours=2))))], 2597),
    ([(FLOAT4, 1.0)], 1462),
    ([(FLOAT8, 1.0)], 4391),
    ([(BYTEA, bytes.fromhex("deadbeef"))], 54485),
    ([(INT4, 1), (INT4, 2)], 40674),
    ([(INT4, 1), (INT4, 2), (INT4, 3)], 57262),
    ([(INT4, 1), (INT4, 2), (TEXT, "abc")], 33808),
    ([(INT8, 1), (TEXT, "a")], 53907),
]


def encoded(key: list[tuple[int, Any]]) -> bytes:
    """The bytes of a whole key."""
    parts = [YUGABYTE_KEY_HASH.encoder(oid)(value) for oid, value in key]
    assert None not in parts
    return b"".join(part for part in parts if part is not None)


def test_the_hash_fits_what_a_dialect_promises() -> None:
    """`YUGABYTE_KEY_HASH` is a `KeyHash`; types it does not know have no form."""
    promised: KeyHash = YUGABYTE_KEY_HASH
    assert promised.forms(INT8) == ("",)
    assert [promised.forms(oid) for oid in (1700, 790, 114, 2205, 0)] == [()] * 5
    assert promised.encoder(1700)(Decimal(1)) is None
    assert promised.encoder(INT8, "another form")(1) is None


@pytest.mark.parametrize(("key", "code"), PUBLISHED + COMPUTED)
def test_vectors(key: list[tuple[int, Any]], code: int) -> None:
    """What a server answered to `yb_hash_code(…)`."""
    assert YUGABYTE_KEY_HASH.bucket(encoded(key), HASH_CODES) == code


def test_how_many_rows_have_a_code_in_a_range() -> None:
    """The documentation counts the rows (i, i), i = 1 … 10 000, by ranges of their code."""
    codes = [hash_code(encoded([(INT4, i), (INT4, i)])) for i in range(1, 10_001)]
    assert sum(0 <= code <= 128 for code in codes) == 18
    assert sum(4600 <= code < 5112 for code in codes) == 74


@given(st.binary(max_size=120))
@example(b"")
@example(b"\xff" * 7)
@example(b"\xff" * 8)
@example(b"\xff" * 9)
@example(b"\xff" * 23)
@example(b"\xff" * 24)
@example(b"\xff" * 47)
def test_the_fast_form_gives_what_the_slow_one_gives(key: bytes) -> None:
    """Whatever the length of the key."""
    assert hash_code(key) == slow_hash_code.hash_code(key)


@given(st.binary(max_size=9))
@settings(max_examples=150)
def test_so_it_is_for_short_keys(key: bytes) -> None:
    """These have code of their own."""
    assert hash_code(key) == slow_hash_code.hash_code(key)


class ReadsAsInteger:
    """An integer that is not an `int`."""

    def __index__(self) -> int:
        return 7


class RefusesEverything:
    """Raises whatever is asked of it."""

    def __index__(self) -> int:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


OIDS = (16, 17, 18, 19, 20, 21, 23, 25, 26, 28, 700, 701, 1042, 1043, 1082, 1083, 1114, 1184, 2950, 3220)
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.sampled_from([2**15 - 1, 2**15, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1e-50, -1e-50, 1e39]),
    st.text(max_size=70),
    st.text("ab \t", max_size=5),
    st.binary(max_size=8),
    st.dates(),
    st.sampled_from([date.min, date.max, datetime.min, datetime.max]),
    st.times(timezones=ZONES),
    st.datetimes(timezones=ZONES),
    st.uuids(),
    st.uuids().map(str),
    st.sampled_from([[], object(), ReadsAsInteger(), RefusesEverything(), Decimal(3), "0" * 31 + "g", "Inf", b""]),
)


@given(st.sampled_from(OIDS), VALUES)
@settings(max_examples=300)
def test_no_value_makes_an_encoder_raise(oid: int, value: Any) -> None:
    """It gives bytes or None; NULL is always None."""
    found = YUGABYTE_KEY_HASH.encoder(oid)(value)
    assert found is None or (type(found) is bytes and value is not None)


@pytest.fixture(scope="module")
def sent() -> Iterator[SentBytes]:
    """What asyncpg sends."""
    server = SentBytes()
    yield server
    server.close()


@given(oid=st.sampled_from(OIDS), value=VALUES)
@example(oid=INT4, value=ReadsAsInteger())
@example(oid=26, value=ReadsAsInteger())
@example(oid=INT8, value=True)
@example(oid=3220, value=2**63)
@settings(max_examples=200)
def test_the_bytes_are_those_that_asyncpg_sends(sent: SentBytes, oid: int, value: Any) -> None:
    """The server's keys have the form of the protocol's binary values, but for blanks at the end and forms of NaN."""
    ours = YUGABYTE_KEY_HASH.encoder(oid)(value)
    if ours is None:
        return
    theirs = sent.of(oid, value)
    if oid == BPCHAR:
        assert theirs is not None
        assert ours == theirs.rstrip(b" ")
    elif isinstance(value, float) and math.isnan(value):
        assert ours == pack(">f" if oid == FLOAT4 else ">d", math.nan)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("oid", "value"),
    [
        (FLOAT8, -0.0),
        (FLOAT4, -1e-50),  # a negative zero once it is sent
        (INT4, 2**31),
        (INT2, -(2**15) - 1),
        (INT8, 1.0),
        (BOOL, 1),
        (BPCHAR, "a\t"),
        (19, "x" * 64),
        (DATE, datetime(2024, 6, 1)),
        (TIMESTAMP, date(2024, 6, 1)),
        (TIMESTAMP, datetime(2024, 6, 1, tzinfo=UTC)),
        (TIMESTAMPTZ, date(2024, 6, 1)),
        (TIMESTAMPTZ, datetime.max.replace(tzinfo=UTC)),
        (DATE, date.max),
        (1083, time(1, tzinfo=UTC)),
        (TEXT, "\ud800"),
        (UUID, "123e4567-e89b-12d3-a456-42661417400"),
    ],
)
def test_a_value_in_doubt_is_left_to_the_server(oid: int, value: Any) -> None:
    """It has several forms, hangs on something else, or is refused."""
    assert YUGABYTE_KEY_HASH.encoder(oid)(value) is None


def test_asyncpg_refuses_what_is_out_of_range(sent: SentBytes) -> None:
    """What has no bytes here because of its size has none there."""
    with pytest.raises(asyncpg.DataError):
        sent.of(INT4, 2**31)
