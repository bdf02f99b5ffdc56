"""Clusters with zones, pools that are closed at the end, and where the connections of a pool are."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from picopyn import asynchronous, sync
from picopyn.asynchronous import census
from picopyn.testing import YugabyteCluster
from tests.postgres.conftest import OpenPool, nothing_left_behind, opening, until
from tests.yugabyte import containers
from tests.yugabyte.real import RealCluster

__all__ = ["held", "nothing_left_behind", "until"]

#: A cluster of ours or a real one, which has the same words.
Cluster: TypeAlias = YugabyteCluster | RealCluster
Factory = Callable[..., Any]
Connect = Callable[..., Coroutine[Any, Any, Any]]
Note = Callable[[str, object], None]

REAL = "PICOPYN_TEST_YUGABYTE_DSN"
#: What it says instead of a connection string, for three containers.
CONTAINERS = "docker"

#: Three nodes of the primary cluster in dc1 to dc3, three read replicas in dc2 to dc4.
PRIMARIES = ("c.r.dc1", "c.r.dc2", "c.r.dc3")
REPLICAS = ("c.r.dc2", "c.r.dc3", "c.r.dc4")
#: Three zones of three nodes.
NINE = tuple(f"aws.west.{zone}" for zone in "abc" for _ in range(3))

#: What tests of failures want: looks as often as possible, and no node left out for longer than it must.
SOON = {"yb_servers_refresh_interval": 1, "failed_host_reconnect_delay_secs": 0}
#: Longest wait for what takes a moment (seconds).
LONG = 30.0


@pytest.fixture(scope="session")
def real() -> Iterator[RealCluster | None]:
    """The cluster that the environment names, for everything that can be asked of it; None: there are embedded ones."""
    dsn = os.environ.get(REAL)
    if not dsn:
        yield None
    elif dsn == CONTAINERS:
        with containers.three_zones() as dsn:
            yield RealCluster(dsn)
    else:
        yield RealCluster(dsn)


@pytest.fixture(scope="session")
def behind_doors(real: RealCluster | None) -> Iterator[list[RealCluster]]:
    """The same through proxies, once a test wants to kill or freeze its nodes."""
    found: list[RealCluster] = []
    yield found
    for cluster in found:
        cluster.close()


@pytest.fixture(scope="module")
def six(real: RealCluster | None) -> Iterator[Cluster]:
    """Primaries n1 to n3, read replicas n4 to n6, for tests that leave them as they found them."""
    if real is not None:
        yield fitting(real, PRIMARIES, REPLICAS)
        return
    with YugabyteCluster(PRIMARIES, read_replicas=REPLICAS, public="own") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def own_six(real: RealCluster | None, request: pytest.FixtureRequest) -> YugabyteCluster:
    """The same, for tests that need what no other cluster has: addresses, and a storage without nodes."""
    if real is not None:
        pytest.skip("a real cluster: its addresses are its own affair")
    cluster: YugabyteCluster = request.getfixturevalue("six")
    return cluster


@pytest.fixture(scope="module")
def target(real: RealCluster | None, request: pytest.FixtureRequest) -> Cluster:
    """The same, or a real cluster of whatever shape: for tests that say what they expect by what it looks like."""
    cluster: Cluster = real or request.getfixturevalue("six")
    return cluster


@pytest.fixture(scope="session")
def running() -> Iterator[dict[Any, YugabyteCluster]]:
    """Clusters that tests share, by what they were asked for with."""
    started: dict[Any, YugabyteCluster] = {}
    yield started
    for cluster in started.values():
        cluster.shutdown()


@pytest.fixture
def shared_cluster(
    running: dict[Any, YugabyteCluster], real: RealCluster | None, behind_doors: list[RealCluster]
) -> Iterator[Factory]:
    """A function from settings to a cluster whose nodes a test may kill, freeze and move: they are put back afterwards.

    One that adds nodes, or takes some from the list or rights from users, needs a cluster of its own.
    """
    used: list[tuple[Any, dict[str, str]]] = []

    def ask(zones: tuple[str, ...], **settings: Any) -> Any:
        key = (zones, *sorted(settings.items()))
        if real is not None:
            fitting(real, zones, settings.pop("read_replicas", ()))
            if settings:
                pytest.skip(f"a real cluster: {', '.join(settings)} cannot be chosen")
            cluster = _fronted(real, behind_doors)
        else:
            cluster = running[key] = running.get(key) or YugabyteCluster(zones, **settings).start()
        used.append((cluster, {name: cluster.node(name).zone for name in cluster.nodes}))
        return cluster

    yield ask
    used += [(cluster, {}) for cluster in behind_doors]
    for cluster, zones in used:
        for name, state in cluster.states().items():
            if state != "running":
                (cluster.thaw if state == "frozen" else cluster.restart)(name)
            if zones and cluster.node(name).zone != zones[name]:
                cluster.move(name, zones[name])


@pytest.fixture
def own_cluster(real: RealCluster | None, shared_cluster: Factory) -> Factory:
    """The same, for tests that write down what its nodes say of themselves."""
    if real is not None:
        pytest.skip("a real cluster: what its nodes say is their own affair")
    return shared_cluster


@pytest.fixture
def shared_of(real: RealCluster | None, behind_doors: list[RealCluster], shared_cluster: Factory) -> Factory:
    """The same for tests that need some nodes, wherever they lie: a function from how many there must be at least, and
    where embedded ones lie.
    """

    def ask(least: int, zones: tuple[str, ...]) -> Any:
        if real is None:
            return shared_cluster(zones)
        need(real, least)
        return _fronted(real, behind_doors)

    return ask


def _fronted(real: RealCluster, behind_doors: list[RealCluster]) -> RealCluster:
    """A real cluster whose nodes can be killed."""
    if not behind_doors:
        behind_doors.append(RealCluster(real.dsn, doors=True))
    return behind_doors[0]


@pytest.fixture
def picopyn_yugabyte_cluster(real: RealCluster | None, request: pytest.FixtureRequest) -> Factory:
    """Clusters of one test, in a shape of its own."""
    if real is not None:
        pytest.skip("a real cluster: its shape cannot be chosen")
    own: Factory = request.getfixturevalue("cluster_of_one_test")
    return own


@pytest.fixture
def cluster_of_one_test() -> Iterator[Factory]:
    """The same."""
    started: list[YugabyteCluster] = []

    def ask(*zones: Any, **settings: Any) -> YugabyteCluster:
        started.append(YugabyteCluster(*zones, **settings).start())
        return started[-1]

    yield ask
    for cluster in started:
        cluster.shutdown()


@pytest.fixture(scope="session")
def real_dsn(real: RealCluster | None) -> Iterator[str]:
    """Connection string of a real cluster: the one that is named, or three containers where Docker has the image."""
    if real is not None:
        yield real.dsn
    elif containers.are_possible():
        with containers.three_zones() as dsn:
            yield dsn
    else:
        pytest.skip(f"{REAL} names no cluster, and Docker has no {containers.IMAGE}")


@pytest.fixture
async def open_pool(pool_class: Any, behind_doors: list[RealCluster]) -> AsyncIterator[OpenPool]:
    """A function like `Pool(…)` whose pools are opened, and closed at the end of the test."""
    async with opening(pool_class) as open_it:
        yield lambda dsn="", **options: open_it(dsn, **(ways(behind_doors, dsn) | options))


def ways(behind_doors: list[RealCluster], dsn: str) -> dict[str, Any]:
    """What has to be said beside a connection string that leads through proxies."""
    return next((cluster.options for cluster in behind_doors if cluster.serves(dsn)), {})


class Blocking:
    """A connection that blocks, awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        return method if name in ("is_closed", "terminate") else functools.partial(asyncio.to_thread, method)


