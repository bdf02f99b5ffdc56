"""The facade for threads: a pool of connections that block, and single ones."""

from picopyn.sync.connection import Connection
from picopyn.sync.dialing import connect
from picopyn.sync.pool import Pool
from picopyn.sync.warming import warm_up

__all__ = ["Connection", "Pool", "connect", "warm_up"]
