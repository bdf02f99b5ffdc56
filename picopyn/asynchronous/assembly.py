"""Putting an open pool together: from settings to a household in which calls can run.

It decides the order in which the parts are made, and when a pool counts as open. It refers to no pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random

from picopyn.asynchronous import tls
from picopyn.asynchronous.config_files import PasswordFile
from picopyn.asynchronous.control_plane import ControlPlane
from picopyn.asynchronous.dialect_detection import introduce
from picopyn.asynchronous.household import Household
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.runtime import AsyncioRuntime
from picopyn.asynchronous.sessions import Sessions, refuse_unsupported
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Capability, Dialect
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.journal import Journal
from picopyn.engine.route_table import RouteTable
from picopyn.engine.runtime import Runtime
from picopyn.engine.tallies import Tallies
from picopyn.observe import Publisher
from picopyn.settings import PoolSettings
from picopyn.stats import Counters

#: Makes the world that calls run in, from the sessions of the event loop's own world and what opens its connections.
MakeRuntime = Callable[[Sessions, Dialer, Dialect], Runtime]


def on_this_loop(sessions: Sessions, dialer: Dialer, dialect: Dialect) -> Runtime:
    """Calls run on the event loop on which the pool is assembled."""
    return AsyncioRuntime(sessions.open, sessions.restore)


async def assemble(
    settings: PoolSettings,
    security: tls.Security,
    rng: Random,
    keep: Callable[[Household], None],
    make_runtime: MakeRuntime = on_this_loop,
) -> None:
    """Make the parts of a pool, look at the cluster, and wait until one node can be used.

    Args:
        settings: What is wanted.
        security: What is done about TLS.
        rng: Source of randomness.
        keep: Is given the household as soon as there is something to close; it fills up.
        make_runtime: Makes the world that calls run in.

    Raises:
        AuthenticationFailed: A host refused the credentials; no other one was asked.
        NoNodeAvailable: No host answered, or none can be connected to.
        NotSupported: The server is of a kind, or lacks something, that is not supported.
    """
    passwords = PasswordFile(settings.passfile)
    make_dialer = functools.partial(Dialer, settings, passwords=passwords, security=security)
    first = await introduce(settings, make_dialer, rng)
    dialer, dialect = first.dialer, first.dialect
    seeds = [(endpoint.host, endpoint.port or 0) for endpoint in first.endpoints]
    reach = Reach(dialer, dialect, seeds, settings.connect_timeout, lambda: control.marked, rng, first.connection)
    household = Household(dialer=dialer, dialect=dialect, reach=reach)
    keep(household)
    if first.connection is not None:
        dialer.adopt(first.connection)
    refuse_unsupported(settings, dialect)
    household.sessions = sessions = Sessions(settings, dialer, reach, dialect)
    runtime = make_runtime(sessions, dialer, dialect)
    household.journal = journal = Journal(Counters(), Publisher(settings.on_event), runtime.now)
    household.control = control = ControlPlane(settings, dialect, reach, journal.publisher, runtime.now, rng)
    household.cluster = cluster = Cluster(
        runtime, dialect, settings, control.snapshot, journal, control.look_again, rng, control.hosts, control.leaders
    )
    tallies = Tallies(runtime.lock(), settings.query_metadata_cache_size)
    counts = journal.counters.calls
    routes = RouteTable(control.metadata, dialect.key_hash, lambda: control.bucket_counts, tallies, counts)
    household.executor = executor = Executor(cluster, routes, control.metadata, dialect, journal)
    await control.start(cluster, executor)
    asked_first = None if first.connection is None else first.connection.endpoint
    await cluster.first_connection(asked_first, runtime.now() + settings.connect_timeout)
    if Capability.LISTED_SERVERS in dialect.capabilities:
        household.lay_down()  # it may lead where no connection is wanted
