"""COPY, as asyncpg does it, with two ends that it leaves open.

A sink that fails makes asyncpg cancel the COPY, and the next call waits until the server confirms that: for ever, when
the answer had fully arrived before. And while it waits for permission to write, it looks at no timeout. Here a failed
sink costs the connection, and a time limit covers all of a COPY.

It leans on asyncpg's internals (`_copy_out`, `_copy_in`, what the protocol cancels), guarded by
`tests/postgres/test_copying.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asyncpg.protocol import NO_TIMEOUT

from picopyn.asynchronous.lendable import LendableConnection


class CopyingConnection(LendableConnection):
    """asyncpg's connection, whose COPY always ends."""

    __slots__ = ()

    async def copy_records_to_table(self, table_name: str, *, timeout: float | None = None, **options: Any) -> Any:
        """See asyncpg."""
        async with asyncio.timeout(self._limit_of(timeout)):
            return await super().copy_records_to_table(table_name, timeout=timeout, **options)

    async def _copy_in(self, copy_stmt: str, source: Any, timeout: float | None) -> Any:
        async with asyncio.timeout(self._limit_of(timeout)):
            return await super()._copy_in(copy_stmt, source, timeout)

    async def _copy_out(self, copy_stmt: str, output: Any, timeout: float | None) -> Any:
        try:
            return await super()._copy_out(copy_stmt, output, timeout)
        except BaseException:
            if self._protocol is not None and self._protocol._is_cancelling():
                self.terminate()
            raise

    def _limit_of(self, timeout: float | None) -> float | None:
        """Seconds that a call may take, by its own limit or the connection's."""
        if self._protocol is None or timeout is NO_TIMEOUT:
            return None
        limit: float | None = self._protocol._get_timeout(timeout)
        return limit