@pytest.fixture
async def connect(
    facade: str, monkeypatch: pytest.MonkeyPatch, behind_doors: list[RealCluster]
) -> AsyncIterator[Connect]:
    """`connect` of the facade, as in a process that never connected before; what it opened is closed at the end."""
    monkeypatch.setattr(census, "_CENSUSES", {})
    opened: list[Any] = []

    async def open_one(dsn: str, **options: Any) -> Any:
        options = ways(behind_doors, dsn) | options
        if facade == "asynchronous":
            opened.append(await asynchronous.connect(dsn, **options))
        else:
            opened.append(Blocking(await asyncio.to_thread(sync.connect, dsn, **options)))
        return opened[-1]

    yield open_one
    for connection in opened:
        with suppress(Exception):
            await connection.close()


def fitting(real: RealCluster, zones: Sequence[str], read_replicas: Sequence[str]) -> RealCluster:
    """A real cluster, if its nodes lie like those of an embedded one; otherwise the test is skipped."""
    if not real.has_shape(zones, read_replicas):
        others = f" and read replicas in {', '.join(read_replicas)}" if read_replicas else ""
        pytest.skip(f"a real cluster: it does not look like one with nodes in {', '.join(zones)}{others}")
    return real


def need(cluster: Cluster, count: int) -> None:
    """Skip the test where the primary cluster has fewer nodes."""
    if len(of_type(cluster, "primary")) < count:
        pytest.skip(f"a real cluster: it has less than {count} nodes")


