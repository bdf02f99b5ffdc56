"""Leaders of tablets together with placement: over the nodes of a YugabyteDB, counted at the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from picopyn.errors import NotSupported, OutcomeUnknown
from picopyn.testing import YugabyteCluster
from tests.postgres.conftest import OpenPool
from tests.tablets.sharded import keys_of
from tests.threads import FACADES
from tests.yugabyte.conftest import (
    LONG,
    SOON,
    Cluster,
    Note,
    connected,
    in_zone,
    names,
    need,
    places,
    tablets_of,
    until,
)
from tests.yugabyte.conftest import keys as levels
from tests.yugabyte.real import RealCluster

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

TABLE = "picopyn_led"
#: Its rows tell through which node they came.
CREATE = (
    f"CREATE TABLE {TABLE} (id int PRIMARY KEY, v text, node text DEFAULT "
    "host(inet_server_addr()) || ':' || inet_server_port())"
)
INSERT = f"INSERT INTO {TABLE} VALUES ($1, $2)"
#: One node in each of three zones; each leads a third of the hash codes.
ZONES = ("c.r.a", "c.r.b", "c.r.c")


@pytest.fixture(scope="module")
def three() -> Iterator[YugabyteCluster]:
    """The nodes."""
    with YugabyteCluster(ZONES) as cluster:
        yield cluster


@pytest.fixture
def cluster(real: RealCluster | None, request: pytest.FixtureRequest) -> Iterator[YugabyteCluster]:
    """The same with an empty table."""
    if real is not None:
        pytest.skip("a real cluster: leaders of tablets are its own affair")
    three: YugabyteCluster = request.getfixturevalue("three")
    three.execute(CREATE)
    three.shard(TABLE)
    yield three
    down = [name for name, state in three.states().items() if state == "down"]
    for name in down:
        three.restart(name)
    three.execute(f"DROP TABLE {TABLE}; TRUNCATE picopyn_cluster.tablets, picopyn_cluster.hash_tables")


@pytest.fixture
def any_cluster(real: RealCluster | None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The same, or a real one of whatever shape that tells of tablets: who leads what is read from what it tells."""
    if real is None:
        yield request.getfixturevalue("cluster")
        return
    real.execute(f"DROP TABLE IF EXISTS {TABLE}")
    real.execute(CREATE)
    yield real
    real.execute(f"DROP TABLE {TABLE}")


def kept(cluster: Cluster) -> dict[str, set[int]]:
    """What came through each node."""
    known = places(cluster)
    found: dict[str, set[int]] = {}
    for key, place in cluster.execute(f"SELECT id::text, node FROM {TABLE}"):
        found.setdefault(known[place or ""], set()).add(int(key or 0))
    return found


def led(cluster: Cluster, keys: range) -> dict[str, set[int]]:
    """What each node leads of some keys, as the cluster tells; the codes are its own."""
    tablets = tablets_of(cluster, TABLE)
    numbers = ", ".join(f"({key})" for key in keys)
    codes = cluster.execute(f"SELECT id::text, yb_hash_code(id)::text FROM (VALUES {numbers}) AS asked (id)")
    found: dict[str, set[int]] = {}
    for key, code in codes:
        leader = next(tablet.leader for tablet in tablets if tablet.start <= int(code or 0) < tablet.end)
        found.setdefault(leader, set()).add(int(key or 0))
    return found


async def insert(pool: Any, keys: range, **options: Any) -> None:
    for key in keys:
        await pool.execute(INSERT, key, "x", **options)


async def learn(pool: Any) -> None:
    assert (await pool.explain_route(INSERT, 1, "x")).kind is not None


async def until_at(pool: Any, cluster: Cluster, key: int, name: str, reason: str = "keyed") -> None:
    """Wait until the INSERT of a key would go to a node for that reason."""
    address = "{}:{}".format(*cluster.address_of(name))
    while True:
        explained = await pool.explain_route(INSERT, key, "x")
        if explained.reason == reason and explained.candidates and address in explained.candidates[0]:
            return
        await pool.fetchval("SELECT pg_sleep(0.02)", idempotent=True)


