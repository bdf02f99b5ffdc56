"""Many rows sorted by owner: the same buckets as one call at a time, every row once, in the order given."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from enum import IntEnum
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.dialects.picodata.bucket_rows import FEW, STRETCH
from picopyn.dialects.postgres import PostgresDialect
from picopyn.engine.bulk_rows import check_rows
from picopyn.routing.route import KeyPart
from picopyn.routing.row_groups import UNKNOWN, Groups, compile_slots
from picopyn.routing.sharding import compile_key


class Level(IntEnum):
    """Numbers with names, which are sent as something else."""

    LOW = 1
    HIGH = 2**62

    def __int__(self) -> int:
        return 7


class Count(int):
    """An integer of a class of its own."""


class Name(str):
    """A text of a class of its own, which is sent as what it is."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"something else"


#: Where the width of an integer changes.
ENDS = [sign * 2**power + by for power in (5, 7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1) for by in (-1, 0, 1)]

VALUES: dict[int, st.SearchStrategy[Any]] = {
    16: st.booleans(),
    20: st.integers(-(2**64), 2**64)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([Level.LOW, Level.HIGH, Count(3), Decimal(5), *ENDS]),
    21: st.integers(-(2**16), 2**16),
    23: st.integers(-(2**32), 2**32),
    25: st.text() | st.text().map(Name) | st.text(alphabet=st.characters(categories=["Cs"])) | st.integers(),
    701: st.floats() | st.integers(),
    1184: st.datetimes(timezones=st.just(UTC)),
    1700: st.decimals() | st.integers(),
    2950: st.uuids() | st.text(),
}


@st.composite
def keys_and_rows(draw: st.DrawFn) -> tuple[tuple[KeyPart, ...], list[tuple[Any, ...]]]:
    """A key of one to three parameters and some literals, and rows for it; some with NULL, of no type, or too short."""
    oids = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    literals = [KeyPart(-1, 0, literal=literal) for literal in draw(st.lists(st.binary(), max_size=2))]
    parameters = [KeyPart(at, oid, "bound-26.1" if oid == 701 else "") for at, oid in enumerate(oids)]
    parts = tuple(draw(st.permutations([*parameters, *literals])))
    odd = st.none() | st.builds(object) if draw(st.booleans()) else st.nothing()
    rows = draw(st.lists(st.tuples(*(VALUES[oid] | odd for oid in oids)), max_size=30))
    return parts, rows if draw(st.booleans()) else [row[: draw(st.integers(0, len(row)))] for row in rows]


@given(keys_and_rows(), st.integers(1, 5000))
def test_the_bucket_of_each_row_is_that_of_a_call(case: tuple[Any, list[Any]], count: int) -> None:
    """Whatever the types of the key and the values of the rows."""
    parts, rows = case
    key = compile_key(parts, PICODATA_KEY_HASH, count)
    expected = [UNKNOWN if (bucket := key(row)) is None else bucket - 1 for row in rows]
    assert compile_slots(parts, PICODATA_KEY_HASH, count)(rows) == expected


def test_without_keys_no_row_has_an_owner() -> None:
    """A tier without buckets, a key without parts, a server without keys."""
    rows = [(1,), (2,)]
    part = (KeyPart(0, 20),)
    for slots in (
        compile_slots((), PICODATA_KEY_HASH, 3000),
        compile_slots(part, PICODATA_KEY_HASH, 0),
        compile_slots(part, PostgresDialect().key_hash, 3000),
    ):
        assert slots(rows) == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("oids", [(25,), (2950,), (20, 20), (25, 25, 25), (2950, 20), (20, 25, 20)], ids=str)
def test_an_odd_row_takes_few_others_along(oids: tuple[int, ...]) -> None:
    """However many rows there are, those that go one after the other are those near an odd one."""
    one_by_one: list[Any] = []
    parts = [(at, oid, "") for at, oid in enumerate(oids)]
    key = compile_key(tuple(KeyPart(at, oid) for at, oid in enumerate(oids)), PICODATA_KEY_HASH, 3000)

    def slot(row: Any) -> int:
        bucket = key(row)
        return UNKNOWN if bucket is None else bucket - 1

    def otherwise(rows: Any) -> list[int]:
        one_by_one.extend(rows)
        return list(map(slot, rows))

    made: dict[int, Callable[[int], Any]] = {20: lambda n: 2**20 + n, 25: str, 2950: lambda n: UUID(int=n)}
    rows = [tuple(made[oid](number) for oid in oids) for number in range(3 * STRETCH + 5)]
    slots = PICODATA_KEY_HASH.fast_rows(parts, 3000, otherwise=otherwise)
    assert slots(rows) == list(map(slot, rows))
    assert not one_by_one
    for at in (0, STRETCH, len(rows) - 1):
        odd = [*rows[:at], (*rows[at][:-1], None), *rows[at + 1 :]]
        one_by_one.clear()
        assert slots(odd) == list(map(slot, odd))
        assert 0 < len(one_by_one) <= FEW


@pytest.mark.parametrize("count", [2, 3])
def test_halves_of_a_surrogate_pair_in_two_texts_are_no_character(count: int) -> None:
    """Neither can be sent."""
    parts = tuple(KeyPart(at, 25) for at in range(count))
    assert compile_slots(parts, PICODATA_KEY_HASH, 3000)([("\ud83d", "\ude00", "")[:count]]) == [UNKNOWN]


