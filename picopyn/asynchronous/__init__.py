"""The asynchronous facade: [`Pool`][picopyn.asynchronous.Pool] and single connections, for asyncio."""

from picopyn.asynchronous.connecting import connect
from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.pool import Pool
from picopyn.asynchronous.warming import warm_up

__all__ = ["Connection", "Pool", "connect", "warm_up"]
