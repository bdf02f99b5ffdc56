"""The facade for threads: a pool of connections that block, and single ones."""

from picopyn.sync.connection import Connection
from picopyn.sync.dialing import connect
from picopyn.sync.pool import Pool

__all__ = ["Connection", "Pool", "connect"]