SHAPES = [*product((20, 25), repeat=1), *product((20, 25, 2950), repeat=2), (20, 1043, 20), (23, 25), (21, 23)]
SHAPES += [(2950,), (20, 20, 20), (25, 25, 25), (25, 20, 20), (2950, 20, 25)]


@pytest.mark.parametrize("oids", SHAPES, ids=str)
def test_an_odd_row_among_many_good_ones_changes_nothing(oids: tuple[int, ...]) -> None:
    """Every value that is not what most are, alone in the middle of a batch, in each column of each shape of key."""
    good = {20: 2**40, 21: 300, 23: 7, 25: "text", 1043: "ключ", 2950: UUID(int=9)}
    odd = [None, True, False, 1.0, 1.5, float("nan"), "7", b"x", Name("name"), Count(9), Level.HIGH, Decimal(3), [], ()]
    odd += [
        2**31,
        -(2**31) - 1,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63),
        -(2**63) - 1,
        "",
        "\ud800",
        "a\0b",
        object(),
        UUID(int=3),
    ]
    parts = tuple(KeyPart(at, oid) for at, oid in enumerate(oids))
    key, slots = compile_key(parts, PICODATA_KEY_HASH, 3000), compile_slots(parts, PICODATA_KEY_HASH, 3000)
    plain = tuple(good[oid] for oid in oids)
    for at, value in product(range(len(oids)), odd):
        row = (*plain[:at], value, *plain[at + 1 :])
        bucket = key(row)
        expected = UNKNOWN if bucket is None else bucket - 1
        assert slots([plain, row, plain]) == [*slots([plain]), expected, *slots([plain])]
    assert slots([]) == []


@given(
    owners=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=50),
    batches=st.lists(st.lists(st.integers(-1, 200)), max_size=4),
)
def test_every_row_is_sorted_once_and_in_order(owners: list[str | None], batches: list[list[int]]) -> None:
    """Batch after batch: nothing of one shows up in the next."""
    groups = Groups(owners)
    for numbers in batches:
        slots = [number if number < 0 else number % len(owners) for number in numbers]
        rows = list(enumerate(slots))
        found = groups.sort(rows, slots)
        assert all(found.values())
        for owner, mine in found.items():
            assert mine == [row for row in rows if (None if row[1] < 0 else owners[row[1]]) == owner]
        assert sum(map(len, found.values())) == len(rows)


INT, SMALL, TEXT, UID = (KeyPart(at, oid) for at, oid in enumerate((20, 20, 25, 2950)))
OTHER_INT, OTHER_TEXT, OTHER_UID = (KeyPart(at, oid) for at, oid in enumerate((20, 25, 2950), 4))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("int", (INT,)),
        ("text", (TEXT,)),
        ("uuid", (UID,)),
        ("two ints", (INT, OTHER_INT)),
        ("small int and int", (SMALL, INT)),
        ("int and text", (INT, TEXT)),
        ("text and int", (TEXT, INT)),
        ("two texts", (TEXT, OTHER_TEXT)),
        ("int and uuid", (INT, UID)),
        ("uuid and int", (UID, INT)),
        ("small int and uuid", (SMALL, UID)),
        ("text and uuid", (TEXT, UID)),
        ("uuid and text", (UID, TEXT)),
        ("two uuids", (UID, OTHER_UID)),
        ("three ints", (INT, OTHER_INT, INT)),
        ("small int and two ints", (SMALL, INT, OTHER_INT)),
        ("text and two ints", (TEXT, INT, OTHER_INT)),
        ("int, text and int", (INT, TEXT, OTHER_INT)),
        ("three texts", (TEXT, OTHER_TEXT, TEXT)),
        ("uuid, int and text", (UID, INT, TEXT)),
    ],
)
def test_what_it_costs(name: str, parts: tuple[KeyPart, ...], measured: Callable[[str, object], None]) -> None:
    """Measured, not judged: the aim is 0.2 µs a row."""
    rng = random.Random(1)

    def row(number: int) -> tuple[Any, ...]:
        ids = [UUID(int=rng.getrandbits(128)) for _ in "ab"]
        return 10**6 + number, rng.randrange(1000), f"key {number}", ids[0], rng.getrandbits(62), f"{number}", ids[1]

    rows = list(map(row, range(2000)))
    groups = Groups([f"replicaset {slot % 3}" for slot in range(3000)])
    slots = compile_slots(parts, PICODATA_KEY_HASH, 3000)
    found = {}

    def sort() -> None:
        nonlocal found
        found = groups.sort(rows, slots(rows))

    measured(f"grouping by a key of {name}, µs a row", best_of(sort) / len(rows) * 1e6)
    assert sum(map(len, found.values())) == len(rows)


def test_what_a_look_at_the_widths_costs(measured: Callable[[str, object], None]) -> None:
    """Rows are looked at before they are sorted."""
    rows = [(number, "text", number, number) for number in range(2000)]
    assert check_rows(rows, range(len(rows)), None) == 4
    measured("width of a row, µs a row", best_of(lambda: check_rows(rows, range(len(rows)), 4)) / len(rows) * 1e6)


def best_of(what: Callable[[], object]) -> float:
    """Seconds that it takes when nothing comes between."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(50):
            began = time.perf_counter()
            what()
            best = min(best, time.perf_counter() - began)
    finally:
        gc.enable()
    return best
