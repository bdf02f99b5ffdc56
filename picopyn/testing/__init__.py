"""Clusters, fault proxies and scripted servers on one machine, for this driver's tests and its users' tests.

| name | what it is |
|---|---|
| `PicodataCluster` | a Picodata-shaped cluster: several addresses, one process, real rows |
"""

from picopyn.testing.picodata.picodata_cluster import ClusterError, Counters, Instance, PicodataCluster
from picopyn.testing.picodata.shape import TierShape, UserShape

__all__ = ["ClusterError", "Counters", "Instance", "PicodataCluster", "TierShape", "UserShape"]
