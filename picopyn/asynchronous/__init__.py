"""The asynchronous facade: [`Pool`][picopyn.asynchronous.Pool], for asyncio."""

from picopyn.asynchronous.pool import Pool

__all__ = ["Pool"]
