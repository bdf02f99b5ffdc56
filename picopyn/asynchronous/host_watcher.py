"""One watcher per host: it asks its host about its role again and again, on a connection of its own.

The connection is not part of the node pools and is never lent. A look has a time limit of its own, connecting included;
a host that exceeds it is not waited for by anybody, and the connection is dropped. This file decides when to look and
what an answer, or none, is told as; what follows from that is its owner's affair.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

import asyncpg

from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.service_connection import (
    ServiceConnection,
    cause,
    costs_the_connection,
    drop,
    say_goodbye,
    stray_cancellations_are_errors,
)
from picopyn.dialects.postgres.host_question import HOST_QUESTIONS, asks_too_much, read_host_answer
from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_roles import Host

_LOG = logging.getLogger(__name__)

#: Opens a connection to a host, or raises. It keeps a deadline of its own.
ConnectTo = Callable[[Host], Awaitable[ServiceConnection]]


class HostListener(Protocol):
    """Who is told what watchers see."""

    def answered(self, host: Host, facts: HostFacts, seconds: float) -> None:
        """A host told its role; so long it took."""
        ...

    def failed(self, host: Host, reason: str) -> None:
        """A host could not be asked, or gave no answer in time."""
        ...

    def pause(self, host: Host) -> float:
        """Seconds until the next look at a host."""
        ...


class HostWatcher:
    """Looks at one host. Owned by the watchers' owner, which starts and closes it.

    Args:
        host: The host.
        connect_to: Opens its connection.
        listener: Is told what was seen.
        timeout: Limit for one look (seconds).

    Attributes:
        host: The host.
        begun: How many looks have begun.
        ended: The number of the last look that has ended.
    """

    def __init__(self, host: Host, connect_to: ConnectTo, listener: HostListener, timeout: float) -> None:
        self.host = host
        self.begun = 0
        self.ended = 0
        self._connect_to = connect_to
        self._listener = listener
        self._timeout = timeout
        self._connection: Any = None
        self._question = 0
        self._wanted = asyncio.Event()
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look at once, and then again and again."""
        if self._task is None:
            task = asyncio.create_task(
                self._run(), name=f"picopyn.host.{self.host.name}", context=contextvars.Context()
            )
            self._task = unlamented(task)

    def look(self) -> int:
        """Look soon, at once if no look is under way.

        Returns:
            The number of the first look that begins from now on.
        """
        self._wanted.set()
        return self.begun + 1

    async def close(self) -> None:
        """End, and say goodbye."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        connection, self._connection = self._connection, None
        if connection is not None:
            await say_goodbye(connection)

    def terminate(self) -> None:
        """The same at once."""
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._give_up()

    async def _run(self) -> None:
        try:
            while True:
                self._wanted.clear()
                self.begun += 1
                await self._look_once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._listener.pause(self.host)):
                        await self._wanted.wait()
        finally:
            if self._task is None:  # terminated while it was connecting
                self._give_up()

    async def _look_once(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            with stray_cancellations_are_errors():
                async with asyncio.timeout(self._timeout):
                    connection = await self._connected()
                    began = loop.time()
                    facts = await self._ask(connection)
        except Exception as error:
            self._give_up()
            self._note(cause(error))
            self.ended = self.begun
            self._listener.failed(self.host, str(error) or f"no answer within {self._timeout:g} s")
        except BaseException:
            self._give_up()
            raise
        else:
            self._note("")
            self.ended = self.begun
            self._listener.answered(self.host, facts, loop.time() - began)

    async def _connected(self) -> ServiceConnection:
        if self._connection is None or self._connection.is_closed():
            self._give_up()
            self._question = 0
            self._connection = await self._connect_to(self.host)
            self._connection.tell_when_lost(self._lost)
        connection: ServiceConnection = self._connection
        return connection

    async def _ask(self, connection: ServiceConnection) -> HostFacts:
        """Ask as much as this server can answer."""
        while True:
            try:
                rows = await connection.fetch(HOST_QUESTIONS[self._question])
            except asyncpg.PostgresError as error:
                is_last = self._question + 1 == len(HOST_QUESTIONS)
                sqlstate = getattr(error, "sqlstate", None)
                if is_last or costs_the_connection(error, connection) or not asks_too_much(sqlstate):
                    raise
                self._question += 1
                _LOG.debug("%s does not tell everything: %s", self.host.name, cause(error))
            else:
                if not rows:
                    raise ValueError("no answer to the question about its role")
                return read_host_answer(dict(rows[0]), asyncio.get_running_loop().time())

    def _lost(self, connection: Any) -> None:
        """The connection is gone: that is worth a look."""
        if connection is self._connection:
            self._wanted.set()

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        drop(connection)

    def _note(self, trouble: str) -> None:
        """Tell people when a host begins to be silent, and when it ends."""
        if bool(trouble) is not bool(self._trouble):
            if trouble:
                _LOG.info("the role of %s cannot be read: %s", self.host.name, trouble)
            else:
                _LOG.info("the role of %s can be read again", self.host.name)
        self._trouble = trouble
