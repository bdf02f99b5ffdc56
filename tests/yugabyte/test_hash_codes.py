"""The driver's hash codes against the server's own `yb_hash_code(…)`: of the embedded nodes, or of a real cluster."""

from __future__ import annotations

import asyncpg

from picopyn.dialects.yugabyte.code_question import code_question
from picopyn.dialects.yugabyte.hash_code import hash_code
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from tests.dialects.test_yugabyte_key_hash import COMPUTED, PUBLISHED, encoded
from tests.tablets.test_hash_code_in_sql import VALUES
from tests.yugabyte.conftest import Cluster

#: Object identifier of a type → its name.
NAMES = {
    16: "bool",
    17: "bytea",
    20: "bigint",
    21: "smallint",
    23: "int",
    25: "text",
    700: "real",
    701: "double precision",
    1082: "date",
    1114: "timestamp",
    1184: "timestamptz",
    2950: "uuid",
}


async def test_the_server_computes_the_same_codes(target: Cluster) -> None:
    """Published ones, and those that other code than ours computed; keys of one column and of several."""
    connection = await asyncpg.connect(target.dsn_of("n1"))
    try:
        for key, code in PUBLISHED + COMPUTED:
            columns = ", ".join(f"${number}::{NAMES[oid]}" for number, (oid, _) in enumerate(key, 1))
            theirs = await connection.fetchval(f"SELECT yb_hash_code({columns})", *(value for _, value in key))
            assert (theirs, hash_code(encoded(key))) == (code, code), key
    finally:
        await connection.close()


async def test_the_question_about_a_call_has_the_expected_answer(target: Cluster) -> None:
    """What a pool asks of the server for sampled calls, of every type."""
    connection = await asyncpg.connect(target.dsn_of("n1"))
    try:
        for oid, value in VALUES:
            asked = code_question(StatementRoute(RouteKind.KEYED, "t", ((KeyPart(0, oid),),)), (value,))
            assert asked is not None
            text, args, expected = asked
            assert await connection.fetchval(text, *args) == expected, (oid, value)
    finally:
        await connection.close()
