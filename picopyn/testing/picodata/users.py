"""Who may log in, and who may read or write what. Pure.

Decides permissions and counts failed logins. Must not know sessions.

*Source*: `picodata-protocol.md` sections 1 (privileges) and 9 (blocking after four failures, per instance).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from picopyn.testing.picodata.auth import Secret, keep
from picopyn.testing.picodata.planner.catalog import Catalog
from picopyn.testing.picodata.planner.errors import access_denied, grantee_not_found, internal

ADMIN = "admin"
PUBLIC_TABLES = frozenset({"_pico_instance", "_pico_peer_address"})
_ATTEMPTS = 4


@dataclass(slots=True)
class Account:
    """One user; `granted` holds (privilege, table), the table None for all tables."""

    secret: Secret
    granted: set[tuple[str, str | None]] = field(default_factory=set)


class Users:
    """Accounts of a cluster. Owner: `cluster.Cluster`."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._failures: Counter[tuple[str, str]] = Counter()
        self._denied: set[tuple[str, str]] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._accounts

    def create(self, name: str, password: str, method: str = "md5") -> None:
        """Make a user, or give an existing one another password."""
        secret = keep(name, password, method, os.urandom(16))
        if name in self._accounts:
            self._accounts[name].secret = secret
        else:
            self._accounts[name] = Account(secret)

    def drop(self, name: str) -> None:
        """Remove a user."""
        del self._accounts[name]

    def secret(self, name: str) -> Secret | None:
        """What proves this user's password; None for somebody nobody knows."""
        account = self._accounts.get(name)
        return account.secret if account is not None else None

    def blocked(self, instance: str, name: str) -> bool:
        """Whether this instance no longer believes this user."""
        return self._failures[instance, name] >= _ATTEMPTS

    def note_login(self, instance: str, name: str, proven: bool) -> None:
        """Count an attempt; a success forgets the failures before it."""
        if proven:
            self._failures.pop((instance, name), None)
        else:
            self._failures[instance, name] += 1

    def unblock(self, name: str) -> None:
        """ALTER USER … WITH LOGIN."""
        for key in [key for key in self._failures if key[1] == name]:
            del self._failures[key]

    def grant(self, name: str, privilege: str, table: str | None, *, revoke: bool = False) -> None:
        """GRANT or REVOKE.

        Raises:
            ServerError: There is no such user.
        """
        account = self._accounts.get(name)
        if account is None:
            raise grantee_not_found(name)
        if revoke:
            account.granted.discard((privilege, table))
        else:
            account.granted.add((privilege, table))

    def deny(self, name: str, table: str) -> None:
        """Take every right on a table from a user, whatever was granted, public or owned."""
        self._denied.add((name, table))

    def allow(self, name: str, table: str) -> None:
        """Undo `deny`."""
        self._denied.discard((name, table))

    def check(self, user: str, action: str, table: str, catalog: Catalog) -> None:
        """Let pass or refuse; `action` is `"read"` or `"write"`.

        Raises:
            ServerError: The recorded AccessDenied text.
        """
        if (user, table) in self._denied or not self._may(user, action, table, catalog):
            raise access_denied(action.capitalize(), table, user)

    def _may(self, user: str, action: str, table: str, catalog: Catalog) -> bool:
        if user == ADMIN or (action == "read" and table in PUBLIC_TABLES):
            return True
        found = catalog.tables.get(table)
        return (found is not None and found.owner == user) or self.holds(user, action, table)

    def holds(self, user: str, privilege: str, table: str | None = None) -> bool:
        """Whether a privilege was granted, for this table or for all."""
        account = self._accounts.get(user)
        if user == ADMIN or account is None:
            return user == ADMIN
        return (privilege, table) in account.granted or (privilege, None) in account.granted

    def check_create_table(self, user: str, table: str) -> None:
        """Let pass or refuse CREATE TABLE.

        Raises:
            ServerError: The user may not create tables (text read from the source, not recorded).
        """
        if not self.holds(user, "create"):
            raise internal(f"box error: AccessDenied: Create access to space '{table}' is denied for user '{user}'")
