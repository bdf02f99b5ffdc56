"""COPY, as asyncpg does it, with what it leaves open.

A sink that fails makes asyncpg cancel the COPY, and the next call waits until the server confirms that: for ever, when
the answer had fully arrived before. While it waits for permission to write, it looks at no timeout. And where the
connection ends while a sink takes its bytes, asyncpg stumbles over the missing transport. Here a failed sink costs the
connection, a time limit covers all of a COPY, and a connection that is lost is told as that.

asyncpg asks for a table's columns before it copies records; their number is what each row must have.

It leans on asyncpg's internals (`_copy_out`, `_copy_in`, `_prepare`, what the protocol cancels), guarded by
`tests/postgres/test_copying.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from picopyn.asynchronous.brought_rows import AwaitedCopyRows, CopiedRows
from picopyn.asynchronous.lendable import LendableConnection
from picopyn.engine.failures import mark_as_callers
from picopyn.errors import UsageError


class CopyingConnection(LendableConnection):
    """asyncpg's connection, whose COPY always ends."""

    __slots__ = ("_copied",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._copied: CopiedRows | AwaitedCopyRows | None = None

    async def copy_records_to_table(
        self, table_name: str, *, records: Any, timeout: float | None = None, **options: Any
    ) -> Any:
        """See asyncpg; a row with more or fewer values than there are columns is refused, and the COPY with it."""
        copy = super().copy_records_to_table
        if isinstance(records, CopiedRows):
            return await self._copy_rows(copy, records, timeout, table_name, **options)
        if isinstance(records, AsyncIterable):
            return await self._copy_rows(copy, AwaitedCopyRows(records), timeout, table_name, **options)
        with CopiedRows(records) as rows:
            return await self._copy_rows(copy, rows, timeout, table_name, **options)

    async def _copy_rows(
        self, copy: Any, rows: CopiedRows | AwaitedCopyRows, timeout: float | None, table_name: str, **options: Any
    ) -> Any:
        self._copied = rows
        try:
            return await self._all_within(timeout, copy, table_name, records=rows, **options)
        except UsageError:
            if rows.shape is not None:  # the table may have changed since it was asked for: the next COPY asks again
                rows.shape.mark_closed()
                self._maybe_gc_stmt(rows.shape)
            raise
        finally:
            self._copied = None

    async def _prepare(self, query: str, **options: Any) -> Any:
        copied, self._copied = self._copied, None
        statement: Any = await super()._prepare(query, **options)
        if copied is not None:  # asyncpg asks for the columns of the table
            copied.width = len(statement.get_attributes())
            copied.shape = statement._state
        return statement

    async def _copy_in(self, copy_stmt: str, source: Any, timeout: float | None) -> Any:
        async with asyncio.timeout(self._limit_of(timeout)):
            return await super()._copy_in(copy_stmt, source, timeout)

    async def _copy_out(self, copy_stmt: str, output: Any, timeout: float | None) -> Any:
        path = isinstance(output, str | bytes | os.PathLike)
        target: Any = await self._loop.run_in_executor(None, open, output, "wb") if path else output
        sink = _Sink(target)
        try:
            status = await super()._copy_out(copy_stmt, sink, timeout)
            if path:
                await sink.do(target.close)
            return status
        except BaseException as error:
            if self._protocol is not None and self._protocol._is_cancelling():
                self.terminate()
            if sink.failure is not None:
                raise sink.failure from (None if error is sink.failure else error)
            told = self.explained(error) if isinstance(error, Exception) else error
            if told is error:
                raise
            raise told from error
        finally:
            if path:
                with suppress(OSError):  # another error is told already
                    target.close()


class _Sink:
    """Takes the bytes of a COPY; what it raises is the caller's own, whatever type it has.

    Args:
        output: A file, or a coroutine function.

    Raises:
        TypeError: It is neither.
    """

    def __init__(self, output: Any) -> None:
        self._write = getattr(output, "write", None)
        self._output = output
        self.failure: BaseException | None = None
        if self._write is None and not callable(output):
            raise TypeError(f"output is a path, a file or a coroutine function, not {type(output).__name__}")

    async def __call__(self, data: bytes) -> None:
        """Take some of the bytes."""
        if self._write is not None:
            await self.do(self._write, data)
        else:
            with self._noting():
                await self._output(data)

    async def do(self, call: Callable[..., Any], *args: Any) -> None:
        """Do something with the file, in a thread; what was written may fail as late as when it is closed."""
        with self._noting():
            await asyncio.get_running_loop().run_in_executor(None, call, *args)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            mark_as_callers(error)
            self.failure = error
            raise
