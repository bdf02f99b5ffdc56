"""What a session asks of its instance: who may come in, what a text means, how a statement runs.

Decides which proof a user must give and when a prepared statement is stale. Everything else is handed on.

*Source*: `picodata-protocol.md` sections 5 (invalidation) and 9 (authentication).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from picopyn.testing.picodata.auth import Exchange, Md5Exchange, ScramExchange
from picopyn.testing.picodata.catalog_feed import CatalogFeed
from picopyn.testing.picodata.cluster import Cluster, random_nonce
from picopyn.testing.picodata.execution import Execution
from picopyn.testing.picodata.host import Host
from picopyn.testing.picodata.planner import errors
from picopyn.testing.picodata.planner.accent import Accent
from picopyn.testing.picodata.planner.statement import Statement
from picopyn.testing.picodata.plans import Plans
from picopyn.testing.picodata.portals import Result
from picopyn.testing.picodata.session import Session
from picopyn.testing.picodata.startup import StartUp


class InstanceBackend:
    """One instance behind its sessions. Owner: the server process."""

    def __init__(self, cluster: Cluster, host: Host, plans: Plans, execution: Execution, feed: CatalogFeed) -> None:
        self._feed = feed
        self._cluster = cluster
        self._host = host
        self._plans = plans
        self._execution = execution

    @property
    def accent(self) -> Accent:
        """The version whose answers are given."""
        return self._cluster.accent

    def exchange(self, user: str) -> Exchange | None:
        """MD5 or SCRAM as the user was created; unknown users act SCRAM out; `chap-sha1` gets None."""
        secret = self._cluster.users.secret(user)
        if secret is None or secret.method == "scram-sha256":
            return ScramExchange(secret, random_nonce())
        if secret.method == "md5":
            return Md5Exchange(secret, os.urandom(4))
        return None

    def note_login(self, user: str, proven: bool) -> bool:
        """A blocked user stays out, with the right password too."""
        users, at = self._cluster.users, self._host.instance.name
        if users.blocked(at, user):
            return False
        users.note_login(at, user, proven)
        return proven

    def prepare(self, text: str, oids: tuple[int, ...]) -> Statement:
        """Plan a text."""
        return self._plans.prepare(text, oids, self._host.instance.tier)

    def check_fresh(self, name: str, statement: Statement, start: StartUp) -> None:
        """Compare the tables' versions with those at Parse."""
        if not start.stmt_invalidation:
            return
        tables = self._cluster.catalog.tables
        for table, version in statement.versions.items():
            if table not in tables:
                raise errors.space_metadata_not_found(table)
            if tables[table].version != version:
                raise errors.statement_invalidated(name)

    def execute(self, statement: Statement, values: Sequence[Any], start: StartUp) -> asyncio.Task[Result]:
        """Run a statement; the task outlives the session."""
        return self._execution.start(statement, values, start)

    def follow(self, session: Session, start: StartUp) -> list[str]:
        """The topology and what becomes of it, for clients that read version 1."""
        if start.catalog_cdc != "1":
            return []
        return self._feed.join(session, self._host.instance.name, session.tell)

    def joined(self, session: Session) -> None:
        """A session began."""
        self._host.joined(session)

    def left(self, session: Session) -> None:
        """A session ended."""
        self._host.sessions.discard(session)
        self._feed.leave(session)
