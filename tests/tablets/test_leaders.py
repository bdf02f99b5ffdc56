"""Keyed statements go to the leaders of their tablets: over real servers that say who leads what."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from picopyn.observe import Event, RouteLearned
from picopyn.testing import FaultProxy
from tests.postgres.conftest import OpenPool, until
from tests.postgres.nodes import Nodes
from tests.tablets.sharded import Sharded, TabletDialect, keys_of, owner
from tests.threads import FACADES

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

INSERT = "INSERT INTO t VALUES ($1, $2)"
READ = "SELECT v FROM t WHERE id = $1"


def options(sharded: Sharded, **more: Any) -> dict[str, Any]:
    """A pool over these nodes."""
    return {
        "dsn": f"postgresql://postgres@{sharded.address(0)}/postgres",
        "dialect": TabletDialect(),
        "topology_source": Nodes(*sharded.ports),
        "acquire_timeout": 30.0,
        "load_balance": True,
        **more,
    }


async def learn(pool: Any, *texts: str) -> None:
    """Have the pool learn texts, and wait for it."""
    for text in texts:
        assert (await pool.explain_route(text, *([1] * text.count("$")))).kind is not None


async def until_led(pool: Any, sharded: Sharded, key: int, node: int) -> None:
    """Wait until an INSERT of a key goes to a node because that leads it."""
    wanted = ("keyed", f"{sharded.ports[node]} ({sharded.address(node)})")
    explained = await pool.explain_route(INSERT, key, "x")
    while (explained.reason, explained.candidates[0]) != wanted:
        await pool.fetchval("SELECT pg_sleep(0.02)")
        explained = await pool.explain_route(INSERT, key, "x")


@both
async def test_every_keyed_call_goes_to_the_leader_of_its_tablet(
    sharded: Sharded, open_pool: OpenPool, full_size: bool
) -> None:
    """All of them, once the text is learned: each row is at the node that leads its key."""
    pool = await open_pool(**options(sharded))
    await learn(pool, INSERT)
    before = pool.stats().calls["keyed"]
    count = 20_000 if full_size else 300
    for key in range(count):
        await pool.execute(INSERT, key, "x")
    kept = await sharded.kept()
    assert kept == [set(keys_of(node, range(count))) for node in range(3)]
    assert pool.stats().calls["keyed"] - before == count


@both
async def test_keys_of_several_columns_and_constants(sharded: Sharded, open_pool: OpenPool) -> None:
    """Reads, changes and deletions find what was written, for they go to the same node."""
    insert = "INSERT INTO pairs (b, a, v) VALUES ($1, $2, 0)"
    read = "SELECT v FROM pairs WHERE a = $1 AND b = 'x'"
    change = "UPDATE pairs SET v = v + 1 WHERE b = $1 AND a = $2"
    delete = "DELETE FROM pairs p WHERE p.a = $1::bigint AND p.b = $2 RETURNING v"
    pool = await open_pool(**options(sharded))
    await learn(pool, insert, read, change, delete)
    for key in range(30):
        await pool.execute(insert, "x", key)
        await pool.execute(change, "x", key)
        assert await pool.fetchval(read, key) == 1
    nodes = [{key for key in range(30) if owner(key.to_bytes(8, "big") + b"x") == node} for node in range(3)]
    assert await sharded.kept("SELECT a FROM pairs") == nodes
    assert [await pool.fetchval(delete, key, "x") for key in range(30)] == [1] * 30


@both
async def test_everything_else_goes_as_if_there_were_no_tablets(sharded: Sharded, open_pool: OpenPool) -> None:
    """It is counted why."""
    pool = await open_pool(**options(sharded))
    await learn(pool, READ, "SELECT count(*) FROM t WHERE v = $1")
    before = pool.stats().calls
    assert await pool.fetchval("SELECT count(*) FROM t WHERE v = $1", "x") == 0
    assert await pool.fetchval(READ, None) is None
    assert await pool.fetchval("SELECT 1") == 1
    after = pool.stats().calls
    assert after["not_keyed"] - before["not_keyed"] == 1
    assert after["unlearned"] - before["unlearned"] == 1  # without parameters, a text is looked at when it comes again
    assert after["uncomputable"] - before["uncomputable"] == 1
    assert after["keyed"] == before["keyed"]


@both
async def test_a_text_runs_at_once_and_is_learned_meanwhile(sharded: Sharded, open_pool: OpenPool) -> None:
    """Its first call waits for nothing."""
    heard: list[Event] = []
    pool = await open_pool(**options(sharded, on_event=heard.append))
    assert await pool.fetchval(READ, 1) is None
    assert pool.stats().calls["unlearned"] == 1
    await until(lambda: any(isinstance(event, RouteLearned) for event in heard))
    while not pool.stats().calls["keyed"]:
        await pool.fetchval(READ, 1)


@both
async def test_explain_route_tells_the_key_and_the_leader(sharded: Sharded, open_pool: OpenPool) -> None:
    """As on Picodata; the bucket is the hash code."""
    pool = await open_pool(**options(sharded))
    explained = await pool.explain_route(READ, 5)
    assert explained.tier == "public.t"
    assert explained.key_parameters == ((1,),)
    assert explained.buckets == (2675,)
    assert explained.candidates[0] == f"{sharded.ports[0]} ({sharded.address(0)})"
    assert explained.direct
    assert (await pool.explain_route("SELECT v FROM t WHERE id = 5")).buckets == (2675,)
    unread = await pool.explain_route("SELECT * FROM t, pairs WHERE id = $1", 5)
    assert "not understood" in unread.reason


@both
async def test_leaders_that_moved_are_found_when_nodes_change(sharded: Sharded, open_pool: OpenPool) -> None:
    """A node leaves: its tablets are led by others, and calls go there within one look."""
    source = Nodes(*sharded.ports)
    pool = await open_pool(**options(sharded, topology_source=source, topology_update_interval=1.0))
    await learn(pool, INSERT)
    await sharded.lead([1, 1, 0])
    source.ports.pop()
    await until_led(pool, sharded, keys_of(2)[0], 0)
    for node in range(3):
        await pool.execute(INSERT, keys_of(node)[0], "x")
    assert await sharded.kept() == [{keys_of(2)[0]}, {keys_of(0)[0], keys_of(1)[0]}, set()]


@both
async def test_a_dead_leader_costs_a_hop_and_no_error(sharded: Sharded, open_pool: OpenPool) -> None:
    """Its calls go to living nodes, and to the new leader as soon as the servers name one."""
    with FaultProxy("127.0.0.1", sharded.servers[0].port or 0) as proxy:
        sharded.ports[0] = proxy.port
        await sharded.lead([0, 1, 2])
        pool = await open_pool(**options(sharded))
        await learn(pool, INSERT)
        mine = iter(keys_of(0))
        await pool.execute(INSERT, next(mine), "x")
        proxy.refuse()
        proxy.cut()
        await sharded.lead([None, 1, 2])  # the tablet elects a leader
        for key in [next(mine) for _ in range(5)]:
            await pool.execute(INSERT, key, "x", idempotent=True)
        calls = pool.stats().calls
        assert calls["leader_unused"] + calls["no_map"] > 0
        await sharded.lead([1, 1, 2])
        key = next(mine)
        await until_led(pool, sharded, key, 1)
        await pool.execute(INSERT, key, "x")
        kept = await sharded.kept()
        assert key in kept[1]


@both
async def test_a_server_that_computes_another_code_wins(
    sharded: Sharded, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls are compared with `yb_hash_code`; a difference makes the text not keyed, and is told."""
    await sharded.everywhere(
        "CREATE OR REPLACE FUNCTION yb_bytes(value anyelement) RETURNS bytea LANGUAGE sql AS 'SELECT ''wrong''::bytea'"
    )
    pool = await open_pool(**options(sharded))
    with caplog.at_level(logging.WARNING, "picopyn"):
        await learn(pool, READ)
        while pool.stats().metadata.differences == 0:
            await pool.fetchval(READ, 424242)
        assert (await pool.explain_route(READ, 424242)).reason.startswith("the server computes another hash code")
    assert "the server computes another hash code for a key of public.t" in caplog.text
    assert "424242" not in caplog.text
    before = pool.stats().calls["not_keyed"]
    await pool.fetchval(READ, 424242)
    assert pool.stats().calls["not_keyed"] == before + 1


