"""Clusters, fault proxies and scripted servers on one machine, for this driver's tests and its users' tests.

| name | what it is |
|---|---|
| `PicodataCluster` | a Picodata-shaped cluster: several addresses, one process, real rows |
| `PostgresServer` | one real PostgreSQL server |
| `PostgresCluster` | a real PostgreSQL primary and its streaming replicas |
| `YugabyteCluster` | the nodes of a YugabyteDB, with zones, over one real PostgreSQL |
| `FaultProxy`, `BlackHole` | a proxy that fails on request; an address where connecting never completes |
| `TlsFront` | lets a `FaultProxy` end TLS, and records how clients began |
| `ScriptedServer` | a server that plays what a test wrote down |
| `ManualClock`, `AutoJumpLoop` | time that moves when told to, or jumps to the next timer |
"""

from picopyn.testing.clock import AutoJumpLoop, ManualClock, run_jumping
from picopyn.testing.fault_proxy import BlackHole, FaultProxy, black_hole
from picopyn.testing.picodata.picodata_cluster import ClusterError, Counters, Instance, PicodataCluster
from picopyn.testing.picodata.shape import TierShape, UserShape
from picopyn.testing.postgres import PostgresServer
from picopyn.testing.postgres_binaries import PostgresFailed, PostgresNotFound
from picopyn.testing.postgres_cluster import PostgresCluster
from picopyn.testing.scripted_server import ScriptedServer
from picopyn.testing.tls_front import TlsFront, tls_only
from picopyn.testing.yugabyte.yugabyte_cluster import YugabyteCluster, YugabyteNode

__all__ = [
    "AutoJumpLoop",
    "BlackHole",
    "ClusterError",
    "Counters",
    "FaultProxy",
    "Instance",
    "ManualClock",
    "PicodataCluster",
    "PostgresCluster",
    "PostgresFailed",
    "PostgresNotFound",
    "PostgresServer",
    "ScriptedServer",
    "TierShape",
    "TlsFront",
    "UserShape",
    "YugabyteCluster",
    "YugabyteNode",
    "black_hole",
    "run_jumping",
    "tls_only",
]
