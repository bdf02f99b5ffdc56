"""What COPY reads from and writes to, in the form in which asyncpg takes it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from picopyn.engine.failures import mark_as_callers


class Sink:
    """Gets the bytes of a COPY. After a failure of its own it takes the rest, but keeps nothing.

    asyncpg 0.32 waits for ever after a sink that fails when the server has answered everything already.

    Args:
        output: A path, a file, or a function that gets the bytes.
        give_up: Called once when writing has failed.

    Attributes:
        failure: What went wrong, or None.

    Raises:
        TypeError: The output is none of these, or a coroutine function: nobody would await it.
        OSError: The file cannot be opened.
    """

    def __init__(self, output: Any, give_up: Callable[[], None]) -> None:
        path = isinstance(output, str | os.PathLike)
        self._file = Path(output).open("wb") if path else None  # noqa: SIM115 - closed by `close`
        self._write: Callable[[bytes], Any] = getattr(output if self._file is None else self._file, "write", output)
        self._give_up = give_up
        self.failure: Exception | None = None
        if not callable(self._write) or iscoroutinefunction(self._write):
            raise TypeError(f"output is a path, a file or a function that gets bytes, not {type(output).__name__}")

    async def __call__(self, chunk: bytes) -> None:
        """Take some of the bytes."""
        if self.failure is not None:
            return
        try:
            self._write(chunk)
        except Exception as error:
            self._note(error)
            self._give_up()

    def close(self) -> None:
        """Close the file that was opened here; its last bytes may fail as late as that."""
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        if self.failure is None:
            mark_as_callers(error)
            self.failure = error


def source(given: Any) -> Any:
    """What to give asyncpg for a path, a file, a buffer, or an iterable of bytes; `bytes` are a path, as in `open`."""
    if isinstance(given, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(given, "read"):
        return given
    return _Chunks(given) if isinstance(given, Iterable) else given


class _Chunks(AsyncIterable[bytes]):
    """Chunks that come from an ordinary iterable."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
