"""Compiled keys and routes, and the keys a user names."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.errors import UsageError
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.routing.sharding import ShardingKey, ShardingKeyFactory, compile_key, compile_route
from tests.dialects import slow_hash

ID = (KeyPart(0, 20),)
COMPOSITE = (KeyPart(1, 25), KeyPart(0, 20))


def route(kind: RouteKind, *keys: tuple[KeyPart, ...], buckets: tuple[int, ...] = ()) -> StatementRoute:
    """A learned route of the default tier."""
    return StatementRoute(kind, "default", keys, buckets)


@pytest.mark.parametrize(
    ("parts", "args", "bucket"),
    [
        (ID, (1,), 1934),
        (ID, (True,), 1934),
        (ID, [5, "more"], 219),
        (COMPOSITE, (1, "2"), 2997),
        (COMPOSITE, (5, "lol"), 442),
        ((KeyPart(0, 20), KeyPart(0, 20)), (1,), slow_hash.bucket(b"\x01\x01", 3000)),
    ],
)
def test_a_key_has_a_bucket(parts: tuple[KeyPart, ...], args: Any, bucket: int) -> None:
    """A compiled key gives the bucket of a call's arguments, whichever order they come in."""
    assert compile_key(parts, PICODATA_KEY_HASH, 3000)(args) == bucket


@pytest.mark.parametrize(
    ("parts", "args"),
    [
        (ID, ()),
        (ID, (None,)),
        (ID, ("1",)),
        (ID, (2**63,)),
        (COMPOSITE, (1,)),
        (COMPOSITE, (None, "x")),
        (COMPOSITE, (1, None)),
        (COMPOSITE, (1, "\ud800")),
        ((KeyPart(0, 701, "bound-26.1"),), (float("nan"),)),
        ((KeyPart(0, 701, "bound-26.1"), KeyPart(1, 20)), (float("nan"), 1)),
        ((KeyPart(0, 701),), (1.0,)),
        ((KeyPart(0, 114),), ("{}",)),
        ((), (1,)),
    ],
)
def test_a_key_that_cannot_be_computed_is_no_bucket(parts: tuple[KeyPart, ...], args: Any) -> None:
    """A missing argument, a NULL (NaN binds as NULL too) or an impossible value: the call is unrouted."""
    assert compile_key(parts, PICODATA_KEY_HASH, 3000)(args) is None


def test_a_tier_without_buckets_has_no_keys() -> None:
    """A tier may hold no sharded data at all."""
    assert compile_key(ID, PICODATA_KEY_HASH, 0)((1,)) is None
    assert ShardingKey(values=(1,)).locate(PICODATA_KEY_HASH, 0) is None


@given(number=st.integers(-(2**63), 2**63 - 1), text=st.text(), count=st.integers(1, 70_000))
def test_parts_are_hashed_one_after_the_other(number: int, text: str, count: int) -> None:
    """The bucket of a composite key is the bucket of its parts' bytes in the order of the key's columns."""
    expected = slow_hash.bucket(text.encode() + slow_hash.messagepack_int(number), count)
    assert compile_key(COMPOSITE, PICODATA_KEY_HASH, count)((number, text)) == expected
    assert ShardingKey(values=(text, number)).locate(PICODATA_KEY_HASH, count) == expected


@given(
    oid=st.sampled_from([20, 21, 23]),
    value=st.integers() | st.sampled_from([2**15, -(2**15) - 1, 2**31, 2**63, True, 1.0, None, "1", Decimal(7)]),
    before=st.lists(st.none(), max_size=2),
)
def test_the_fast_way_of_integers_is_the_slow_one(oid: int, value: Any, before: list[None]) -> None:
    """Whatever the argument, and wherever it stands."""
    encoded = PICODATA_KEY_HASH.encoder(oid)(value)
    known = encoded is not None and value is not None
    expected = PICODATA_KEY_HASH.bucket(encoded, 3000) if encoded is not None and known else None
    assert compile_key((KeyPart(len(before), oid),), PICODATA_KEY_HASH, 3000)((*before, value)) == expected
    assert compile_key((KeyPart(len(before), oid),), PICODATA_KEY_HASH, 3000)(tuple(before)) is None


@pytest.mark.parametrize(
    ("learned", "args", "buckets"),
    [
        (route(RouteKind.KEYED, ID), (1,), {1934}),
        (route(RouteKind.KEYED, ID), (None,), None),
        (route(RouteKind.KEY_SET, ID, (KeyPart(1, 20),)), (1, 2), {1410, 1934}),
        (route(RouteKind.KEY_SET, ID, (KeyPart(1, 20),)), (1, 1), {1934}),
        (route(RouteKind.KEY_SET, ID, (KeyPart(1, 20),)), (1, None), None),
        (route(RouteKind.KEY_SET, ID, buckets=(1860,)), (1,), {1860, 1934}),
        (route(RouteKind.KEY_SET, buckets=(3, 4)), (), {3, 4}),
        (route(RouteKind.CONSTANT, buckets=(1860,)), ("x",), {1860}),
        (route(RouteKind.ANY_NODE), (1,), None),
        (route(RouteKind.NOT_KEYED), (1,), None),
        (route(RouteKind.KEYED), (1,), None),
    ],
)
def test_a_route_gives_all_its_buckets(learned: StatementRoute, args: Any, buckets: set[int] | None) -> None:
    """A route names every bucket of a call, or nothing when one of them is unknown."""
    assert compile_route(learned, PICODATA_KEY_HASH, 3000)(args) == buckets


def test_a_user_may_name_a_key_or_a_bucket() -> None:
    """Values are located by their hash, NULL included; a bucket is the place itself."""
    assert ShardingKey(values=(1,)).locate(PICODATA_KEY_HASH, 3000) == 1934
    assert ShardingKey(values=(1, None)).locate(PICODATA_KEY_HASH, 3000) == 2541
    assert ShardingKey(bucket=7).locate(PICODATA_KEY_HASH, 3000) == 7
    assert ShardingKey(bucket=3001).locate(PICODATA_KEY_HASH, 3000) is None
    assert ShardingKey(values=(1.5,)).locate(PICODATA_KEY_HASH, 3000) is None
    assert ShardingKey(values=(1.5,), forms=("bound-26.1",)).locate(PICODATA_KEY_HASH, 3000) == 510


def test_a_key_does_not_show_its_values() -> None:
    """Values of a user never get into a log through a repr."""
    assert "secret" not in repr(ShardingKey(values=("secret",)))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"values": (1,), "bucket": 1},
        {"bucket": 0},
        {"bucket": True},
        {"values": (1,), "tier": ""},
        {"values": (object(),)},
        {"values": (1,), "oids": (20, 25)},
        {"values": (1,), "forms": ("", "")},
    ],
)
def test_a_key_that_names_no_place_is_refused(wrong: dict[str, Any]) -> None:
    """A wrong `ShardingKey` fails where it is made."""
    with pytest.raises(UsageError):
        ShardingKey(**wrong)


def test_a_factory_makes_the_keys_of_a_table() -> None:
    """Columns that are no part of the key are ignored; a missing one is named."""
    factory = ShardingKeyFactory("c", "storage", (("b", 25), ("a", 20)))
    key = factory.create_key({"a": 1, "b": "2", "v": "ignored"})
    assert key == ShardingKey("storage", ("2", 1))
    assert key.locate(PICODATA_KEY_HASH, 3000) == 2997
    with pytest.raises(UsageError, match="columns b"):
        factory.create_key({"a": 1})
    with pytest.raises(UsageError, match="mapping"):
        factory.create_key([1, 2])  # type: ignore[arg-type]
