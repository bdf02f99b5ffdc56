"""The facade for threads: [`connect`][picopyn.sync.connect] opens a connection that blocks."""

from picopyn.sync.connection import Connection
from picopyn.sync.dialing import connect

__all__ = ["Connection", "connect"]