@both
async def test_calls_are_compared_and_agree(sharded: Sharded, open_pool: OpenPool) -> None:
    """The first calls of a text are all compared."""
    pool = await open_pool(**options(sharded))
    await learn(pool, READ)
    while pool.stats().metadata.checks < 5:
        await pool.fetchval(READ, 1)
    assert pool.stats().metadata.differences == 0


@both
async def test_leaders_can_be_switched_off(sharded: Sharded, open_pool: OpenPool) -> None:
    """Then nothing is learned, and nobody is asked."""
    pool = await open_pool(**options(sharded, tablet_leaders=False))
    for key in range(5):
        await pool.execute(INSERT, key, "x")
    calls = pool.stats().calls
    assert (calls["any"], calls["keyed"], calls["unlearned"]) == (5, 0, 0)
    assert (await pool.explain_route(INSERT, 1, "x")).kind is None


@both
@pytest.mark.parametrize("also", ["", "DROP FUNCTION yb_table_properties"], ids=["old", "plain"])
async def test_a_release_without_a_list_of_tablets(
    sharded: Sharded, open_pool: OpenPool, caplog: pytest.LogCaptureFixture, also: str
) -> None:
    """Nothing is keyed, and it is said once; as on a plain PostgreSQL, which has neither."""
    await sharded.everywhere(f"DROP VIEW yb_tablet_metadata; {also}")
    pool = await open_pool(**options(sharded))
    with caplog.at_level(logging.INFO, "picopyn"):
        explained = await pool.explain_route(READ, 1)
        await pool.explain_route(INSERT, 1, "x")
    assert "the server does not list tablets" in explained.reason
    assert caplog.text.count("do not tell of tablets (no yb_tablet_metadata)") == 1


