"""What COPY reads from and writes to, in the form in which asyncpg takes it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any


def sink(output: Any) -> Any:
    """What to give asyncpg for a path, a file, or a function that gets the bytes."""
    if isinstance(output, str | os.PathLike) or hasattr(output, "write") or not callable(output):
        return output
    return _called(output)


def source(given: Any) -> Any:
    """What to give asyncpg for a path, a file, bytes, or an iterable of bytes."""
    if isinstance(given, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(given, "read"):
        return given
    return _Chunks(given) if isinstance(given, Iterable) else given


def _called(output: Callable[[bytes], Any]) -> Callable[[bytes], Awaitable[None]]:
    async def write(chunk: bytes) -> None:
        output(chunk)

    return write


class _Chunks(AsyncIterable[bytes]):
    """Chunks that come from an ordinary iterable."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