@both
async def test_every_keyed_call_is_direct_once_its_text_is_learned(
    any_cluster: Cluster, open_pool: OpenPool, full_size: bool, measured: Note
) -> None:
    """One seed is enough; each row came through the node that leads its key, by the word of the cluster."""
    pool = await open_pool(any_cluster.dsn_of("n1"), load_balance=True)
    await pool.wait_ready(timeout=LONG)
    await learn(pool)
    keys = range(20_000 if full_size else 300)
    leaders = led(any_cluster, keys)
    await insert(pool, keys)
    if led(any_cluster, keys) != leaders:
        pytest.skip("a real cluster: leaders moved meanwhile")
    rows, calls = kept(any_cluster), pool.stats().calls
    direct = sum(len(rows.get(name, set()) & own) for name, own in leaders.items())
    in_doubt = calls["leader_unused"]  # a leader that a machine under load keeps waiting is asked whether it lives
    measured(f"direct share of {len(keys)}", direct / len(keys))
    assert (direct + in_doubt, calls["keyed"] + in_doubt) == (len(keys), len(keys)), calls


#: What a pool is told beside the zones of some nodes, one level after the other; none: all are named.
@both
@pytest.mark.parametrize(
    ("named", "wishes"),
    [
        pytest.param(("n2",), {}, id="one zone"),
        pytest.param(("n2",), {"fallback_to_topology_keys_only": True}, id="strict"),
        pytest.param(("n1", "n3"), {}, id="two levels"),
        pytest.param((), {"topology_keys": "*:3"}, id="the region"),
        pytest.param((), {"load_balance": "only-primary"}, id="the type"),
    ],
)
async def test_leaders_are_used_where_they_are_named(
    any_cluster: Cluster, open_pool: OpenPool, named: tuple[str, ...], wishes: dict[str, Any]
) -> None:
    """In whatever level; what the others lead goes where everything goes."""
    need(any_cluster, 3)
    region = any_cluster.node("n1").zone.rpartition(".")[0]
    wishes = {name: f"{region}.{value}" if name == "topology_keys" else value for name, value in wishes.items()}
    if named:
        wishes["topology_keys"] = levels(any_cluster, *named)
    pool = await open_pool(any_cluster.dsn, **{"load_balance": True, **wishes})
    await pool.wait_ready(timeout=LONG)
    await learn(pool)
    keys = range(30)
    leaders = led(any_cluster, keys)
    await insert(pool, keys)
    if led(any_cluster, keys) != leaders:
        pytest.skip("a real cluster: leaders moved meanwhile")
    usable = set().union(*(in_zone(any_cluster, name) for name in named)) if named else set(any_cluster.nodes)
    first = in_zone(any_cluster, named[0]) if named else usable
    rows = {key: name for name, theirs in kept(any_cluster).items() for key in theirs}
    for name, theirs in leaders.items():
        for key in theirs:
            assert rows[key] in ({name} if name in usable else first), (key, name)


@both
async def test_when_no_named_node_is_left_the_other_leaders_count(
    cluster: YugabyteCluster, open_pool: OpenPool
) -> None:
    """As the other nodes do; and no longer when a named one is back. Where others are forbidden, they stay so."""
    pool = await open_pool(cluster.dsn, load_balance=True, topology_keys="c.r.a:1", **SOON)
    await pool.wait_ready(timeout=LONG)
    await learn(pool)
    key = keys_of(2)[0]
    await until_at(pool, cluster, key, "n1", "leader_unused")
    cluster.kill("n1")
    await until_at(pool, cluster, key, "n3")
    await until_at(pool, cluster, keys_of(1)[0], "n2")
    cluster.restart("n1")
    await until_at(pool, cluster, key, "n1", "leader_unused")


@both
async def test_a_killed_leader_costs_a_hop_until_the_new_one_is_named(
    cluster: YugabyteCluster, open_pool: OpenPool
) -> None:
    """No call fails that may be repeated."""
    pool = await open_pool(cluster.dsn, load_balance=True, **SOON)
    await pool.wait_ready(timeout=LONG)
    await learn(pool)
    mine = keys_of(0)
    cluster.kill("n1")
    for key in mine[:5]:
        await pool.execute(INSERT, key, "x", idempotent=True)
    cluster.lead("n2", instead_of="n1")
    await until_at(pool, cluster, mine[5], "n2")
    await pool.execute(INSERT, mine[5], "x")
    assert mine[5] in kept(cluster)["n2"]
    assert "n1" not in kept(cluster)


@both
async def test_a_leader_that_moved_gets_its_calls(cluster: YugabyteCluster, open_pool: OpenPool) -> None:
    """At the latest with the next change of the cluster; meanwhile the old one passes them on."""
    pool = await open_pool(cluster.dsn, load_balance=True, **SOON)
    await pool.wait_ready(timeout=LONG)
    await learn(pool)
    cluster.lead("n3", instead_of="n2")
    key = keys_of(1)[0]
    await pool.execute(INSERT, key, "x")
    assert set(kept(cluster)) <= {"n2", "n3"}
    cluster.move("n2", "c.r.d")
    try:
        await until_at(pool, cluster, key, "n3")
    finally:
        cluster.move("n2", "c.r.b")


