"""What COPY reads from and writes to, in the form in which asyncpg takes it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Sink:
    """Gets the bytes of a COPY. After a failure of its own it takes the rest, but keeps nothing.

    asyncpg 0.32 waits for ever after a sink that fails when the server has answered everything already.

    Args:
        write: Where the bytes go.
        give_up: Called once when that has failed.

    Attributes:
        failure: What went wrong, or None.
    """

    def __init__(self, write: Callable[[bytes], Any], give_up: Callable[[], None]) -> None:
        self._write = write
        self._give_up = give_up
        self.failure: Exception | None = None

    async def __call__(self, chunk: bytes) -> None:
        """Take some of the bytes."""
        if self.failure is not None:
            return
        try:
            self._write(chunk)
        except Exception as error:
            self.failure = error
            self._give_up()


@contextmanager
def writing(output: Any) -> Iterator[Callable[[bytes], Any]]:
    """What writes to a path, to a file, or is a function that gets the bytes.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(output, str | os.PathLike):
        with Path(output).open("wb") as file:
            yield file.write
    elif hasattr(output, "write"):
        yield output.write
    elif callable(output):
        yield output
    else:
        raise TypeError(f"output is a path, a file or a function that gets bytes, not {type(output).__name__}")


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
