"""`yb_hash_code` of the test servers: the published vectors, and that it agrees with the driver."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from picopyn.dialects.yugabyte.code_question import code_question
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from tests.dialects.test_yugabyte_key_hash import PUBLISHED
from tests.tablets.sharded import Sharded

NAMES = {23: "int", 20: "bigint", 25: "text", 17: "bytea"}


async def test_it_gives_the_published_codes(sharded: Sharded) -> None:
    """It is a witness only if real servers said the same."""
    for key, code in PUBLISHED:
        columns = ", ".join(f"${number}::{NAMES[oid]}" for number, (oid, _) in enumerate(key, 1))
        values = [value for _, value in key]
        assert await sharded.admins[0].fetchval(f"SELECT yb_hash_code({columns})", *values) == code


VALUES: list[tuple[int, Any]] = [
    (16, True),
    (21, -7),
    (1043, "abc"),
    (1042, "ab  "),
    (2950, UUID(int=5)),
    (1082, date(1999, 12, 31)),
    (1114, datetime(2024, 6, 1, 1, 2, 3, 4)),
    (1184, datetime(2024, 6, 1, 1, 2, 3, 4, tzinfo=UTC)),
    (700, 1.5),
    (701, -2.25),
    (25, "é" * 50),
]


async def test_the_question_about_a_call_has_the_expected_answer(sharded: Sharded) -> None:
    """Of every type; constants of the text take part."""
    for oid, value in VALUES:
        for key in ((KeyPart(0, oid),), (KeyPart(-1, 25, literal=b"x"), KeyPart(0, oid))):
            asked = code_question(StatementRoute(RouteKind.KEYED, "t", (key,)), (value,))
            assert asked is not None
            text, args, expected = asked
            assert await sharded.admins[0].fetchval(text, *args) == expected, (oid, value)


def test_there_is_nothing_to_ask_without_a_key() -> None:
    """Not keyed, or not to be computed from these arguments."""
    assert code_question(StatementRoute(RouteKind.NOT_KEYED), (1,)) is None
    assert code_question(StatementRoute(RouteKind.KEYED, "t", ((KeyPart(0, 23),),)), (None,)) is None
