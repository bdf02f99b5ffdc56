"""The control plane of a pool: the tracker with its source, the metadata service, the leader finder, put together.

It carries news from the tracker to the engine and requests from the engine to the tracker. It decides nothing about calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from picopyn.asynchronous.leader_finder import LeaderFinder
from picopyn.asynchronous.metadata_service import QueryMetadataService
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.topology_tracker import PollingTopologySource, TopologySource, TopologyTracker
from picopyn.dialects.base import Dialect
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.settings import PoolSettings
from picopyn.stats import MetadataStats, TopologyStats
from picopyn.topology import Topology, TopologySnapshot
from picopyn.topology.diff import difference

_LOG = logging.getLogger("picopyn.asynchronous.control_plane")
