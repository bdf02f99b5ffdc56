"""The first connection for callers: what the opening of a pool waits for, and when it need not wait any longer.

Opening connections is tried again and again in the background, so most failures decide nothing before the time is up.
A failing hook of the user's own does: where every node has been tried, and the hook failed at those that could be
connected to, the next attempt will end in the same way. It knows no address to dial and no hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from picopyn.engine.node_pool import HookFailed, NodePool
from picopyn.engine.node_pools import NodePools
from picopyn.errors import NoNodeAvailable
from picopyn.routing.plan import Planner

#: How much longer than for any connection it is waited for one to a leader, or to each node among equals (seconds).
GRACE = 0.25
#: After this time the nodes that are not preferred are asked, too (seconds).
HOMES_GRACE = 0.5


async def first_connection(
    pools: NodePools,
    planner: Callable[[], Planner],
    asked_first: tuple[str, int] | None,
    deadlines: tuple[float, float],
    now: Callable[[], float],
) -> None:
    """Wait until one of the pools has a connection; the rest are made in the background.

    Where nodes lead, the first call should find one of them connected: else it would choose one to wait for, and that
    may be the one that hangs. Where calls are spread over equals, the first ones should find them all: a node without a
    connection comes last. Where some nodes are preferred, the others are asked when those are down, or hang.

    Args:
        pools: The node pools of a cluster that is being opened.
        planner: Gives what is known of its nodes now.
        asked_first: Host and port of the one node that need be asked as long as it does not fail; None: all are.
        deadlines: How long, on the runtime's clock (seconds); and how long, as calls do, where other nodes are
            forbidden and each that is allowed has failed.
        now: That clock.

    Raises:
        NoNodeAvailable: There was none in time; it lists each node with its reason.
        Exception: What the hook raised: no node is left where it did not fail, or there was no other in time.
    """
    tried: set[NodePool] = set()
    broken: BaseException | None = None
    hurry_at = now() + HOMES_GRACE
    while not any(pool.slots.size for pool in pools.live):
        version = pools.attempts.version
        tried = {pool for pool in pools.live if pool.failure and (pool in tried or not pool.slots.opening)}
        deadline = deadlines[_is_hopeless(pools.live, planner(), tried)]
        broken = broken or _hook_error(pools.live)
        homes = {node.uuid for node in planner().homes()}
        others = {node.uuid for node in planner().allowed()} - homes if now() >= hurry_at else set()
        for pool in pools.live:  # without a min_size nothing is being opened yet
            first = asked_first in (None, (pool.node.host, pool.node.port)) or bool(tried)
            if pool not in tried and ((pool.node.uuid in homes and first) or pool.node.uuid in others):
                pool.warm(1)
        if broken is not None and tried.issuperset(pools.live):
            raise broken
        try:
            await pools.attempts.wait(min(deadline, hurry_at) if now() < hurry_at else deadline, version)
        except TimeoutError:
            if now() >= deadline:
                break
    else:
        await _companions(pools, min(deadlines[0], now() + GRACE), planner)
        return
    raise broken or _nobody(pools.live, planner())


def _is_hopeless(pools: Iterable[NodePool], planner: Planner, tried: set[NodePool]) -> bool:
    """Whether nodes are forbidden, and each of the others has failed."""
    allowed = {node.uuid for node in planner.allowed()}
    return bool(planner.mode) and all(pool in tried for pool in pools if pool.node.uuid in allowed)


def refuse_unknown(why: str, mode: str) -> None:
    """Refuse to go on where nobody can tell which nodes a mode allows.

    Args:
        why: Why there is no list of servers; empty where there is, or may be, one.
        mode: The settings that forbid some nodes.

    Raises:
        NoNodeAvailable: It is so.
    """
    if why:
        raise NoNodeAvailable(f"{why}: no node is known to be one that {mode} allows", mode=mode)


async def _companions(pools: NodePools, deadline: float, planner: Callable[[], Planner]) -> None:
    """Wait a little longer, for what the first calls should find, while it is on its way."""
    version = pools.attempts.version
    while _are_missing(pools.live, planner()):
        try:
            await pools.attempts.wait(deadline, version)
        except TimeoutError:
            return
        version = pools.attempts.version


def _are_missing(pools: Iterable[NodePool], planner: Planner) -> bool:
    """Whether some node is being connected to that the first calls should find: a leader, or each among equals."""
    if planner.spreads():
        homes = {node.uuid for node in planner.homes()}
        return any(pool.slots.opening and not pool.slots.size for pool in pools if pool.node.uuid in homes)
    leaders = {node.uuid for node in planner.snapshot.nodes(role="leader")}
    leading = [pool.slots for pool in pools if pool.node.uuid in leaders]
    return any(slots.opening for slots in leading) and not any(slots.size for slots in leading)


def _hook_error(pools: Iterable[NodePool]) -> BaseException | None:
    """What the hook raised at the last attempt of some node, if that is how it ended."""
    return next((pool.cause for pool in pools if isinstance(pool.failure, HookFailed)), None)


def _nobody(pools: Iterable[NodePool], planner: Planner) -> NoNodeAvailable:
    allowed = {node.uuid for node in planner.allowed()}
    reasons = {
        pool.node.address: (pool.trouble or "no answer yet") if pool.node.uuid in allowed else "is not allowed"
        for pool in pools
    }
    what = "no node of the cluster can be connected to" if reasons else "the topology lists no usable node"
    return NoNodeAvailable(f"{what} that {planner.mode} allows" if planner.mode else what, reasons, planner.mode)
