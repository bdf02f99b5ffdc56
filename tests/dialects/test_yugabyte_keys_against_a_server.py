"""Statements that are keyed, run on a real PostgreSQL: it reads the same text, and finds rows of that key only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from picopyn.dialects.yugabyte.statement_key import bind, read_statement
from picopyn.dialects.yugabyte.tablets import KeyColumn, TableFacts
from picopyn.routing.route import RouteKind
from picopyn.testing import PostgresServer

TABLE = TableFacts(1, 1, "public", "t", ("id", "v", "w"), (KeyColumn("id", 23),))
ROWS = [(n, "ab"[n % 2], n % 5) for n in range(-3, 12)]
ARGUMENTS = [(5, 3), (5, 5), (0, 1)]


class Server:
    """A PostgreSQL with one table, and a connection of its own, usable from synchronous tests."""

    def __init__(self) -> None:
        self._server = PostgresServer(port=0).start()
        self._runner = asyncio.Runner()
        self._runner.run(self._fill())

    async def _fill(self) -> None:
        self._connection = await asyncpg.connect(self._server.dsn, statement_cache_size=0)
        await self._connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w int)")
        await self._connection.executemany("INSERT INTO t VALUES ($1, $2, $3)", ROWS)

    def touched(self, text: str, args: tuple[int, ...]) -> set[int] | None:
        """Ids of the rows that a statement finds, makes or changes; None where the server refuses it."""
        return self._runner.run(self._touched(text, args))

    async def _touched(self, text: str, args: tuple[int, ...]) -> set[int] | None:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            statement = await self._connection.prepare(text)
            return {row["id"] for row in await statement.fetch(*args[: len(statement.get_parameters())])}
        except (asyncpg.PostgresError, asyncpg.InterfaceError, KeyError):
            return None
        finally:
            await transaction.rollback()

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()
        self._server.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The server."""
    started = Server()
    yield started
    started.close()


def keyed_by(text: str, args: tuple[int, ...]) -> int | None:
    """The id that a statement is taken to be about; None where it is not keyed."""
    said = read_statement(text)
    route = bind(said, TABLE) if not isinstance(said, str) else None
    if route is None or route.kind is not RouteKind.KEYED:
        return None
    return args[route.keys[0][0].parameter]


LEAVES = st.sampled_from(
    [
        *("id = $1", "$1 = id", "t.id = $2", "id = $1::int", "id = ($2)", "id=$1", '"id" = $1', "id = $1 + 0"),
        *("w = $2", "v = 'a'", "w > 1", "id > $1", "id <> $1", "id = w", "true", "w IS NULL", "id = -$1", "id IN ($1)"),
        *("w BETWEEN 1 AND id = $1", "w BETWEEN 0 AND 3", "v LIKE 'a' = true", "id = $1 IS NULL", "id = $1 = true"),
        *("id = $1 IN (true)", "id = $1 AND", "id = $1 -- OR true", "id = $1 /* OR true */", "'id = $1' = v"),
    ]
)
FORMS = st.sampled_from(
    [
        *("{} AND {}", "{} OR {}", "({}) AND {}", "({} OR {})", "NOT {}", "NOT ({} AND {})", "({}) IS TRUE", "({})"),
        *("CASE WHEN {} THEN {} END", "{} AND {} AND {}", "{} = {}", "coalesce({}, {})", "({}) IS NOT FALSE AND {}"),
        *("{} AND {} IS NOT NULL", "{} IS DISTINCT FROM {}", "({}, {}) = (true, true)", "bool({})", "({})::bool"),
    ]
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.tuples(FORMS, inner, inner, inner).map(lambda parts: parts[0].format(*parts[1:])),
    max_leaves=6,
)
STATEMENTS = st.sampled_from(
    [
        "SELECT id FROM t WHERE {}",
        "SELECT x.id FROM t AS x WHERE {}",
        "SELECT id FROM t WHERE {} ORDER BY w LIMIT 3",
        "UPDATE t SET w = w + 1 WHERE {} RETURNING id",
        "DELETE FROM t WHERE {} RETURNING id",
        "SELECT id, count(*) FROM t WHERE {} GROUP BY id HAVING true",
    ]
)


@given(statement=STATEMENTS, condition=CONDITIONS, args=st.sampled_from(ARGUMENTS))
@example(statement="SELECT id FROM t WHERE {}", condition="w = 1 OR id = $1 AND w = 0", args=(5, 3))
@example(statement="SELECT id FROM t WHERE {}", condition="id = $1 IS NULL", args=(5, 3))
@settings(max_examples=250)
def test_a_keyed_statement_touches_rows_of_its_key_only(
    server: Server, statement: str, condition: str, args: tuple[int, int]
) -> None:
    """However conditions are put together, with the server's own precedence of operators."""
    text = statement.replace("{}", condition)
    key = keyed_by(text, args)
    if key is not None:
        assert (server.touched(text, args) or set()) <= {key}


WORDS = [
    *("select", "id", "from", "t", "where", "and", "or", "not", "(", ")", "=", "$1", "$2", ",", "v", "w", "'a'"),
    *("is", "null", "insert", "into", "values", "returning", "union", "in"),
]
SEEDS = [
    "select id from t where id = $1 and v = 'a'",
    "insert into t ( id , v , w ) values ( $1 , 'a' , $2 ) on conflict ( id ) do update set w = 1 returning id",
    "insert into t values ( $1 , 'a' , $2 ) on conflict do nothing returning id",
    "delete from t as x where x.id = $1 or v = 'b' returning id",
    "update t set w = $2 where ( id = $1 ) and w > 0 returning t.id",
]
#: Something else that comes back under the name of the key.
OTHERWISE_CALLED_ID = re.compile(r"(\$\d|'a'|\)|\bas|null|\b(v|w|id|t)) id\b")
CHANGES = st.lists(st.tuples(st.sampled_from("idr"), st.integers(0, 40), st.sampled_from(WORDS)), max_size=3)


@given(seed=st.sampled_from(SEEDS), changes=CHANGES, args=st.sampled_from(ARGUMENTS))
@settings(max_examples=250)
def test_so_it_is_for_statements_that_somebody_damaged(
    server: Server, seed: str, changes: list[Any], args: tuple[int, int]
) -> None:
    """Words left out, put in and exchanged."""
    words = seed.split()
    for change, place, word in changes:
        at = place % len(words)
        words[at : at + (change != "i")] = [] if change == "d" else [word]
    text = " ".join(words)
    key = keyed_by(text, args)
    if key is not None and not OTHERWISE_CALLED_ID.search(text):
        assert (server.touched(text, args) or set()) <= {key}


def test_the_test_would_notice(server: Server) -> None:
    """Keyed statements do find their rows here, and unkeyed ones more than one."""
    assert keyed_by(SEEDS[0], (5, 3)) == 5
    assert server.touched("select id from t where id = $1", (5, 3)) == {5}
    assert len(server.touched("select id from t where id > $1", (5, 3)) or ()) > 1
    assert server.touched("select nonsense", ()) is None
