"""Texts with many keys out of one with one key, and rows of VALUES one by one; what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.errors import UsageError
from picopyn.routing.key_texts import read_key_text, split_values


@pytest.mark.parametrize(
    ("sql", "width", "size", "text"),
    [
        ("SELECT * FROM t WHERE id IN ($1)", 1, 3, "SELECT * FROM t WHERE id IN ($1, $2, $3)"),
        ("SELECT 1 WHERE a in ( $1 ) AND v > $2", 1, 2, "SELECT 1 WHERE a in ( $1 ,  $3 ) AND v > $2"),
        (
            "SELECT 1 WHERE (id = $1) AND '$1' <> \"$1\"",
            1,
            2,
            "SELECT 1 WHERE ((id = $1) OR (id = $2)) AND '$1' <> \"$1\"",
        ),
        (
            "SELECT 1 WHERE ((a = $1 AND b = $2) AND v = $3) LIMIT 5",
            2,
            2,
            "SELECT 1 WHERE (((a = $1 AND b = $2) OR (a = $4 AND b = $5)) AND v = $3) LIMIT 5",
        ),
        ("SELECT 1 WHERE (a = abs($1) AND b = $2)", 2, 1, "SELECT 1 WHERE ((a = abs($1) AND b = $2))"),
    ],
)
def test_the_place_of_the_key_is_repeated(sql: str, width: int, size: int, text: str) -> None:
    """In the list of an IN, or as a condition; what stands in quotes is no parameter."""
    assert read_key_text(sql, width).text(size) == text


@pytest.mark.parametrize(
    ("sql", "width"),
    [
        ("SELECT * FROM t WHERE id = $1", 1),
        ("SELECT * FROM t WHERE id IN ($1, $2)", 1),
        ("SELECT * FROM t WHERE id IN ($1) OR id = $1", 1),
        ("SELECT * FROM t WHERE id IN ($2)", 1),
        ("SELECT * FROM t WHERE (id = $1) AND (b = $2)", 2),
        ("SELECT * FROM t WHERE id IN ('$1')", 1),
        ("SELECT * FROM t WHERE id IN ($1::int)", 1),
        ("SELECT * FROM t", 1),
        ("SELECT * FROM t WHERE ((a = $1 AND b = $2) AND c = $1)", 2),
        ("SELECT * FROM t WHERE id not IN ($1)", 1),
        ("SELECT * FROM t WHERE NOT (a = $1 AND b = $2)", 2),
    ],
)
def test_a_text_without_such_a_place_is_refused(sql: str, width: int) -> None:
    """Rather than guessed at."""
    with pytest.raises(UsageError):
        read_key_text(sql, width)


@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 50))
def test_every_key_has_its_arguments(width: int, others: int, count: int) -> None:
    """A list is filled up with its last key, so a few sizes do for all."""
    condition = " AND ".join(f"c{n} = ${n}" for n in range(1, width + 1))
    more = "".join(f" AND o{n} = ${n}" for n in range(width + 1, width + others + 1))
    text = read_key_text(f"SELECT 1 WHERE ({condition}){more}", width)
    rows = [(*((key, column) for column in range(width)), *("o",) * others) for key in range(min(count, text.most))]
    size = text.size(len(rows))
    args = text.arguments(rows)
    assert len(rows) <= size <= text.most
    assert len(args) == width * size + others
    assert max(map(int, _numbers(text.text(size)))) == len(args)
    asked = []
    for part in text.text(size).split(" OR "):
        values = [args[int(number) - 1] for number in _numbers(part)[:width]]
        assert [column for _, column in values] == list(range(width))
        asked.append(values[0][0])
    assert asked == [*range(len(rows)), *[len(rows) - 1] * (size - len(rows))]


def _numbers(text: str) -> list[str]:
    return [part[1:].rstrip(")") for part in text.split() if part.startswith("$")]


@pytest.mark.parametrize(
    ("sql", "args", "one", "rows"),
    [
        ("INSERT INTO t VALUES ($1, $2), ($3, $4)", (1, 2, 3, 4), "INSERT INTO t VALUES ($1, $2)", [(1, 2), (3, 4)]),
        ("INSERT INTO t VALUES ($1)", (1,), "INSERT INTO t VALUES ($1)", [(1,)]),
        (
            "insert into t (a, b) values ($1, '$1'), ($2, '$1') ON CONFLICT (a) DO NOTHING",
            (1, 2),
            "insert into t (a, b) values ($1, '$1') ON CONFLICT (a) DO NOTHING",
            [(1,), (2,)],
        ),
        (
            "INSERT INTO t VALUES (($2 + 1) * $1, f($2)),(($4 + 1) * $3, f($4))",
            (1, 2, 3, 4),
            "INSERT INTO t VALUES (($2 + 1) * $1, f($2))",
            [(1, 2), (3, 4)],
        ),
    ],
)
def test_rows_of_values_are_split(sql: str, args: tuple[Any, ...], one: str, rows: list[Any]) -> None:
    """Those that differ in nothing but the numbers of their parameters."""
    assert split_values(sql, args) == (one, rows)


@pytest.mark.parametrize(
    ("sql", "args"),
    [
        ("SELECT * FROM t", ()),
        ("INSERT INTO t SELECT 1", ()),
        ("UPDATE t SET v = $1", (1,)),
        ("INSERT INTO t VALUES ($1, $2), ($3)", (1, 2, 3)),
        ("INSERT INTO t VALUES ($1, 'a'), ($2, 'b')", (1, 2)),
        ("INSERT INTO t VALUES ($2), ($1)", (1, 2)),
        ("INSERT INTO t VALUES ($1), ($1)", (1,)),
        ("INSERT INTO t VALUES ($1, $2), ($3, $4)", (1, 2, 3)),
        ("INSERT INTO t VALUES ($1, $3), ($2, $3)", (1, 2, 3)),
        ("INSERT INTO t VALUES ($1, $2), ($3, $4) ON CONFLICT (a) DO UPDATE SET v = $1", (1, 2, 3, 4)),
        ("INSERT INTO t VALUES ($1, $2), ($3, $4) OPTION (SQL_MOTION_ROW_MAX = $2)", (1, 2, 3, 4)),
    ],
)
def test_what_cannot_be_split_is_refused(sql: str, args: tuple[Any, ...]) -> None:
    """Rather than sent in another meaning."""
    with pytest.raises(UsageError):
        split_values(sql, args)