def names(cluster: Cluster) -> dict[str, str]:
    """Address of a node → its name, by whichever of its addresses."""
    found = {}
    for name in cluster.nodes:
        node = cluster.node(name)
        found["{}:{}".format(*cluster.address_of(name))] = name
        for host in filter(None, (node.host, node.public_ip)):
            found.setdefault(f"{host}:{node.port}", name)
    return found


#: What a statement asks to learn which node it runs at; see `places`.
WHERE = "SELECT host(inet_server_addr()) || ':' || inet_server_port()"


def places(cluster: Cluster) -> dict[str, str]:
    """The answer to `WHERE` → the name of the node."""
    if isinstance(cluster, RealCluster):
        return cluster.places()
    return {f"{cluster.node(name).host}:{cluster.node(name).port}": name for name in cluster.nodes}


def place(cluster: Cluster, name: str) -> str:
    """The answer of one node to `WHERE`."""
    return f"{cluster.node(name).host}:{cluster.node(name).port}"


def of_type(cluster: Cluster, kind: str) -> set[str]:
    """Names of its nodes of the primary cluster (`primary`), or of those that hold read replicas (`read_replica`)."""
    return {name for name in cluster.nodes if cluster.node(name).node_type == kind}


def in_zone(cluster: Cluster, like: str) -> set[str]:
    """Names of all nodes in the zone of one of them."""
    return {name for name in cluster.nodes if cluster.node(name).zone == cluster.node(like).zone}


def keys(cluster: Cluster, *levels: str) -> str:
    """`topology_keys`: the zones of these nodes, one level after the other."""
    return ",".join(f"{cluster.node(name).zone}:{level}" for level, name in enumerate(levels, 1))


@dataclass(frozen=True, slots=True)
class Tablet:
    """A tablet of a table, as the cluster tells of it: its hash codes, who leads it, and who holds a copy."""

    start: int
    end: int
    leader: str
    copies: frozenset[str]


def tablets_of(cluster: Cluster, table: str) -> list[Tablet]:
    """Those of a table, in the order of their codes; where the cluster does not tell, the test is skipped."""
    if cluster.execute("SELECT to_regclass('yb_tablet_metadata')::text") == [(None,)]:
        pytest.skip("a real cluster: it has no yb_tablet_metadata")
    listed = cluster.listed() if isinstance(cluster, RealCluster) else places(cluster)
    rows = cluster.execute(
        "SELECT start_hash_code, end_hash_code, leader, array_to_string(replicas, ' ') FROM yb_tablet_metadata "
        f"WHERE oid = '{table}'::regclass AND db_name = current_database() ORDER BY start_hash_code"
    )
    if not rows:
        pytest.skip(f"a real cluster: it tells of no tablets of {table}")
    return [
        Tablet(int(start), int(end), listed.get(leader, ""), frozenset(listed[each] for each in copies.split()))
        for start, end, leader, copies in rows
    ]


def is_even(counts: Mapping[str, int], wanted: set[str]) -> bool:
    """Whether these nodes share something as evenly as it can be, and no others have any of it."""
    total = sum(counts.values())
    least = total // len(wanted)
    return counts.keys() == wanted and set(counts.values()) <= {least, least + bool(total % len(wanted))}


async def acquire(pool: Any, count: int) -> list[Any]:
    """So many connections, one after the other."""
    return [await pool.acquire() for _ in range(count)]


async def release(pool: Any, connections: list[Any]) -> None:
    """Give them back."""
    for connection in connections:
        await pool.release(connection)


def where(cluster: Cluster, connections: list[Any]) -> dict[str, int]:
    """How many of them lead to each node."""
    known = names(cluster)
    return dict(sorted(Counter(known[connection.node.address] for connection in connections).items()))


async def held(pool: Any, cluster: Cluster, count: int = 12) -> dict[str, int]:
    """Where so many connections lead that are held at the same time."""
    connections = await acquire(pool, count)
    try:
        return where(cluster, connections)
    finally:
        await release(pool, connections)


def connected(pool: Any, cluster: Cluster) -> set[str]:
    """The nodes that the pool has connections to."""
    known = names(cluster)
    return {known[node.address] for node in pool.stats().nodes.values() if node.idle + node.in_use}


def states(pool: Any, cluster: Cluster) -> dict[str, str]:
    """What the pool thinks of each node."""
    known = names(cluster)
    return {known[node.address]: node.state for node in pool.stats().nodes.values()}


async def in_thread(step: Callable[..., Any], *args: Any) -> Any:
    """A step that blocks."""
    return await asyncio.to_thread(step, *args)