@both
async def test_a_table_that_is_made_again_is_learned_again(sharded: Sharded, open_pool: OpenPool) -> None:
    """With another key: what was learned of its texts is forgotten at the next look."""
    source = Nodes(*sharded.ports)
    pool = await open_pool(**options(sharded, topology_source=source, topology_update_interval=1.0))
    await learn(pool, "SELECT 1 FROM t WHERE id = $1")
    await sharded.everywhere(
        'DROP TABLE t; CREATE TABLE t (id int, v text COLLATE "C" PRIMARY KEY); '
        "UPDATE hashed SET name = 't'::regclass WHERE name NOT IN (SELECT oid FROM pg_class)"
    )
    await sharded.lead([0, 1, 2])
    source.ports.pop()  # something changes, so leaders are asked for
    by_text = "SELECT 1 FROM t WHERE v = $1"
    while (await pool.explain_route("SELECT 1 FROM t WHERE id = $1", 1)).key_parameters:
        await pool.fetchval("SELECT pg_sleep(0.02)")
    assert (await pool.explain_route(by_text, "a")).key_parameters == ((1,),)


@both
async def test_leaders_are_known_by_other_addresses_than_those_dialled(sharded: Sharded, open_pool: OpenPool) -> None:
    """From outside nodes have public addresses; the list of servers says which node a private one means."""
    await sharded.everywhere(
        "CREATE FUNCTION yb_servers() RETURNS TABLE (host text, port bigint, uuid text) LANGUAGE sql AS "
        f"$$ VALUES ('10.0.0.0', 5433::bigint, '{sharded.ports[0]}'), ('10.0.0.1', 5433, '{sharded.ports[1]}'), "
        f"('10.0.0.2', 5433, '{sharded.ports[2]}') $$"
    )
    for node in range(3):
        await sharded.everywhere(
            "UPDATE tablets SET leader = $2 WHERE leader = $1", sharded.address(node), f"10.0.0.{node}:5433"
        )
    pool = await open_pool(**options(sharded))
    await learn(pool, INSERT)
    for key in range(30):
        await pool.execute(INSERT, key, "x")
    assert await sharded.kept() == [set(keys_of(node, range(30))) for node in range(3)]


@both
async def test_servers_that_refuse_to_tell_cost_a_call_nothing(sharded: Sharded, open_pool: OpenPool) -> None:
    """A release without what is asked for, or a user without rights: the text is asked about again later."""
    await sharded.everywhere("DROP FUNCTION yb_table_properties")
    pool = await open_pool(**options(sharded))
    assert (await pool.explain_route(READ, 1)).kind is None
    assert await pool.fetchval(READ, 1) is None
    stats = pool.stats()
    assert stats.calls["unlearned"] == 1
    assert stats.metadata.lost == 1


@both
async def test_a_table_that_is_not_there_yet_is_asked_about_again(sharded: Sharded, open_pool: OpenPool) -> None:
    """Nothing is remembered about it."""
    pool = await open_pool(**options(sharded))
    assert (await pool.explain_route("SELECT 1 FROM later WHERE id = $1", 1)).kind is None
    assert pool.stats().metadata.cached == 0
