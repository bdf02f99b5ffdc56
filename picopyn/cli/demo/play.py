"""The whole play: cluster, topology, three acts, verification, summary."""

from __future__ import annotations

import asyncio
import time

from picopyn import __version__
from picopyn.asynchronous import Pool
from picopyn.cli.demo import act_kill, act_load, act_move, act_switch, verification
from picopyn.cli.demo.pictures import promises_picture, topology_picture
from picopyn.cli.demo.promises import Promise, exit_code
from picopyn.cli.demo.screen import Screen
from picopyn.cli.demo.stage import TIER, Pace, Stage
from picopyn.cli.demo.tables import TABLES
from picopyn.cli.demo.threaded import ThreadedPool
from picopyn.testing import PicodataCluster

_ROWS_PER_CALLER = 100


def play(pace: Pace, screen: Screen | None = None, *, threads: bool = False) -> int:
    """Play it.

    Args:
        pace: How long things take.
        screen: Where it is shown; None: standard output.
        threads: Whether the callers are threads, and the pool is `picopyn.sync.Pool`.

    Returns:
        0 when every promise was kept, else 1.

    Raises:
        ClusterError: The cluster did not start.
    """
    screen = screen or Screen()
    began = time.monotonic()
    screen.title(f"picopyn {__version__}: a sharded cluster on this machine, and what the driver does with it")
    cluster = PicodataCluster(replicasets=2, replication=2, auto_offline_timeout=pace.auto_offline_timeout)
    try:
        with screen.busy("starting two replicasets of two instances"):
            cluster.start()
        promises, contrast = asyncio.run(_acts(cluster, screen, pace, began, ThreadedPool if threads else Pool))
    finally:
        with screen.busy("stopping everything"):
            cluster.shutdown()
    conclude(screen, promises, contrast, time.monotonic() - began)
    return exit_code(promises)


async def _acts(
    cluster: PicodataCluster, screen: Screen, pace: Pace, began: float, pool_class: type[Pool] | type[ThreadedPool]
) -> tuple[list[Promise], str]:
    for table in TABLES:
        cluster.execute(table.create)
    pool = pool_class(
        cluster.dsn,
        topology_update_interval=pace.topology_update_interval,
        acquire_timeout=pace.auto_offline_timeout + pace.give_up,
        command_timeout=pace.auto_offline_timeout + pace.give_up,
    )
    async with pool:
        await pool.wait_ready()
        stage = Stage(cluster, pool, screen, pace, cluster.instances, cluster.leaders())
        _opening(stage, time.monotonic() - began)
        callers = stage.mixed_callers([stage.numbers(_ROWS_PER_CALLER) for _ in range(pace.callers)])
        promises = await act_load.play(stage, callers)
        promises += await act_move.play(stage, callers)
        promises += await act_switch.play(stage, callers)
        kept, contrast = await act_kill.play(stage)
    audit = stage.ledger.audit(await asyncio.to_thread(lambda: list(verification.stored(cluster))))
    return [*promises, *kept, verification.promise(audit)], contrast


def _opening(stage: Stage, seconds: float) -> None:
    """Say what there is, and draw the topology as the driver knows it."""
    module = "sync, with a thread for each caller" if isinstance(stage.pool, ThreadedPool) else "asynchronous"
    stage.screen.say(
        f"[green]ready[/] after {seconds:.1f} s. This is [bold]picopyn.testing.PicodataCluster[/]: it does what "
        "a real Picodata 26.1 was recorded to do. What the driver found out about it, from one connection string "
        f"(the pool is that of picopyn.{module}):"
    )
    stage.screen.show(topology_picture(stage.instances, stage.leaders, _owned(stage)))


def _owned(stage: Stage) -> dict[str, str]:
    """Replicaset → the ranges of buckets it owns, as the driver knows them."""
    topology = stage.pool.topology
    shards = topology.shard_map(TIER)
    names = {replicaset.uuid: replicaset.name for replicaset in topology.replicasets(TIER)}
    owned: dict[str, str] = {}
    for found in shards.ranges() if shards is not None else ():
        name = names.get(found.replicaset_uuid, "")
        owned[name] = ", ".join(filter(None, [owned.get(name), f"{found.first}–{found.last}"]))
    return owned


def conclude(screen: Screen, promises: list[Promise], contrast: str, seconds: float) -> None:
    """Say how every promise turned out.

    Args:
        screen: Where.
        promises: All of them.
        contrast: What it was all about, in a sentence.
        seconds: How long it took.
    """
    broken = sum(not promise.kept for promise in promises)
    screen.act("What was promised", "")
    screen.show(promises_picture(promises))
    screen.say(f"\n{contrast}")
    verdict = f"[bold green]All {len(promises)} promises were kept.[/]"
    if exit_code(promises):
        verdict = f"[bold red]{broken} of {len(promises)} promises were broken.[/]"
    screen.say(f"{verdict} It took {seconds:.1f} s. Everything is stopped, nothing is left behind.")