@both
async def test_switched_off_and_on(any_cluster: Cluster, open_pool: OpenPool) -> None:
    """Without balancing the first host takes everything; leaders are used there when they are asked for by name."""
    need(any_cluster, 3)
    keys = range(30)
    leaders = led(any_cluster, keys)
    for options, nodes in (
        ({}, {"n1"}),
        (
            {"load_balance": True, "topology_keys": levels(any_cluster, "n3"), "tablet_leaders": False},
            in_zone(any_cluster, "n3"),
        ),
        ({"tablet_leaders": True}, set(leaders)),
    ):
        any_cluster.execute(f"TRUNCATE {TABLE}")
        pool = await open_pool(any_cluster.dsn, **options)
        await pool.wait_ready(timeout=LONG)
        explained = await pool.explain_route(INSERT, 1, "x")
        assert (explained.kind is not None) is bool(options.get("tablet_leaders"))
        await insert(pool, keys)
        assert (pool.stats().calls["keyed"] == 30) is bool(options.get("tablet_leaders"))
        if led(any_cluster, keys) == leaders:
            assert kept(any_cluster).keys() == nodes


@both
async def test_who_may_not_ask_for_tablets(
    cluster: YugabyteCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Goes where calls without a key go, and is told once why."""
    cluster.execute(f"CREATE ROLE app LOGIN; GRANT ALL ON {TABLE} TO app")
    cluster.execute("REVOKE SELECT ON yb_tablet_metadata FROM public")
    try:
        pool = await open_pool(cluster.dsn.replace("postgres@", "app@"), load_balance=True)
        for text in (INSERT, f"DELETE FROM {TABLE} WHERE id = $1"):
            explained = await pool.explain_route(text, 1, *("x" for _ in range(text is INSERT)))
            assert explained.reason == "unlearned"
        await pool.execute(INSERT, 1, "x")
        assert caplog.text.count("do not tell of tablets (permission denied for view yb_tablet_metadata)") == 1
    finally:
        cluster.execute("GRANT SELECT ON yb_tablet_metadata TO public")
        cluster.execute(f"REVOKE ALL ON {TABLE} FROM app; DROP ROLE app")


@both
async def test_connections_to_leaders_are_not_trimmed(cluster: YugabyteCluster, open_pool: OpenPool) -> None:
    """Those that use has left behind are, in the same look."""
    pool = await open_pool(
        cluster.dsn,
        load_balance=True,
        topology_keys="c.r.a:1,c.r.b:2",
        yb_servers_refresh_interval=1,
        rebalance_batch=9,
    )
    await pool.wait_ready(timeout=LONG)
    await learn(pool)
    async with pool.acquire(node="{}:{}".format(*cluster.address_of("n3"))):
        await pool.execute(INSERT, keys_of(1)[0], "x")
        assert connected(pool, cluster) == {"n1", "n2", "n3"}
    await until(lambda: connected(pool, cluster) == {"n1", "n2"})
    assert {names(cluster)[node.address] for node in pool.stats().nodes.values() if node.idle} == {"n1", "n2"}


@both
async def test_a_commit_that_an_internal_error_answers_is_unknown(
    cluster: YugabyteCluster, open_pool: OpenPool
) -> None:
    """And not run again; a conflict that is told as one is. Nobody there can be asked what became of it."""
    pool = await open_pool(cluster.dsn_of("n1"))
    cluster.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '%', NEW.v USING ERRCODE = 'XX000'; END $$; "
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON picopyn_led DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW WHEN (NEW.v <> '') EXECUTE FUNCTION fail()"
    )
    runs: list[str] = []

    def insert(*texts: str) -> Any:
        async def work(connection: Any) -> None:
            runs.append(texts[min(len(runs), len(texts) - 1)])
            await connection.execute(INSERT, 1, runs[-1])

        return work

    try:
        with pytest.raises(OutcomeUnknown):
            await pool.run_transaction(insert("Timed out: Write RPC timed out after 60.000s"))
        assert len(runs) == 1
        runs.clear()
        await pool.run_transaction(insert("Restart read required at: 1", "schema version mismatch for table t", ""))
        assert len(runs) == 3
        with pytest.raises(OutcomeUnknown):
            await pool.execute("INSERT INTO picopyn_led VALUES (2, 'Timed out: Write RPC timed out after 60.000s')")
        with pytest.raises(NotSupported, match="resolve"):
            await pool.run_transaction(insert(""), resolve=True)
    finally:
        cluster.execute("DROP TRIGGER late ON picopyn_led; DROP FUNCTION fail()")
