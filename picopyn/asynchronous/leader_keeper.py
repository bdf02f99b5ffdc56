"""Keeps the leaders of tablets known: when they are asked for, and which tables are meant.

Only tables that a statement has named by its key are kept, so a pool that routes nothing asks nothing. The answer is
believed for a minute; it is asked for again when nodes come or go, when a node is in doubt, and, a little more slowly
each time, while a tablet has no leader or one that cannot be reached. One answer serves all tables.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable

from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.service_connection import REQUEST_ERRORS, cause
from picopyn.asynchronous.tablet_dialogue import TabletDialogue
from picopyn.dialects.yugabyte.tablets import TableFacts, TabletRow, tablet_map
from picopyn.routing.leader_table import LeaderTable, next_look

_LOG = logging.getLogger(__name__)


class LeaderKeeper:
    """Owns the leader table.

    Args:
        dialogue: Asks.
        table: What is kept.
        away: Whether a leader, by its address in the cluster, cannot be reached now.
        on_changed: Told when a table is another one now, or gone.

    Attributes:
        leaders: What is kept.
    """

    def __init__(
        self,
        dialogue: TabletDialogue,
        table: LeaderTable,
        away: Callable[[str], bool],
        on_changed: Callable[[], None],
    ) -> None:
        self._dialogue = dialogue
        self.leaders = table
        self._away = away
        self._on_changed = on_changed
        self._tables: dict[str, TableFacts] = {}
        self._rows: tuple[TabletRow, ...] = ()
        self._asked = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def know(self, written: str) -> TableFacts | None:
        """What there is to know about a table; its leaders are known afterwards, as far as the servers tell."""
        facts = self._tables.get(written)
        if facts is not None:
            return facts
        facts = await self._dialogue.table(written)
        if facts is not None and facts.key:
            self._tables[written] = facts
            await self._look(again=not any(row.oid in (facts.oid, facts.file) for row in self._rows))
            self._ensure_loop()
        return facts

    def look_again(self) -> None:
        """Ask for the leaders soon, if anybody needs them."""
        self._asked.set()

    def end(self) -> None:
        """End asking, without waiting."""
        if self._loop is not None:
            self._loop.cancel()

    async def ended(self) -> None:
        """Wait for that."""
        if self._loop is not None:
            await asyncio.wait({self._loop})

    def _ensure_loop(self) -> None:
        if self._loop is None or self._loop.done():
            loop = asyncio.create_task(self._keep(), name="picopyn.leaders", context=contextvars.Context())
            self._loop = unlamented(loop)

    async def _keep(self) -> None:
        rounds = 0
        while True:
            rounds = rounds + 1 if self._is_unsettled() else 0
            try:
                async with asyncio.timeout(next_look(rounds)):
                    await self._asked.wait()
                rounds = 0
            except TimeoutError:
                pass
            self._asked.clear()
            try:
                await self._renew_tables()
                await self._look(again=True)
            except REQUEST_ERRORS as error:
                _LOG.debug("the leaders of tablets could not be asked for: %s", cause(error))
            await asyncio.sleep(next_look(0, asked=True))

    def _is_unsettled(self) -> bool:
        tablets = self.leaders.tablets
        return not tablets.complete or any(map(self._away, tablets.leaders))

    async def _look(self, *, again: bool) -> None:
        """Publish the leaders; asked for anew, or from the last answer."""
        names = self.leaders.names
        if again:
            self._rows = await self._dialogue.tablets()
            names = await self._dialogue.names()
        self.leaders.publish(tablet_map(self._tables.values(), self._rows), names)

    async def _renew_tables(self) -> None:
        """Find out which tables were dropped, or made again with another key."""
        for written, facts in tuple(self._tables.items()):
            now = await self._dialogue.table(written)
            if now == facts:
                continue
            if now is None or not now.key:
                self._tables.pop(written, None)
            else:
                self._tables[written] = now
            self._on_changed()
