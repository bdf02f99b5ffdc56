"""The grammar of expressions.

Operators bind as in PostgreSQL: OR, AND, NOT, comparison (also IN, BETWEEN, LIKE), `||`, `+ -`, `* / %`, then
`::`, `[ ]` and IS. *Source*: rule `Expr` of Picodata's grammar (26.1); a sign belongs to a number only, so
`-$1` and `-n` are refused (recorded).
"""

from __future__ import annotations

from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.errors import NotModelled, sbroad
from picopyn.testing.picodata.planner.parser import Cursor

_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TIMES = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
_MIXED = "invalid parameters usage. Got $n and ? parameters in one query!"


class ExpressionParser(Cursor):
    """Reads expressions; `query` is supplied by the grammar of queries."""

    def query(self) -> s.Query:
        """Read a query inside parentheses."""
        raise NotImplementedError

    def expression(self) -> s.Expression:
        """Read one expression."""
        left = self._conjunction()
        while self.accept("or"):
            left = s.Binary("or", left, self._conjunction())
        return left

    def expressions(self) -> tuple[s.Expression, ...]:
        """Read one or more expressions with commas."""
        found = [self.expression()]
        while self.accept_op(","):
            found.append(self.expression())
        return tuple(found)

    def order_items(self) -> tuple[s.OrderItem, ...]:
        """Read the elements of ORDER BY."""
        found = [self._order_item()]
        while self.accept_op(","):
            found.append(self._order_item())
        return tuple(found)

    def _order_item(self) -> s.OrderItem:
        expression = self.expression()
        descending = self.accept("desc") or (self.accept("asc") and False)
        if not self.accept("nulls"):
            return s.OrderItem(expression, descending)
        first = self.accept("first")
        if not first:
            self.expect("last")
        return s.OrderItem(expression, descending, first)

    def _conjunction(self) -> s.Expression:
        left = self._negation()
        while self.accept("and"):
            left = s.Binary("and", left, self._negation())
        return left

    def _negation(self) -> s.Expression:
        return s.Not(self._negation()) if self.accept("not") else self._comparison()

    def _comparison(self) -> s.Expression:
        left = self._concatenation()
        while True:
            if self.token.kind == "op" and self.token.text in _COMPARISONS:
                operator = _COMPARISONS[self.next().text]
                left = s.Binary(operator, left, self._concatenation())
            elif (after := self._test(left)) is not None:
                left = after
            else:
                return left

    def _test(self, left: s.Expression) -> s.Expression | None:
        start, negated = self.at, self.accept("not")
        if self.accept("in"):
            return s.In(left, self._members(), negated)
        if self.accept("between"):
            low = self._concatenation()
            self.expect("and")
            return s.Between(left, low, self._concatenation(), negated)
        if self.is_word("like") or self.is_word("ilike"):
            like = self._like(left)
            return s.Not(like) if negated else like
        if self.is_word("similar"):
            raise NotModelled("SIMILAR TO")
        self.at = start
        return None

    def _like(self, left: s.Expression) -> s.Expression:
        operator = self.next().text
        pattern = self._concatenation()
        escape = self._concatenation() if self.accept("escape") else None
        return s.Like(left, pattern, escape, operator)

    def _members(self) -> tuple[s.Expression, ...] | s.Query:
        self.expect_op("(")
        members = self.query() if self._query_follows() else self.expressions()
        self.expect_op(")")
        return members

    def _concatenation(self) -> s.Expression:
        left = self._sum()
        while self.accept_op("||"):
            left = s.Binary("||", left, self._sum())
        return left

    def _sum(self) -> s.Expression:
        left = self._product()
        while self.is_op("+") or self.is_op("-"):
            operator = self.next().text
            left = s.Binary(operator, left, self._product())
        return left

    def _product(self) -> s.Expression:
        left = self._postfixed()
        while self.is_op("*") or self.is_op("/") or self.is_op("%"):
            operator = self.next().text
            left = s.Binary(operator, left, self._postfixed())
        return left

    def _postfixed(self) -> s.Expression:
        operand = self._atom()
        while True:
            if self.accept_op("::"):
                operand = self._array_type(s.Cast(operand, self.type_name()))
            elif self.accept_op("["):
                operand = s.Index(operand, self.expression())
                self.expect_op("]")
            elif self.accept("is"):
                operand = self._is(operand)
            else:
                return operand

    def _array_type(self, cast: s.Cast) -> s.Cast:
        """`::T[]`: from 26.2 on, and modelled for parameters only (*source*: `picodata-recorded.md` section 7)."""
        if not self.is_op("["):
            return cast
        if not (self.accent.since_26_2 and isinstance(cast.operand, s.Parameter)):
            raise NotModelled("array types")
        self.next()
        self.expect_op("]")
        return s.Cast(cast.operand, f"{cast.type}[]")

    def _is(self, operand: s.Expression) -> s.Expression:
        negated = self.accept("not")
        for word in ("null", "true", "false", "unknown"):
            if self.accept(word):
                return s.Is(operand, "null" if word == "unknown" else word, negated)
        raise self.refusal()

    def _atom(self) -> s.Expression:
        token = self.token
        if token.kind == "string":
            return s.Literal(self.next().text, "text")
        if token.kind == "number":
            return self._number("")
        if token.kind == "param":
            return self.parameter()
        if token.kind == "op":
            return self._sign_or_parenthesis()
        if token.kind == "word":
            return self._word()
        return self._named()

    def _number(self, sign: str) -> s.Expression:
        text = self.next().text
        if "e" in text.lower():
            return s.Literal(sign + text, "double")
        return s.Literal(sign + text, "decimal" if "." in text else "int")

    def parameter(self) -> s.Parameter:
        """Read `$n` or `?`."""
        text = self.next().text
        numbered = text != "?"
        if self.numbered if not numbered else self.unnumbered:
            raise sbroad(_MIXED)
        if numbered:
            self.numbered = True
            return s.Parameter(int(text[1:]))
        self.unnumbered += 1
        return s.Parameter(self.unnumbered)

    def _sign_or_parenthesis(self) -> s.Expression:
        token, after = self.token, self.peek()
        adjacent = after.kind == "number" and after.position == token.position + 1
        if token.text in ("+", "-") and adjacent:
            self.next()
            return self._number(token.text)
        if token.text != "(":
            self.refuse()
        return self._parenthesis()

    def _query_follows(self) -> bool:
        return self.is_word("select") or self.is_word("with") or self.is_word("values")

    def _parenthesis(self) -> s.Expression:
        self.expect_op("(")
        if self._query_follows():
            query = self.query()
            self.expect_op(")")
            return s.Subquery(query)
        items = self.expressions()
        self.expect_op(")")
        return items[0] if len(items) == 1 else s.Row(items)

    def _word(self) -> s.Expression:
        word = self.token.text
        if word in ("true", "false"):
            return s.Literal(self.next().text, "bool")
        if word == "null":
            return s.Literal(self.next().text, "null")
        if word in _TIMES:
            return self._current_time()
        if word == "case":
            return self._case()
        if word == "cast":
            return self._cast()
        if word == "exists":
            return self._exists()
        if word == "substring" or (word == "trim" and self.peek().text == "("):
            raise NotModelled(f"the function {word}")
        return self._named()

    def _current_time(self) -> s.Expression:
        kind = self.next().text
        if self.accept_op("("):
            self.unsigned()
            self.expect_op(")")
        return s.CurrentTime(kind)

    def _case(self) -> s.Expression:
        self.expect("case")
        operand = None if self.is_word("when") else self.expression()
        branches = []
        while self.accept("when"):
            condition = self.expression()
            self.expect("then")
            branches.append((condition, self.expression()))
        otherwise = self.expression() if self.accept("else") else None
        self.expect("end")
        if not branches:
            self.refuse()
        return s.Case(operand, tuple(branches), otherwise)

    def _cast(self) -> s.Expression:
        self.expect("cast")
        self.expect_op("(")
        operand = self.expression()
        self.expect("as")
        cast = s.Cast(operand, self.type_name())
        self.expect_op(")")
        return cast

    def _exists(self) -> s.Expression:
        self.expect("exists")
        self.expect_op("(")
        query = self.query()
        self.expect_op(")")
        return s.Exists(query)

    def _named(self) -> s.Expression:
        name = self.name()
        if self.accept_op("("):
            return self._call(name)
        if self.is_op("."):
            self.next()
            return s.Name(self.name(), name)
        return s.Name(name)

    def _call(self, name: str) -> s.Expression:
        star, distinct = False, False
        arguments: tuple[s.Expression, ...] = ()
        if self.accept_op("*"):
            star = True
        elif not self.is_op(")"):
            distinct = self.accept("distinct")
            arguments = self.expressions()
        self.expect_op(")")
        if self.is_word("filter"):
            raise NotModelled("FILTER")
        window = self._window() if self.accept("over") else None
        return s.Call(name, arguments, star, distinct, window)

    def _window(self) -> s.Window:
        if self.is_name():
            raise NotModelled("named windows")
        self.expect_op("(")
        partition: tuple[s.Expression, ...] = ()
        order: tuple[s.OrderItem, ...] = ()
        if self.accept("partition"):
            self.expect("by")
            partition = self.expressions()
        if self.accept("order"):
            self.expect("by")
            order = self.order_items()
        if self.is_word("rows") or self.is_word("range"):
            raise NotModelled("window frames")
        self.expect_op(")")
        return s.Window(partition, order)
