"""Routes learned from the server are the server's own: on every recorded plan, and where constants fold."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.dialects.base import BucketScope
from picopyn.dialects.picodata import PicodataDialect
from picopyn.routing.explanation import RouteExplanation
from picopyn.routing.route import RouteKind
from tests.contract.conftest import OpenPool
from tests.contract.target import Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

PLANS = json.loads((Path(__file__).parents[1] / "recorded" / "picodata-plans.json").read_text())
TABLES = ("o", "c", "d", "u", "ts", "bo", "g", "Q t", "dd", "o2")
BUCKET_COUNT = 3000
READERS: Mapping[int, Callable[[str], Any]] = {
    16: lambda text: text == "t",
    25: str,
    701: float,
    1700: Decimal,
    2950: UUID,
}
ROUTED = (RouteKind.KEYED, RouteKind.KEY_SET, RouteKind.CONSTANT)

_WORD = re.compile(r"""'(?:[^']|'')*'|"(?P<quoted>[^"]*)"|\$\d+|(?P<word>\w+)""")


class Renamed:
    """The recorded tables under names of this run."""

    def __init__(self, target: Target) -> None:
        self.names = {name: target.new_name(name.replace(" ", "")) for name in TABLES}

    def __call__(self, sql: str) -> str:
        return _WORD.sub(self._one, sql)

    def _one(self, match: re.Match[str]) -> str:
        name = match["quoted"] if match["quoted"] is not None else (match["word"] or "").lower()
        return self.names.get(name, match[0])


@pytest.fixture
async def renamed(target: Target) -> Renamed:
    renamed = Renamed(target)
    if set((await target.tiers()).values()) & {BUCKET_COUNT} != {BUCKET_COUNT}:
        pytest.skip(f"no tier of the cluster has {BUCKET_COUNT} buckets, as the recorded one had")
    if (await target.tiers())[await target.default_tier()] != BUCKET_COUNT:
        pytest.skip(f"the default tier has not {BUCKET_COUNT} buckets, as the recorded one had")
    await target.execute(*map(renamed, PLANS["schema"]))
    target.adopt_tables(renamed.names.values())
    return renamed


def _arguments(row: Mapping[str, Any]) -> tuple[Any, ...]:
    params = row.get("params", ())
    return tuple(None if p["text"] is None else READERS.get(p["oid"], int)(p["text"]) for p in params)


def _recorded(row: Mapping[str, Any]) -> frozenset[int] | None:
    """The buckets named; None for all, any or unknown."""
    inside = re.search(r"\[(.*)\]", row["buckets"])
    if inside is None or "-" in inside[1]:
        return None
    return frozenset(map(int, filter(None, inside[1].split(","))))


def _verdict(row: Mapping[str, Any], explained: RouteExplanation) -> str:
    """What the learned route is worth for the recorded arguments."""
    if explained.kind is RouteKind.ANY_NODE:
        return "any node" if row["buckets"] == "= any" else "WRONG"
    if explained.kind not in ROUTED or not explained.buckets:
        return "not routed"
    return "routed as recorded" if frozenset(explained.buckets) == _recorded(row) else "WRONG"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_every_recorded_plan_is_learned_as_recorded_or_not_at_all(
    target: Target, open_pool: OpenPool, renamed: Renamed, measured: Callable[[str, object], None]
) -> None:
    """For each recorded statement the learned route gives the recorded buckets, or says not keyed."""
    pool = await open_pool(target.dsn, query_metadata_cache_size=500)
    verdicts, wrong, connection = Counter[str](), list[str](), await target.connect(statement_cache_size=0)
    try:
        for row in PLANS["statements"]:
            sql, args = renamed(row["sql"]), _arguments(row)
            verdict = await _judge(pool, connection, row, sql, args)
            verdicts[verdict] += 1
            wrong += [row["sql"]] * (verdict == "WRONG")
    finally:
        await connection.close()
    for verdict, count in sorted(verdicts.items()):
        measured(verdict, count)
    assert not wrong
    named = [row for row in PLANS["statements"] if "error" not in row and _recorded(row)]
    assert verdicts["routed as recorded"] >= 0.8 * len(named)


async def _judge(pool: Pool, connection: Any, row: Mapping[str, Any], sql: str, args: Sequence[Any]) -> str:
    try:
        prepared = await connection.prepare(f"EXPLAIN {sql}")
    except asyncpg.PostgresError:
        assert "error" in row, sql
        return "refused by the server"
    declared = [parameter["oid"] for parameter in row.get("params", ())]
    if [parameter.oid for parameter in prepared.get_parameters()] != declared or "error" in row:
        return "recorded with types that the server does not infer"
    return _verdict(row, await pool.explain_route(sql, *args))


#: The table at the head of `key-probe.md`: statements whose buckets depend on the values, not only on the text.
FOLDING: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "SELECT * FROM o WHERE id = $1 OR $2 = 5": [(1, 4), (1, 5), (7, 6)],
    "SELECT * FROM o WHERE $1::int IS NULL OR id = $1": [(1,), (None,), (7,)],
    "SELECT * FROM o WHERE id = $1 OR (id = 5 AND $2)": [(1, False), (1, True), (5, True)],
    "SELECT * FROM o WHERE (id = $1 AND $3) OR (id = $2 AND NOT $3)": [(1, 2, True), (1, 2, False), (3, 3, False)],
    "SELECT * FROM o WHERE id = $1 AND id = $2": [(1, 2), (1, 1)],
    "SELECT * FROM dd WHERE k = $1::double": [(1.5,), (1.0,), (1e300,), (0.1,), (-3.0,)],
}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("text", FOLDING)
async def test_what_depends_on_the_values_is_never_sent_to_a_wrong_bucket(
    target: Target, open_pool: OpenPool, renamed: Renamed, text: str, measured: Callable[[str, object], None]
) -> None:
    """For each of these arguments the route names exactly the server's own buckets, or none."""
    sql, dialect = renamed(text), PicodataDialect()
    pool = await open_pool(target.dsn)
    connection = await target.connect(statement_cache_size=0)
    try:
        try:
            question = await connection.prepare(f"EXPLAIN {sql}")
        except asyncpg.PostgresError as error:
            pytest.skip(f"this server refuses the statement: {error}")
        for args in FOLDING[text]:
            answer = dialect.read_bucket_answer(await question.fetch(*args))
            assert answer is not None
            assert answer.scope in (BucketScope.EXACT, BucketScope.AT_MOST)
            explained = await pool.explain_route(sql, *args)
            if explained.buckets:
                served = {bucket for first, last in answer.ranges for bucket in range(first, last + 1)}
                assert set(explained.buckets) == served, args
            if None in args:
                assert not explained.buckets, "a call with NULL in its key was routed"
    finally:
        await connection.close()
    measured("learned as", (await pool.explain_route(sql, *FOLDING[text][0])).kind)
