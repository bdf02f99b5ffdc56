"""A connection without a server: answers texts from a script, raises, or hangs until it is told to go on.

For tests of code that is handed a connection. It has the part of `asyncpg.Connection` that the control
plane uses, with asyncpg's errors where a connection is closed or busy; a test compares its signatures
with asyncpg's. It knows no SQL.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import asyncpg


class Hang:
    """An answer that does not come until `release` is called; then it is an empty result, or the given one.

    Args:
        then: What is answered after the release.
    """

    def __init__(self, then: Answer = ()) -> None:
        self.then = then
        self.entered = asyncio.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let the answer come, to everybody who waits for it now or later."""
        self._released.set()

    async def wait(self) -> None:
        """Return when it is released."""
        self.entered.set()
        await self._released.wait()


#: What a text is answered with: rows, an error to raise, a `Hang`, or a function of the arguments that
#: gives one.
Answer = Sequence[Any] | BaseException | Hang | Callable[..., Any]


class Row(Sequence[Any]):
    """One row, readable by position and by column name like an asyncpg record.

    Args:
        columns: Names, in order.
        values: Values, in the same order.
    """

    def __init__(self, columns: Sequence[str], values: Sequence[Any]) -> None:
        self._columns = tuple(columns)
        self._values = tuple(values)

    def __getitem__(self, key: Any) -> Any:
        return self._values[self._columns.index(key) if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Row {dict(zip(self._columns, self._values, strict=True))}>"

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a column, or a default when there is no such column."""
        return self[key] if key in self._columns else default

    def keys(self) -> Iterator[str]:
        """The column names."""
        return iter(self._columns)

    def values(self) -> Iterator[Any]:
        """The values."""
        return iter(self._values)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Pairs of name and value."""
        return iter(zip(self._columns, self._values, strict=True))


def table(columns: str, *rows: Sequence[Any]) -> list[Row]:
    """Rows with the given column names.

    Args:
        columns: Names separated by blanks.
        rows: Values of each row.
    """
    return [Row(columns.split(), values) for values in rows]


@dataclass(frozen=True)
class Asked:
    """One request that reached a connection.

    Attributes:
        verb: `"fetch"`, `"prepare"` or `"bind"` (one execution of a prepared statement).
        text: The statement.
        args: Its arguments.
        name: For `prepare`, the statement's name as given.
    """

    verb: str
    text: str
    args: tuple[Any, ...] = ()
    name: str | None = None


class ScriptedConnection:
    """A connection that plays a script.

    Args:
        on_notice: Called with the text of each notice, synchronously and before the request that caused
            it completes.

    Attributes:
        asked: Every request, in order.
        closed_politely: Whether it was closed by `close`, not `terminate`.
    """

    def __init__(self, on_notice: Callable[[str], None] | None = None) -> None:
        self.asked: list[Asked] = []
        self.closed_politely = False
        self._on_notice = on_notice
        self._script: dict[tuple[str, str], list[Answer]] = {}
        self._parameters: dict[str, tuple[int, ...]] = {}
        self._notices: dict[str, list[str]] = {}
        self._fallback: Answer | None = None
        self._closed = False
        self._listeners: list[Callable[[Any], None]] = []
        self._hanging: asyncio.Task[Any] | None = None
        self._busy = False

    # The script

    def when(self, text: str, *answers: Answer) -> ScriptedConnection:
        """Answer a fetched text, or the execution of a prepared one; the last answer repeats."""
        self._script["fetch", text] = list(answers)
        return self

    def when_prepared(
        self,
        text: str,
        parameters: Sequence[int] = (),
        *,
        notice: str | Sequence[str] = (),
        answers: Sequence[Answer] = (),
    ) -> ScriptedConnection:
        """Accept a text in `prepare`.

        Args:
            text: The statement.
            parameters: Type OIDs of its parameters.
            notice: Text of the notice, or of several, that preparing it causes.
            answers: What preparing leads to instead of success: errors, or a `Hang`; an empty result is
                success.
        """
        self._parameters[text] = tuple(parameters)
        self._notices[text] = [notice] if isinstance(notice, str) else list(notice)
        self._script["prepare", text] = list(answers) or [()]
        return self

    def otherwise(self, answer: Answer) -> ScriptedConnection:
        """Answer every text the script does not name; without it such a text is a syntax error."""
        self._fallback = answer
        return self

    def speak(self, *notices: str) -> None:
        """Send notices without being asked."""
        for notice in notices:
            if self._on_notice is not None:
                self._on_notice(notice)

    def texts(self, verb: str | None = None) -> list[str]:
        """The texts that were asked, all of them or those of one verb."""
        return [each.text for each in self.asked if verb is None or each.verb == verb]

    # asyncpg's surface

    async def fetch(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> list[Any]:
        """All rows of the scripted answer."""
        self.asked.append(Asked("fetch", query, args))
        return list(await self._answer(("fetch", query), args, timeout))

    async def prepare(
        self, query: str, *, name: str | None = None, timeout: float | None = None, record_class: Any = None
    ) -> ScriptedStatement:
        """A statement whose executions are answered by the script; its notices are spoken before this returns."""
        self.asked.append(Asked("prepare", query, name=name))
        await self._answer(("prepare", query), (), timeout)
        self.speak(*self._notices.get(query, ()))
        return ScriptedStatement(self, query, self._parameters.get(query, ()))

    def is_closed(self) -> bool:
        """Whether it was closed or terminated."""
        return self._closed

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        """Call back, with the connection, once it is gone; soon, as asyncpg does."""
        self._listeners.append(callback)

    async def close(self, *, timeout: float | None = None) -> None:
        """Close."""
        self.closed_politely = not self._closed
        self.terminate()

    def terminate(self) -> None:
        """Drop the connection: what is under way fails as it does in asyncpg."""
        listeners, self._listeners = self._listeners, []
        for callback in listeners:
            asyncio.get_running_loop().call_soon(callback, self)
        self._closed = True
        if self._hanging is not None:
            self._hanging.cancel()

    #: The server or the network drops the connection: the same, seen from the client.
    break_off = terminate

    async def execute_prepared(self, query: str, args: tuple[Any, ...], timeout: float | None) -> list[Any]:
        """One execution of a prepared statement."""
        self.asked.append(Asked("bind", query, args))
        return list(await self._answer(("fetch", query), args, timeout))

    # How it is played

    async def _answer(self, key: tuple[str, str], args: tuple[Any, ...], timeout: float | None) -> Sequence[Any]:
        if self._closed:
            raise asyncpg.InterfaceError("connection is closed")
        if self._busy:
            raise asyncpg.InterfaceError("cannot perform operation: another operation is in progress")
        self._busy = True
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(0)  # a real answer never comes in the same step
                answer: Sequence[Any] = await self._play(self._next(key), args)
                return answer
        finally:
            self._busy = False

    def _next(self, key: tuple[str, str]) -> Answer:
        answers = self._script.get(key)
        if not answers:
            if self._fallback is not None:
                return self._fallback
            error: BaseException = asyncpg.PostgresSyntaxError(f"the script has no answer for this {key[0]}: {key[1]}")
            return error
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def _play(self, answer: Answer, args: tuple[Any, ...]) -> Any:
        if callable(answer):
            made = answer(*args)
            return await self._play(await made if inspect.isawaitable(made) else made, args)
        if isinstance(answer, Hang):
            await self._wait_for(answer)
            return await self._play(answer.then, args)
        if isinstance(answer, BaseException):
            raise answer
        if self._closed:
            raise _broken()
        return answer

    async def _wait_for(self, hang: Hang) -> None:
        # A task of its own, so that `terminate` can end the wait without cancelling the caller.
        self._hanging = asyncio.ensure_future(hang.wait())
        try:
            await asyncio.wait({self._hanging})
        finally:
            self._hanging.cancel()
            self._hanging = None
        if self._closed:
            raise _broken()


class ScriptedStatement:
    """A prepared statement of a scripted connection."""

    def __init__(self, connection: ScriptedConnection, query: str, parameters: Sequence[int]) -> None:
        self._connection = connection
        self._query = query
        self._parameters = tuple(SimpleNamespace(oid=oid) for oid in parameters)

    def get_parameters(self) -> tuple[Any, ...]:
        """The parameters; each has an `oid`."""
        return self._parameters

    def get_query(self) -> str:
        """The text."""
        return self._query

    async def fetch(self, *args: Any, timeout: float | None = None) -> list[Any]:
        """One execution."""
        return await self._connection.execute_prepared(self._query, args, timeout)


class ScriptedConnections:
    """A `connect` callable that hands out prepared connections one after the other.

    Args:
        outcomes: For each call a connection, None (no node can be reached), an error to raise, or a
            `Hang`; the last one of None, error and `Hang` repeats, and so does running out of connections
            (None).

    Attributes:
        calls: Number of calls so far.
        callbacks: What each call was given, in order.
    """

    def __init__(self, *outcomes: ScriptedConnection | BaseException | Hang | None) -> None:
        self.calls = 0
        self.callbacks: list[tuple[Any, ...]] = []
        self._outcomes = list(outcomes)

    async def __call__(self, *args: Any) -> ScriptedConnection | None:
        """Open the next connection; a notice callback among the arguments is wired in."""
        self.calls += 1
        self.callbacks.append(args)
        outcome = self._take()
        await asyncio.sleep(0)
        if isinstance(outcome, Hang):
            await outcome.wait()
            outcome = None
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, ScriptedConnection) and args and callable(args[0]):
            outcome._on_notice = cast("Callable[[str], None]", args[0])
        return outcome

    def _take(self) -> ScriptedConnection | BaseException | Hang | None:
        if len(self._outcomes) > 1 or (self._outcomes and isinstance(self._outcomes[0], ScriptedConnection)):
            return self._outcomes.pop(0)
        return self._outcomes[0] if self._outcomes else None


def _broken() -> asyncpg.PostgresConnectionError:
    return asyncpg.exceptions.ConnectionDoesNotExistError("connection was closed in the middle of operation")
