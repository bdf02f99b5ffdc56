"""The grammar of schema, user, privilege and session statements.

*Source*: rules `DDL`, `ACL`, `TCL`, `Deallocate` of Picodata's grammar (26.1) and the recorded answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from picopyn.testing.picodata.planner import statement as st
from picopyn.testing.picodata.planner.catalog import Catalog, Column, Table
from picopyn.testing.picodata.planner.errors import NotModelled
from picopyn.testing.picodata.planner.parser import Cursor

_PRIVILEGES = frozenset({"read", "write", "execute", "create", "alter", "drop", "session", "usage"})
_METHODS = {"md5": ("md5",), "chap-sha1": ("chap", "-", "sha1"), "scram-sha256": ("scram", "-", "sha256")}

Action = TypeVar("Action", st.AddColumn, st.RenameColumn)


class DdlParser(Cursor):
    """Reads statements that change no rows."""

    def create_table(self, catalog: Catalog) -> st.CreateTable:
        """Read what follows CREATE TABLE."""
        if_not_exists = self.accept("if", "not", "exists")
        name = self.table_name()
        if self.is_word("partition"):
            raise NotModelled("partitioned tables")
        columns, key = self._column_list()
        engine = "memtx"
        if self.accept("using"):
            engine = self._one_of("memtx", "vinyl")
        if self.is_word("with"):
            raise NotModelled("table options")
        distribution, tier = self._distribution(key, catalog)
        self._wait()
        if self.is_word("partition"):
            raise NotModelled("partitioned tables")
        self._timeout()
        _check_names(columns, key, distribution, tier, catalog)
        required = tuple(replace(c, nullable=c.nullable and c.name not in key) for c in columns)
        table = Table(name, required, key, distribution, tier, engine=engine)
        return st.CreateTable(table, if_not_exists)

    def _column_list(self) -> tuple[list[Column], tuple[str, ...]]:
        self.expect_op("(")
        columns: list[Column] = []
        key: tuple[str, ...] = ()
        while True:
            if self.accept("primary", "key"):
                key = self.names()
                self.expect_op(")")
                return columns, key
            column, marked = self._column()
            columns.append(column)
            key = (column.name,) if marked else key
            if not self.accept_op(","):
                self.expect_op(")")
                return columns, key

    def _column(self) -> tuple[Column, bool]:
        column = self._plain_column()
        return column, self.accept("primary", "key")

    def _plain_column(self) -> Column:
        name = self.name()
        kind = self.type_name()
        required = self.accept("not", "null")
        if not required:
            self.accept("null")
        return Column(name, kind, not required)

    def _distribution(self, key: tuple[str, ...], catalog: Catalog) -> tuple[tuple[str, ...] | None, str | None]:
        if not self.accept("distributed"):
            return key, catalog.default_tier
        if self.accept("globally"):
            return None, None
        self.expect("by")
        columns = self.names()
        return columns, self.name() if self.accept("in", "tier") else catalog.default_tier

    def _one_of(self, *words: str) -> str:
        for word in words:
            if self.accept(word):
                return word
        raise self.refusal()

    def _wait(self) -> None:
        if self.accept("wait"):
            self.expect("applied")
            self._one_of("globally", "locally")

    def _timeout(self) -> None:
        if not self.accept("option"):
            return
        self.expect_op("(")
        self.expect("timeout")
        self.expect_op("=")
        if self.token.kind != "number":
            self.refuse()
        self.next()
        self.expect_op(")")

    def tail(self) -> None:
        """Read WAIT APPLIED and OPTION (TIMEOUT = …), which change nothing here."""
        self._wait()
        self._timeout()

    def drop_table(self) -> st.DropTable:
        """Read what follows DROP TABLE."""
        if_exists = self.accept("if", "exists")
        return st.DropTable(self.table_name(), if_exists)

    def truncate(self) -> st.Truncate:
        """Read what follows TRUNCATE."""
        self.accept("table")
        return st.Truncate(self.table_name())

    def alter_table(self) -> st.AddColumn | st.RenameColumn | st.RenameTable:
        """Read what follows ALTER TABLE."""
        table = self.table_name()
        if self.accept("add"):
            self.accept("column")
            if_not_exists = self.accept("if", "not", "exists")
            return self._alone(st.AddColumn(table, self._plain_column(), if_not_exists))
        if self.accept("rename", "to"):
            return st.RenameTable(table, self.table_name())
        if self.accept("rename"):
            self.accept("column")
            column = self.name()
            self.expect("to")
            return self._alone(st.RenameColumn(table, column, self.name()))
        if self.is_word("drop") or self.is_word("alter"):
            raise NotModelled(f"ALTER TABLE … {self.token.text.upper()}")
        raise self.refusal()

    def _alone(self, action: Action) -> Action:
        if self.is_op(","):
            raise NotModelled("several actions in one ALTER TABLE")
        return action

    def create_index(self, unique: bool) -> st.CreateIndex:
        """Read what follows CREATE [UNIQUE] INDEX."""
        if_not_exists = self.accept("if", "not", "exists")
        name = self.name()
        self.expect("on")
        table = self.table_name()
        if self.accept("using"):
            self._one_of("tree", "hash", "rtree", "bitset")
        columns = self.names()
        if self.is_word("with"):
            raise NotModelled("index options")
        return st.CreateIndex(name, table, columns, unique, if_not_exists)

    def drop_index(self) -> st.DropIndex:
        """Read what follows DROP INDEX."""
        if_exists = self.accept("if", "exists")
        return st.DropIndex(self.name(), if_exists)

    def create_user(self) -> st.CreateUser:
        """Read what follows CREATE USER."""
        if_not_exists = self.accept("if", "not", "exists")
        name = self.name()
        if self.accept("using"):
            self.expect("ldap")
            return st.CreateUser(name, "", "ldap", if_not_exists)
        self.accept("with")
        self.expect("password")
        password = self.string()
        method = self._method() if self.accept("using") else "md5"
        return st.CreateUser(name, password, method, if_not_exists)

    def _method(self) -> str:
        for method, parts in _METHODS.items():
            if tuple(self.peek(ahead).text for ahead in range(len(parts))) == parts:
                self.at += len(parts)
                return method
        raise self.refusal()

    def alter_user(self) -> st.AlterUser:
        """Read what follows ALTER USER."""
        name = self.name()
        self.accept("with")
        if self.accept("login"):
            return st.AlterUser(name, login=True)
        if self.accept("nologin"):
            return st.AlterUser(name, login=False)
        if self.is_word("rename"):
            raise NotModelled("ALTER USER … RENAME")
        self.expect("password")
        password = self.string()
        return st.AlterUser(name, password, self._method() if self.accept("using") else "md5")

    def drop_user(self) -> st.DropUser:
        """Read what follows DROP USER."""
        if_exists = self.accept("if", "exists")
        return st.DropUser(self.name(), if_exists)

    def grant(self, revoke: bool) -> st.Grant:
        """Read what follows GRANT or REVOKE."""
        if self.token.kind != "word" or self.token.text not in _PRIVILEGES:
            if self.is_name():
                raise NotModelled("roles")
            self.refuse()
        privilege = self.next().text
        specific = self.accept("on")
        kind = self._one_of("table", "user", "role", "procedure")
        if kind in ("role", "procedure"):
            raise NotModelled(f"privileges on a {kind}")
        target = self.table_name() if specific else None
        self.expect("from" if revoke else "to")
        return st.Grant(privilege, target, self.name(), revoke, kind)

    def alter_system(self) -> st.AlterSystem:
        """Read what follows ALTER SYSTEM."""
        if self.accept("reset"):
            return st.AlterSystem(None if self.accept("all") else self.name(), reset=True, tier=self._for_tier())
        self.expect("set")
        name = self.name()
        if not self.accept_op("="):
            self.expect("to")
        value = self._setting()
        return st.AlterSystem(name, value, self._for_tier())

    def _for_tier(self) -> str | None:
        if not self.accept("for"):
            return None
        if self.accept("all", "tiers"):
            return None
        self.expect("tier")
        return self.name()

    def _setting(self) -> int | float | str | bool | None:
        token = self.next()
        if token.kind == "number":
            return int(token.text) if token.text.isdigit() else float(token.text)
        if token.kind == "word" and token.text in ("true", "false"):
            return token.text == "true"
        if token.kind == "word" and token.text == "default":
            return None
        if token.kind == "string":
            return token.text
        self.at -= 1
        raise self.refusal()

    def deallocate(self) -> st.Deallocate:
        """Read what follows DEALLOCATE."""
        self.accept("prepare")
        return st.Deallocate(None if self.accept("all") else self.name())


def _check_names(
    columns: Sequence[Column],
    key: tuple[str, ...],
    distribution: tuple[str, ...] | None,
    tier: str | None,
    catalog: Catalog,
) -> None:
    """What Picodata refuses with words that were not recorded."""
    names = [column.name for column in columns]
    if len(set(names)) < len(names) or not key:
        raise NotModelled("CREATE TABLE with a column twice or without primary key")
    if not {*key, *(distribution or ())} <= set(names):
        raise NotModelled("a key of columns the table has not")
    if tier is not None and not catalog.tiers.get(tier):
        raise NotModelled(f"a sharded table in the tier {tier}, which is unknown or has no buckets")
