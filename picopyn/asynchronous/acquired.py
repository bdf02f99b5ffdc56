"""A connection on loan: asyncpg's surface until it is given back, a clear refusal afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import asyncpg

from picopyn.asynchronous.connection import Connection
from picopyn.errors import UsageError
from picopyn.topology import Node

_BLOCKING = ("copy_", "fetch", "execute", "prepare", "reset", "set_")


class AcquiredConnection:
    """A connection that belongs to one borrower until it is released.

    It has every method of [`Connection`][picopyn.asynchronous.connection.Connection]; what asyncpg's documentation says
    about them holds. After `release` each of them raises `UsageError`.

    Attributes:
        node: The node it leads to.
    """

    __slots__ = ("_connection", "_give_back", "_sound", "node")

    def __init__(self, connection: Any, node: Node, give_back: Callable[[Any, bool], None]) -> None:
        self._connection: Any = connection
        self._give_back = give_back
        self._sound = True
        self.node = node

    def __repr__(self) -> str:
        state = "released" if self._connection is None else "held"
        return f"<AcquiredConnection to {self.node.name} ({self.node.address}), {state}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute: Any = getattr(self._held(), name)
        return self._watched(attribute) if name.startswith(_BLOCKING) else attribute

    def is_closed(self) -> bool:
        """Whether the connection is closed, or was given back."""
        return self._connection is None or bool(self._connection.is_closed())

    def is_released(self) -> bool:
        """Whether it was given back."""
        return self._connection is None

    def release(self) -> None:
        """Give the connection back.

        Raises:
            UsageError: It was given back before.
        """
        connection, self._connection = self._held(), None
        self._give_back(connection, self._sound)

    def _held(self) -> Connection:
        if self._connection is None:
            raise UsageError("this connection was given back to its pool; acquire another one")
        return self._connection  # type: ignore[no-any-return]

    def _watched(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A call that leaves the connection in an unknown state marks it, so that it is dropped at release."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **kwargs)
            except (asyncpg.PostgresError, asyncpg.InterfaceError):
                raise
            except BaseException:
                self._sound = False
                raise

        return call


class Acquiring:
    """The result of `Pool.acquire`: await it, or use it with `async with`.

    Args:
        acquire: Takes the connection.
    """

    __slots__ = ("_acquire", "_acquired")

    def __init__(self, acquire: Callable[[], Awaitable[AcquiredConnection]]) -> None:
        self._acquire = acquire
        self._acquired: AcquiredConnection | None = None

    def __await__(self) -> Generator[Any, None, AcquiredConnection]:
        return self._acquire().__await__()

    async def __aenter__(self) -> AcquiredConnection:
        if self._acquired is not None:
            raise UsageError("this acquire() is already in use; call it again for a second connection")
        self._acquired = await self._acquire()
        return self._acquired

    async def __aexit__(self, *_: object) -> None:
        acquired, self._acquired = self._acquired, None
        if acquired is not None and not acquired.is_released():
            acquired.release()
