"""The grammar's top: which kind of statement a text is.

*Source*: rule `Command` of Picodata's grammar (26.1) and the recorded tags and refusals. What Picodata has
and this model has not is told apart from what Picodata refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from picopyn.testing.picodata.planner import statement as st
from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.catalog import Catalog
from picopyn.testing.picodata.planner.ddl_parser import DdlParser
from picopyn.testing.picodata.planner.errors import NotModelled, sbroad
from picopyn.testing.picodata.planner.query_parser import QueryParser


@dataclass(frozen=True, slots=True)
class Command:
    """A statement that changes no rows: its kind, its tag, and what it asks for."""

    kind: str
    tag: str
    ddl: st.Ddl | None = None


Parsed = Command | s.Dml | s.Explain | s.Block

_SIMPLE = {
    "begin": Command("begin", "BEGIN"),
    "commit": Command("commit", "COMMIT"),
    "rollback": Command("rollback", "ROLLBACK"),
    "end": Command("commit", "COMMIT"),
}
_ELSEWHERE = {
    "create": ("role", "procedure", "plugin", "unlogged"),
    "drop": ("role", "procedure", "plugin"),
    "alter": ("procedure", "plugin", "index"),
}


class StatementParser(QueryParser, DdlParser):
    """Reads one whole text."""

    def __init__(self, text: str, catalog: Catalog) -> None:
        super().__init__(text, catalog.accent)
        self._catalog = catalog

    def statement(self) -> Parsed:
        """The statement.

        Raises:
            ServerError: The grammar refuses the text.
        """
        if self.is_op(";") and self.peek().kind == "end":
            self.next()
        if self.token.kind == "end":
            return Command("empty", "")
        parsed = self._parsed()
        self.finish()
        return parsed

    def _parsed(self) -> Parsed:
        word = self.token.text if self.token.kind == "word" else ""
        if word in ("select", "with", "values", "insert", "update", "delete"):
            return self.dml()
        if word == "explain":
            return self.explain()
        if word == "do" and not self.accent.before_26_1:
            return self.block()
        if word in _SIMPLE:
            self.next()
            return _SIMPLE[word]
        reader: Callable[[], Command] | None = getattr(self, f"_read_{word}", None)
        if reader is None:
            self.refuse()
        self.next()
        if self.token.kind == "word" and self.token.text in _ELSEWHERE.get(word, ()):
            raise NotModelled(f"{word.upper()} {self.token.text.upper()}")
        return reader()

    def _read_create(self) -> Command:
        if self.accept("table"):
            return Command("create_table", "CREATE TABLE", self.create_table(self._catalog))
        if self.accept("user"):
            return self._with_tail("create_user", "CREATE ROLE", self.create_user())
        if self.accept("schema"):
            return self._schema("CREATE SCHEMA")
        unique = self.accept("unique")
        self.expect("index")
        return self._with_tail("create_index", "CREATE INDEX", self.create_index(unique))

    def _read_drop(self) -> Command:
        if self.accept("table"):
            return self._with_tail("drop_table", "DROP TABLE", self.drop_table())
        if self.accept("user"):
            return self._with_tail("drop_user", "DROP ROLE", self.drop_user())
        if self.accept("schema"):
            return self._schema("DROP SCHEMA")
        self.expect("index")
        return self._with_tail("drop_index", "DROP INDEX", self.drop_index())

    def _schema(self, tag: str) -> Command:
        if not self.accept("if", "not", "exists"):
            self.accept("if", "exists")
        self.name()
        return Command("schema", tag)

    def _read_alter(self) -> Command:
        if self.accept("table"):
            return self._with_tail("alter_table", "ALTER TABLE", self.alter_table())
        if self.accept("user"):
            return self._with_tail("alter_user", "ALTER ROLE", self.alter_user())
        self.expect("system")
        return Command("alter_system", "ALTER SYSTEM", self.alter_system())

    def _read_truncate(self) -> Command:
        return self._with_tail("truncate", "TRUNCATE TABLE", self.truncate())

    def _read_grant(self) -> Command:
        return self._with_tail("grant", "GRANT", self.grant(revoke=False))

    def _read_revoke(self) -> Command:
        return self._with_tail("grant", "REVOKE", self.grant(revoke=True))

    def _with_tail(self, kind: str, tag: str, ddl: st.Ddl) -> Command:
        self.tail()
        return Command(kind, tag, ddl)

    def _read_set(self) -> Command:
        """SET of anything is taken and does nothing (recorded); its values are not looked at."""
        if self.token.kind not in ("word", "quoted"):
            self.refuse()
        while self.token.kind not in ("end", "param") and not self.is_op(";"):
            self.next()
        return Command("set", "SET")

    def _read_deallocate(self) -> Command:
        ddl = self.deallocate()
        return Command("deallocate", "DEALLOCATE ALL" if ddl.name is None else "DEALLOCATE", ddl)

    def _read_call(self) -> Command:
        raise sbroad(f"invalid routine: routine {self.table_name()} not found")

    def _read_backup(self) -> Command:
        raise NotModelled("BACKUP")

    def _read_audit(self) -> Command:
        raise NotModelled("AUDIT POLICY")
