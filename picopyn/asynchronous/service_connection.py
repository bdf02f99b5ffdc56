"""What the control plane expects of its own connections, and how it lets go of them.

The tracker, the metadata service and the leader finder each use connections nobody borrows. This file
says which part of asyncpg's surface they need, which errors mean that such a connection is gone, and how
to close one in bounded time. It knows no SQL, no dialect and no pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import asyncpg

#: Seconds a polite goodbye may take before the socket is simply dropped.
GOODBYE_SECONDS = 1.0

#: SQLSTATE classes and codes after which a connection is of no further use: connection exceptions, and
#: the server saying that it is shutting down or has been told to end this session.
#:
#: *Source:* PostgreSQL documentation, Appendix A "PostgreSQL Error Codes", classes 08 and 57.
_FATAL_STATES = ("08", "57P01", "57P02", "57P03", "57P05")


#: What a request on a connection can raise; anything else is a mistake in a program.
REQUEST_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
)


class PreparedQuestion(Protocol):
    """A prepared statement, as far as the metadata service uses it."""

    def get_parameters(self) -> Sequence[Any]:
        """The parameters, each with an attribute `oid`."""
        ...

    async def fetch(self, *args: Any, timeout: float | None = None) -> Sequence[Sequence[Any]]:
        """All rows of one execution."""
        ...


class ServiceConnection(Protocol):
    """A connection of the control plane: the part of asyncpg's surface that is used."""

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Sequence[Any]:
        """All rows of one statement, each readable by column name."""
        ...

    async def prepare(self, query: str, *, name: str | None = None, timeout: float | None = None) -> PreparedQuestion:
        """Prepare a statement; `name=""` leaves nothing behind in the server's store."""
        ...

    def is_closed(self) -> bool:
        """Whether the connection is known to be gone."""
        ...

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        """Call back, with the connection, once it is gone."""
        ...

    async def close(self, *, timeout: float | None = None) -> None:
        """Say goodbye and close."""
        ...

    def terminate(self) -> None:
        """Drop the socket at once."""
        ...


def costs_the_connection(error: BaseException, connection: ServiceConnection | None = None) -> bool:
    """Whether a connection must be dropped after this error.

    An error the server reported for the statement leaves the connection usable, and so does an argument
    that could not be encoded; everything else (a deadline included, for the answer may still arrive)
    leaves it in an unknown state.

    Args:
        error: What a request on the connection raised.
        connection: The connection, if it can be asked whether it is closed.
    """
    if connection is not None and connection.is_closed():
        return True
    if isinstance(error, asyncpg.PostgresError):
        return str(getattr(error, "sqlstate", None) or "").startswith(_FATAL_STATES)
    # An argument that does not fit its type: raised before anything is sent, as an InterfaceError that is a ValueError.
    return not (isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError))


def was_cancelled() -> bool:
    """Whether somebody cancelled the current task; a CancelledError without that is an accident of what was awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@contextlib.contextmanager
def stray_cancellations_are_errors() -> Iterator[None]:
    """Turn a CancelledError that nobody asked for into a ConnectionError.

    A connection whose earlier request was cancelled may hand that cancellation to a later one; left alone it would end
    our task as if its owner had wanted that, and whoever waits for the task would wait for ever.
    """
    try:
        yield
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        raise ConnectionError("the request was cancelled inside the driver") from None


def is_access_denied(error: BaseException) -> bool:
    """Whether the server refused for want of a privilege, which an administrator may grant at any time.

    *Source:* Picodata 26.1.6, recorded: `XX000 box error: AccessDenied: Read access to space '…' is
    denied for user`; PostgreSQL: SQLSTATE 42501.
    """
    return getattr(error, "sqlstate", None) == "42501" or "AccessDenied" in str(error)


async def say_goodbye(connection: ServiceConnection, seconds: float = GOODBYE_SECONDS) -> None:
    """Close a connection politely if its server answers in time, else drop it.

    Args:
        connection: The connection; closed in any case when this returns or is cancelled.
        seconds: How long the goodbye may take.
    """
    try:
        async with asyncio.timeout(seconds):
            await connection.close(timeout=seconds)
    except Exception:  # the peer's state is its own affair: we only want to be rid of the socket
        drop(connection)
    except BaseException:
        drop(connection)
        raise


def drop(connection: ServiceConnection | None) -> None:
    """Drop a connection at once; nothing happens when there is none, and nothing is raised."""
    if connection is not None:
        with contextlib.suppress(Exception, asyncio.CancelledError):  # nobody is cancelled here: it does not wait
            connection.terminate()


def cause(error: BaseException) -> str:
    """An error for a log line: its class, and its SQLSTATE if it has one; never its text, which may hold values."""
    state = getattr(error, "sqlstate", None)
    return f"{type(error).__name__} {state}" if state else type(error).__name__
