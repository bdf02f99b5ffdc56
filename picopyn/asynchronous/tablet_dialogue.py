"""What the servers of a YugabyteDB are asked about tables, tablets and hash codes: one question at a time.

Texts and the reading of answers are `dialects.yugabyte`'s. An answer that does not come costs the connection; one that
is an error says that the release, or the user's rights, do not go so far.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import asyncpg

from picopyn.asynchronous.metadata_link import MetadataConnect, MetadataLink
from picopyn.asynchronous.service_connection import costs_the_connection, stray_cancellations_are_errors
from picopyn.dialects.yugabyte.tablets import (
    COLUMNS_QUESTION,
    NAMES_QUESTION,
    TABLE_QUESTION,
    TableFacts,
    TabletRow,
    read_names,
    read_table,
    read_tablets,
    tablets_question,
)

_LOG = logging.getLogger(__name__)

#: How long an answer may take (seconds). The list of servers alone costs the asked node a round trip to the master.
ANSWER_TIMEOUT: Final = 15.0


class TabletDialogue:
    """Asks over one connection. Every question raises `ConnectionError` when no node can be reached.

    Args:
        connect: Opens it, or returns None.
        now: Clock.

    Attributes:
        link: The connection, opened on demand.
    """

    def __init__(self, connect: MetadataConnect, now: Callable[[], float]) -> None:
        self.link = MetadataLink(connect, _ignore, self._forget_release, now)
        self._told = False
        self._turn = asyncio.Lock()
        self._tablets: str | None = None

    async def table(self, written: str) -> TableFacts | None:
        """What there is to know about a table, by its name as SQL; None when there is no such table, or no list."""
        if not await self._list():
            return None
        return read_table(await self._told_of_refusal(TABLE_QUESTION, written))

    async def tablets(self) -> tuple[TabletRow, ...]:
        """All tablets of the database; none where the release does not tell."""
        question = await self._list()
        return read_tablets(await self._told_of_refusal(question)) if question else ()

    async def names(self) -> Mapping[str, str]:
        """Uuids of nodes by the addresses under which the cluster knows them; none where the release does not tell."""
        try:
            return read_names(await self._ask(NAMES_QUESTION))
        except asyncpg.PostgresError:
            return {}

    @property
    def lists_tablets(self) -> bool:
        """Whether the release has a list of tablets, as far as it was asked."""
        return self._tablets != ""

    async def code(self, question: str, args: Sequence[Any]) -> int | None:
        """The hash code of a key, as the server computes it; None where it does not."""
        try:
            rows = await self._ask(question, *args)
        except asyncpg.PostgresError:
            return None
        code = rows[0][0] if rows else None
        return code if type(code) is int else None

    def _forget_release(self) -> None:
        """The next connection may lead to a server of another release."""
        self._tablets = None

    async def _list(self) -> str:
        """The text that asks for all tablets; empty where the release has no list."""
        if self._tablets is None:
            columns = await self._ask(COLUMNS_QUESTION)
            self._tablets = tablets_question(row["name"] for row in columns) or ""
            if not self._tablets:
                self._tell_once(logging.INFO, "no yb_tablet_metadata")
        return self._tablets

    async def _told_of_refusal(self, question: str, *args: Any) -> Sequence[Any]:
        """Ask; that the release or the user's rights do not go so far, people should know."""
        try:
            return await self._ask(question, *args)
        except (asyncpg.UndefinedFunctionError, asyncpg.InsufficientPrivilegeError) as error:
            self._tell_once(logging.WARNING, str(error))
            raise

    def _tell_once(self, level: int, why: str) -> None:
        if not self._told:
            self._told = True
            _LOG.log(level, "the servers do not tell of tablets (%s): what needs that is not sent to leaders", why)

    async def _ask(self, question: str, *args: Any) -> Sequence[Any]:
        async with self._turn:
            connection = await self.link.get()
            if connection is None:
                raise ConnectionError("no node can be reached")
            try:
                with stray_cancellations_are_errors():
                    return await connection.fetch(question, *args, timeout=ANSWER_TIMEOUT)
            except BaseException as error:
                if costs_the_connection(error, connection):
                    self.link.give_up()
                raise


def _ignore(notice: str) -> None:
    """What is said by the way concerns nobody."""
