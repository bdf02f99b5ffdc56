"""The grammar of SELECT, VALUES, INSERT, UPDATE, DELETE, EXPLAIN and DO.

*Source*: rules `Query`, `SelectFull`, `Insert`, `Update`, `Delete`, `Explain`, `AnonymousBlock` of Picodata's
grammar (26.1) and the recorded refusals.
"""

from __future__ import annotations

from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.errors import NotModelled, sbroad
from picopyn.testing.picodata.planner.expression_parser import ExpressionParser

_OPTIONS = {"sql_motion_row_max": "int", "sql_vdbe_opcode_max": "int", "read_preference": "word"}
#: *Source*: `picodata-recorded.md` section 7.
_NEWER_OPTIONS = {**_OPTIONS, "forward": "word"}
_WORDS = {"read_preference": ("leader", "replica", "any"), "forward": ("on", "off", "ro_to_rw")}
_FACETS = frozenset({"buckets", "logical"})
_OTHER_FACETS = frozenset({"raw", "fmt", "forward", "context"})


class QueryParser(ExpressionParser):
    """Reads statements on rows."""

    def explain(self) -> s.Explain:
        """Read EXPLAIN and what it explains."""
        self.expect("explain")
        if self.is_op("(") and self.peek().text == "raw":
            raise NotModelled("EXPLAIN (RAW)")
        facets = _FACETS
        if self.accent.since_26_2 and self.is_op("(") and self.peek().text in _FACETS | _OTHER_FACETS:
            facets = self._facets()
        return s.Explain(self.dml(), facets)

    def _facets(self) -> frozenset[str]:
        self.expect_op("(")
        found = set()
        while True:
            if self.token.text in _OTHER_FACETS:
                raise NotModelled(f"EXPLAIN ({self.token.text.upper()})")
            if self.token.text not in _FACETS:
                self.refuse()
            found.add(self.next().text)
            if not self.accept_op(","):
                self.expect_op(")")
                return frozenset(found)

    def block(self) -> s.Block:
        """Read DO and the statements of its block."""
        self.expect("do")
        if self.accept("language"):
            self.expect("sql")
        if self.token.kind != "dollar":
            self.refuse()
        return s.Block(QueryParser(self.next().text, self.accent).block_body())

    def block_body(self) -> tuple[s.Dml, ...]:
        """Read `BEGIN statement; … END`."""
        self.expect("begin")
        found = []
        while not self.accept("end"):
            if self.is_word("if") or self.is_word("let") or self.is_word("return"):
                raise NotModelled("control statements in DO blocks")
            found.append(self.dml())
            self.expect_op(";")
        if self.token.kind != "end" or not found:
            self.refuse()
        return tuple(found)

    def dml(self) -> s.Dml:
        """Read one statement on rows with its OPTION clause."""
        if self.is_word("insert"):
            return self._insert()
        if self.is_word("update"):
            return self._update()
        if self.is_word("delete"):
            return self._delete()
        return s.SelectStatement(self.query(), self._options())

    def query(self) -> s.Query:
        """Read a query with its WITH, ORDER BY and LIMIT."""
        if self.is_word("values"):
            return s.Query(self._values())
        ctes = self._ctes() if self.accept("with") else ()
        return self._query_body(ctes)

    def _query_body(self, ctes: tuple[s.Cte, ...]) -> s.Query:
        body = self._set_operations()
        order_by = self.order_items() if self._accept_by("order") else ()
        limit = self._limit() if self.accept("limit") else None
        return s.Query(body, ctes, order_by, limit)

    def _accept_by(self, word: str) -> bool:
        if not self.accept(word):
            return False
        self.expect("by")
        return True

    def _limit(self) -> int | None:
        if self.accept("all") or self.accept("null"):
            return None
        return self.unsigned()

    def _ctes(self) -> tuple[s.Cte, ...]:
        if self.is_word("recursive"):
            raise NotModelled("WITH RECURSIVE")
        found = [self._cte()]
        while self.accept_op(","):
            found.append(self._cte())
        return tuple(found)

    def _cte(self) -> s.Cte:
        name = self.name()
        columns = self.names() if self.is_op("(") else ()
        self.expect("as")
        self.expect_op("(")
        query = s.Query(self._values()) if self.is_word("values") else self._query_body(())
        self.expect_op(")")
        return s.Cte(name, columns, query)

    def _set_operations(self) -> s.Body:
        body: s.Body = self._select()
        while operator := self._set_operator():
            body = s.SetOperation(operator, body, self._select())
        return body

    def _set_operator(self) -> str | None:
        if self.accept("union"):
            return "union all" if self.accept("all") else "union"
        if self.accept("except"):
            self.accept("distinct")
            return "except"
        return None

    def _values(self) -> s.Values:
        self.expect("values")
        rows = [self._row()]
        while self.accept_op(","):
            rows.append(self._row())
        return s.Values(tuple(rows))

    def _row(self) -> tuple[s.Expression, ...]:
        self.expect_op("(")
        row = self.expressions()
        self.expect_op(")")
        return row

    def _select(self) -> s.Select:
        self.expect("select")
        distinct = self.accept("distinct")
        items = [self._item()]
        while self.accept_op(","):
            items.append(self._item())
        if not self.accept("from"):
            return s.Select(tuple(items), distinct=distinct)
        source = self._sources()
        where = self.expression() if self.accept("where") else None
        group_by = self.expressions() if self._accept_by("group") else ()
        having = self.expression() if self.accept("having") else None
        if self.is_word("window"):
            raise NotModelled("named windows")
        return s.Select(tuple(items), source, where, group_by, having, distinct)

    def _item(self) -> s.Item:
        if self.accept_op("*"):
            return s.Item(s.Star())
        if self.is_name() and self.peek().text == "." and self.peek(2).text == "*":
            qualifier = self.name()
            self.at += 2
            return s.Item(s.Star(qualifier))
        expression = self.expression()
        return s.Item(expression, self._alias())

    def _alias(self) -> str | None:
        if self.accept("as"):
            return self.name()
        return self.name() if self.is_name() and not self.is_word("indexed") else None

    def _sources(self) -> s.Source:
        source = self._source()
        while True:
            outer = self.accept("left")
            if outer:
                self.accept("outer")
            inner = not outer and self.accept("inner")
            if not self.accept("join"):
                if outer or inner:
                    self.refuse()
                return source
            right = self._source()
            self.expect("on")
            source = s.Join(source, right, self.expression(), outer)

    def _source(self) -> s.Source:
        if self.accept_op("("):
            query = self.query()
            self.expect_op(")")
            return s.QueryRef(query, self._alias())
        name = self.table_name()
        alias = self._alias()
        return s.TableRef(name, alias, self._indexed_by())

    def _indexed_by(self) -> str | None:
        return self.name() if self.accept("indexed", "by") else None

    def _insert(self) -> s.Insert:
        self.expect("insert", "into")
        table = self.table_name()
        columns = self.names() if self.is_op("(") else None
        source = self.query()
        conflict = "fail"
        if self.accept("on"):
            self.expect("conflict")
            if self.accent.since_26_2 and self.is_op("("):
                self._update_on_conflict()
            self.expect("do")
            conflict = self.token.text
            if self.token.kind != "word" or conflict not in ("nothing", "replace", "fail"):
                self.refuse()
            self.next()
        return s.Insert(table, columns, source, conflict, self._options())

    def _update_on_conflict(self) -> None:
        """`(key) DO UPDATE SET …`; only `column = column op value` is taken (recorded on 26.2), and not modelled."""
        self.names()
        self.expect("do", "update", "set")
        while True:
            name, value = self._assignment()
            sides = (value.left, value.right) if isinstance(value, s.Binary) else ()
            if s.Name(name) not in sides:
                raise sbroad(
                    f'unsupported ON CONFLICT DO UPDATE expression for column "{name}": expected "{name}" = "{name}" '
                    f'op value, or value op "{name}" for commutative ops'
                )
            if not self.accept_op(","):
                raise NotModelled("ON CONFLICT DO UPDATE")

    def _update(self) -> s.Update:
        self.expect("update")
        table = self._changed_table()
        self.expect("set")
        assignments = [self._assignment()]
        while self.accept_op(","):
            assignments.append(self._assignment())
        source = self._sources() if self.accept("from") else None
        where = self.expression() if self.accept("where") else None
        return s.Update(table, tuple(assignments), where, source, self._options())

    def _changed_table(self) -> str:
        table = self.table_name()
        if index := self._indexed_by():
            raise sbroad(f"index {index} not found")
        return table

    def _assignment(self) -> tuple[str, s.Expression]:
        name = self.name()
        self.expect_op("=")
        return name, self.expression()

    def _delete(self) -> s.Delete:
        self.expect("delete", "from")
        table = self._changed_table()
        where = self.expression() if self.accept("where") else None
        return s.Delete(table, where, self._options())

    def _options(self) -> s.Options:
        found: dict[str, int | str | s.Parameter] = {}
        if not self.accept("option"):
            return found
        self.expect_op("(")
        while True:
            self._option(found)
            if not self.accept_op(","):
                self.expect_op(")")
                return found

    def _option(self, found: dict[str, int | str | s.Parameter]) -> None:
        kind = (_NEWER_OPTIONS if self.accent.since_26_2 else _OPTIONS).get(self.token.text)
        if self.token.kind != "word" or kind is None:
            self.refuse()
        name = self.next().text
        self.expect_op("=")
        if self.token.kind == "param":
            found[name] = self.parameter()
        elif kind == "word":
            if self.token.text not in _WORDS[name]:
                self.refuse()
            found[name] = self.next().text
        else:
            found[name] = self.unsigned()
