"""Changes of schema, users and settings.

Decides whether they are allowed and applies them to the catalog and the storage, one at a time. Must not
know instances'
roles: when a change may happen is decided by the laws before it gets here.

*Source* of refusals: recorded sections "setup", "simple" and "bare user".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.planner import errors
from picopyn.testing.picodata.planner import statement as ask
from picopyn.testing.picodata.planner import storage_names as names
from picopyn.testing.picodata.planner.accent import Accent
from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.hash import bucket_of
from picopyn.testing.picodata.storage import Storage
from picopyn.testing.picodata.users import ADMIN

_LEAST_PASSWORD = 8


class Schema:
    """Owner: the server process. `changed` is awaited after a change of the tables."""

    def __init__(self, cluster: Cluster, storage: Storage, changed: Callable[[], Any]) -> None:
        self._cluster = cluster
        self._storage = storage
        self._changed = changed
        self._lock = asyncio.Lock()
        self._steps: dict[type[Any], Callable[[Any, str], Any]] = {
            ask.CreateTable: self._create_table,
            ask.DropTable: self._drop_table,
            ask.AddColumn: self._add_column,
            ask.RenameColumn: self._rename_column,
            ask.RenameTable: self._rename_table,
            ask.Truncate: self._truncate,
            ask.CreateIndex: self._create_index,
            ask.DropIndex: self._drop_index,
            ask.CreateUser: self._create_user,
            ask.AlterUser: self._alter_user,
            ask.DropUser: self._drop_user,
            ask.Grant: self._grant,
            ask.AlterSystem: self._alter_system,
        }

    async def apply(self, ddl: ask.Ddl, user: str) -> None:
        """Carry out one change for `user`.

        Raises:
            ServerError: It is refused; nothing changed.
        """
        async with self._lock:
            await self._steps[type(ddl)](ddl, user)

    # tables

    async def _create_table(self, ddl: ask.CreateTable, user: str) -> None:
        cluster = self._cluster
        if ddl.table.name in cluster.catalog.tables:
            if ddl.if_not_exists:
                return
            raise errors.table_exists(ddl.table.name)
        cluster.users.check_create_table(user, ddl.table.name)
        await self._storage.execute("", names.create_table_text(ddl.table))
        await self._publish(replace(ddl.table, owner=user))

    async def _drop_table(self, ddl: ask.DropTable, user: str) -> None:
        if ddl.if_exists and ddl.name not in self._cluster.catalog.tables:
            return
        table = self._owned(ddl.name, user, "Drop")
        await self._storage.execute("", names.drop_table_text(table.name))
        self._cluster.catalog = self._cluster.catalog.without_table(table.name)
        self._cluster.table_ids.pop(table.name, None)
        await self._changed()

    async def _add_column(self, ddl: ask.AddColumn, user: str) -> None:
        table = self._owned(ddl.table, user, "Alter")
        if table.column(ddl.column.name) is not None:
            if ddl.if_not_exists:
                return
            raise errors.internal(f"column {ddl.column.name} already exists")
        await self._storage.execute("", names.add_column_text(table.name, ddl.column))
        await self._publish(replace(table, columns=(*table.columns, ddl.column)))

    async def _rename_column(self, ddl: ask.RenameColumn, user: str) -> None:
        table = self._owned(ddl.table, user, "Alter")
        if table.column(ddl.column) is None:
            raise errors.column_not_found(ddl.column)
        for sql in names.rename_column_texts(table, ddl.column, ddl.new_name):
            await self._storage.execute("", sql)

        def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(ddl.new_name if name == ddl.column else name for name in columns)

        columns = tuple(
            replace(column, name=ddl.new_name) if column.name == ddl.column else column for column in table.columns
        )
        distribution = None if table.distribution is None else renamed(table.distribution)
        changed = replace(table, columns=columns, primary_key=renamed(table.primary_key), distribution=distribution)
        await self._publish(changed)

    async def _rename_table(self, ddl: ask.RenameTable, user: str) -> None:
        table = self._owned(ddl.table, user, "Alter")
        if ddl.new_name in self._cluster.catalog.tables:
            raise errors.table_exists(ddl.new_name)
        await self._storage.execute("", names.rename_table_text(table.name, ddl.new_name))
        self._cluster.catalog = self._cluster.catalog.without_table(table.name)
        self._cluster.table_ids[ddl.new_name] = self._cluster.table_id(table.name)
        await self._publish(replace(table, name=ddl.new_name))

    async def _truncate(self, ddl: ask.Truncate, user: str) -> None:
        table = self._existing(ddl.table)
        self._cluster.users.check(user, "write", table.name, self._cluster.catalog)
        await self._storage.execute("", names.truncate_text(table.name))

    async def _create_index(self, ddl: ask.CreateIndex, user: str) -> None:
        table = self._owned(ddl.table, user, "Create")
        words = f"{'UNIQUE ' if ddl.unique else ''}INDEX {'IF NOT EXISTS ' if ddl.if_not_exists else ''}"
        columns = ", ".join(names.quoted(name) for name in ddl.columns)
        await self._storage.execute(
            "", f"CREATE {words}{names.quoted(ddl.name)} ON {names.relation(table.name)} ({columns})"
        )

    async def _drop_index(self, ddl: ask.DropIndex, user: str) -> None:
        words = "IF EXISTS " if ddl.if_exists else ""
        await self._storage.execute("", f"DROP INDEX {words}{names.relation(ddl.name)}")

    async def _publish(self, table: Table) -> None:
        self._cluster.catalog = self._cluster.catalog.with_table(table)
        self._cluster.table_id(table.name)
        await self._changed()

    def _existing(self, name: str) -> Table:
        table = self._cluster.catalog.tables.get(name)
        if table is None:
            raise errors.table_does_not_exist(name)
        return table

    def _owned(self, name: str, user: str, action: str) -> Table:
        table = self._existing(name)
        allowed = user in (ADMIN, table.owner) or self._cluster.users.holds(user, action.lower(), name)
        if not allowed:
            text = f"box error: AccessDenied: {action} access to space '{name}' is denied for user '{user}'"
            raise errors.internal(text)
        return table

    def bucket_of(self, name: str, values: Sequence[Any]) -> int:
        """Bucket of a key, given as the values of the sharding key in its order.

        Raises:
            ServerError: There is no such table, or it is global.
        """
        table = self._existing(name)
        if table.distribution is None or table.tier is None:
            raise errors.internal(f"table {name} is global")
        catalog = self._cluster.catalog
        return bucket_of(values, catalog.tiers[table.tier], catalog.double_form)

    # users

    async def _create_user(self, ddl: ask.CreateUser, user: str) -> None:
        users = self._cluster.users
        if user != ADMIN and not users.holds(user, "create user"):
            raise errors.create_user_denied(ddl.name, user)
        if ddl.name in users:
            if ddl.if_not_exists:
                return
            raise errors.internal(f"user {ddl.name} already exists")
        _check_password(ddl.password, ddl.method, self._cluster.accent)
        users.create(ddl.name, ddl.password, ddl.method)

    async def _alter_user(self, ddl: ask.AlterUser, user: str) -> None:
        users = self._cluster.users
        if user not in (ADMIN, ddl.name):
            text = f"box error: AccessDenied: Alter access to user '{ddl.name}' is denied for user '{user}'"
            raise errors.internal(text)
        secret = users.secret(ddl.name)
        if secret is None:
            raise errors.internal(f"user {ddl.name} does not exist")
        if ddl.password is not None:
            method = ddl.method or secret.method
            _check_password(ddl.password, method, self._cluster.accent)
            users.create(ddl.name, ddl.password, method)
        if ddl.login:
            users.unblock(ddl.name)

    async def _drop_user(self, ddl: ask.DropUser, user: str) -> None:
        if ddl.name not in self._cluster.users:
            if ddl.if_exists:
                return
            raise errors.internal(f"user {ddl.name} does not exist")
        if user != ADMIN:
            text = f"box error: AccessDenied: Drop access to user '{ddl.name}' is denied for user '{user}'"
            raise errors.internal(text)
        self._cluster.users.drop(ddl.name)

    async def _grant(self, ddl: ask.Grant, user: str) -> None:
        table = self._cluster.catalog.tables.get(ddl.table or "")
        if user != ADMIN and (table is None or table.owner != user):
            raise errors.grant_denied(ddl.table or "", user)
        self._cluster.users.grant(ddl.grantee, ddl.privilege, ddl.table, revoke=ddl.revoke)

    async def _alter_system(self, ddl: ask.AlterSystem, user: str) -> None:
        if user != ADMIN:
            raise errors.alter_system_denied()
        settings, value = self._cluster.settings, ddl.value
        if ddl.name == "governor_auto_offline_timeout" and isinstance(value, int | float):
            settings.auto_offline_timeout = float(value)
        elif ddl.name == "sql_motion_row_max" and isinstance(value, int):
            settings.motion_row_max = value
        elif ddl.name == "sql_vdbe_opcode_max" and isinstance(value, int):
            settings.vdbe_opcode_max = value


def _check_password(password: str, method: str, accent: Accent) -> None:
    if method != "ldap" and len(password) < _LEAST_PASSWORD:
        raise errors.password_too_short(password, _LEAST_PASSWORD, accent)
