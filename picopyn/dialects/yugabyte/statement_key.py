"""Which parameters or constants of a statement are its hash key, read from its text.

YugabyteDB's EXPLAIN names no tablets, so the text itself is read. Only what is certain counts: one statement over one
table that says of every hash column, by `=` and at the top of its conditions, or as the one row of an INSERT, that it
is a parameter or a constant. Everything else is not keyed, which costs a hop inside the cluster and nothing else.

Reading takes two steps, because only the second one needs the table: `read_statement` is slow (milliseconds) and
depends on the text alone; `bind` puts columns and types to it. `sqlglot` is a dependency of the extra `yugabyte`;
without it nothing is keyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from picopyn.dialects.yugabyte.hash_code import hash_code
from picopyn.dialects.yugabyte.key_hash import BOOL, BPCHAR, INTEGERS, TEXT, TEXTS, UUID_OID, VARCHAR, YUGABYTE_KEY_HASH
from picopyn.dialects.yugabyte.plain_text import plain_text
from picopyn.dialects.yugabyte.tablets import KeyColumn, TableFacts
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute

if TYPE_CHECKING:
    from sqlglot import exp

#: Parts of a statement that do not change which row its key names.
_ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "select": frozenset(
        {"expressions", "from_", "where", "order", "limit", "offset", "group", "having", "distinct", "locks"}
    ),
    "insert": frozenset({"this", "expression", "conflict", "returning"}),
    "update": frozenset({"this", "expressions", "where", "returning"}),
    "delete": frozenset({"this", "where", "returning"}),
}
_TABLE_PARTS: Final = frozenset({"this", "db", "alias"})
#: Columns whose values stay the same under a cast, by the name of the type.
_HARMLESS_CASTS: Final[Mapping[str, frozenset[int]]] = {
    "SMALLINT": INTEGERS,
    "INT": INTEGERS,
    "BIGINT": INTEGERS,
    "TEXT": frozenset({TEXT, VARCHAR}),
    "VARCHAR": frozenset({TEXT, VARCHAR}),
    "UUID": frozenset({UUID_OID}),
    "BOOLEAN": frozenset({BOOL}),
}
#: Without quotes these are functions, not columns. *Source*: PostgreSQL documentation, "Session Information Functions".
_FUNCTIONS: Final = frozenset(
    {
        *("user", "current_user", "session_user", "system_user", "current_role", "current_catalog", "current_schema"),
        *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
    }
)
#: PostgreSQL cuts longer names.
_LONGEST_NAME: Final = 63


@dataclass(frozen=True, slots=True)
class Term:
    """What a column is said to be.

    Attributes:
        parameter: Zero-based position of a parameter; None for a constant.
        constant: The constant: a text, an integer or a boolean.
        cast: Name of the type it is cast to; empty for none.
    """

    parameter: int | None = None
    constant: str | int | None = field(default=None, repr=False)
    cast: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a text says about one table.

    Attributes:
        schema: As written; empty where it is left out.
        table: Its name.
        columns: What columns are said to be, by name.
        row: The one row of an INSERT that names no columns; None for a value that is no term.
        touched: Columns of which more is said than an equality, or that are assigned: no key is made of them.
    """

    schema: str
    table: str
    columns: Mapping[str, Term]
    row: tuple[Term | None, ...] = ()
    touched: frozenset[str] = frozenset()

    @property
    def written(self) -> str:
        """The table's name as SQL, every part quoted."""
        parts = (self.schema, self.table) if self.schema else (self.table,)
        return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


class NotReadError(Exception):
    """Why a text is not keyed. It never reaches a caller of this room."""


def read_statement(text: str) -> Statement | str:
    """Read a text; may take milliseconds, never raises.

    Returns:
        What it says, or why it has no key, in words without any part of the text.
    """
    plain = plain_text(text)
    if plain is None:
        return "the text is too long, too deep, or of a kind that is not read"
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError:
        return "the extra picopyn[yugabyte] is not installed"
    try:
        trees = sqlglot.parse(plain, read="postgres", error_level=sqlglot.ErrorLevel.RAISE)
        if len(trees) != 1 or trees[0] is None:
            return "there is not one statement"
        return _statement(trees[0])
    except NotReadError as reason:
        return str(reason)
    except (SqlglotError, RecursionError):
        return "the text cannot be parsed"
    except Exception as error:  # a fault of the parser must not cost a call more than its hop
        return f"the parser failed: {type(error).__name__}"


def _statement(tree: exp.Expr) -> Statement:
    allowed = _ALLOWED.get(tree.key)
    if allowed is None or any(value for name, value in tree.args.items() if name not in allowed):
        raise NotReadError("the statement has parts that are not understood")
    _check_single_table(tree)
    if tree.key == "insert":
        return _insert(tree)
    source = tree.args["from_"] if tree.key == "select" and tree.args.get("from_") else tree
    schema, table, alias = _table(source.this)
    where = tree.args.get("where")
    if where is None:
        raise NotReadError("there are no conditions")
    touched = set(_assigned(tree)) if tree.key == "update" else set()
    columns: dict[str, Term] = {}
    for name, term in _equalities(where.this, alias or table):
        if name in columns:
            touched.add(name)
        columns[name] = term
    return Statement(schema, table, columns, touched=frozenset(touched))


def _check_single_table(tree: exp.Expr) -> None:
    from sqlglot import exp

    tables = selects = 0
    for node in tree.walk():
        tables += isinstance(node, exp.Table)
        selects += isinstance(node, exp.Query | exp.Command) and not isinstance(node, exp.Values | exp.Table)
    if tables != 1 or selects != (tree.key == "select"):
        raise NotReadError("more than one table takes part")


def _table(node: Any) -> tuple[str, str, str]:
    """Schema, name and alias of the one table."""
    from sqlglot import exp

    if not isinstance(node, exp.Table) or any(value for key, value in node.args.items() if key not in _TABLE_PARTS):
        raise NotReadError("the table is not written in a plain way")
    alias = node.args.get("alias")
    if alias is not None and (alias.args.get("columns") or not isinstance(alias.this, exp.Identifier)):
        raise NotReadError("the table's columns have other names")
    schema = node.args.get("db")
    return (_name(schema) if schema else ""), _name(node.this), (_name(alias.this) if alias else "")


def _name(node: Any) -> str:
    """A name as the catalogue has it."""
    from sqlglot import exp

    if not isinstance(node, exp.Identifier) or not isinstance(node.this, str):
        raise NotReadError("a name is not written in a plain way")
    name = node.this if node.args.get("quoted") else node.this.lower()
    if not node.args.get("quoted") and name in _FUNCTIONS:
        raise NotReadError("a name is that of a function")
    if not name or len(name.encode()) > _LONGEST_NAME:
        raise NotReadError("a name is not written in a plain way")
    return name


def _equalities(condition: exp.Expr, table: str) -> Iterator[tuple[str, Term]]:
    """Columns and what they must equal for the condition to hold."""
    from sqlglot import exp

    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if isinstance(node, exp.Paren):
            waiting.append(node.this)
        elif isinstance(node, exp.And):
            waiting += (node.this, node.expression)
        elif isinstance(node, exp.EQ):
            yield from _equality(node, table)


def _equality(node: exp.EQ, table: str) -> Iterator[tuple[str, Term]]:
    from sqlglot import exp

    for column, value in ((node.this, node.expression), (node.expression, node.this)):
        if not isinstance(column, exp.Column) or column.args.get("db"):
            continue
        qualifier = column.args.get("table")
        term = _term(value)
        if term is not None and (qualifier is None or _name(qualifier) == table):
            yield _name(column.this), term


def _term(node: Any) -> Term | None:
    """A parameter or a constant, perhaps in brackets, perhaps cast."""
    from sqlglot import exp

    while isinstance(node, exp.Paren):
        node = node.this
    if type(node) is exp.Cast:
        kind, inner = node.args["to"], _term(node.this)
        if inner is None or inner.cast or kind.expressions or kind.args.get("nested"):
            return None
        return Term(inner.parameter, inner.constant, str(getattr(kind.this, "value", "")) or "?")
    if type(node) is exp.Parameter:
        number = node.this.this if isinstance(node.this, exp.Literal) else ""
        return Term(int(number) - 1) if number.isdigit() and int(number) > 0 else None
    return _constant(node)


def _constant(node: Any) -> Term | None:
    from sqlglot import exp

    if type(node) is exp.Boolean:
        return Term(constant=bool(node.this))
    sign = 1
    if type(node) is exp.Neg and isinstance(node.this, exp.Literal) and not node.this.is_string:
        node, sign = node.this, -1
    if type(node) is not exp.Literal:
        return None
    written = str(node.this)
    if node.is_string:
        return Term(constant=written)
    return Term(constant=sign * int(written)) if written.isdigit() and len(written) < 20 else None


def _assigned(tree: exp.Expr) -> Iterator[str]:
    """Columns that an UPDATE changes."""
    from sqlglot import exp

    for change in tree.expressions:
        if not isinstance(change, exp.EQ) or not isinstance(change.this, exp.Column):
            raise NotReadError("an assignment is not written in a plain way")
        yield _name(change.this.this)


def _insert(tree: exp.Expr) -> Statement:
    from sqlglot import exp

    values = tree.args.get("expression")
    rows = values.expressions if isinstance(values, exp.Values) and not values.args.get("alias") else []
    if len(rows) != 1 or not isinstance(rows[0], exp.Tuple):
        raise NotReadError("there is not exactly one row")
    row = tuple(_term(value) for value in rows[0].expressions)
    if not isinstance(tree.this, exp.Schema):
        schema, table, _ = _table(tree.this)
        return Statement(schema, table, {}, row)
    schema, table, _ = _table(tree.this.this)
    names = [_name(column) for column in tree.this.expressions]
    if len(names) != len(row) or len(set(names)) != len(names):
        raise NotReadError("columns and values do not match")
    return Statement(schema, table, {name: term for name, term in zip(names, row, strict=True) if term is not None})


# ── with the table ──────────────────────────────────────────────────────────────────────────────────────────


def bind(statement: Statement, table: TableFacts) -> StatementRoute:
    """The route of a statement over a table: keyed, a constant place, or not keyed."""
    if not table.key:
        return _not_keyed(table, "the table is not cut by hash codes")
    said = dict(statement.columns)
    if statement.row:
        said = {name: term for name, term in zip(table.columns, statement.row, strict=False) if term is not None}
    parts = []
    for column in table.key:
        term = said.get(column.name)
        if term is None or column.name in statement.touched:
            return _not_keyed(table, "not every hash column is named once, by a parameter or constant")
        part = _part(column, term)
        if part is None:
            return _not_keyed(table, "the code of a hash column's type or collation is not computed here")
        parts.append(part)
    return _keyed(table, tuple(parts))


def _keyed(table: TableFacts, parts: tuple[KeyPart, ...]) -> StatementRoute:
    constants = [part.literal for part in parts if part.literal is not None]
    if len(constants) == len(parts):
        return StatementRoute(RouteKind.CONSTANT, table.space, buckets=(hash_code(b"".join(constants)),))
    return StatementRoute(RouteKind.KEYED, table.space, (parts,))


def _part(column: KeyColumn, term: Term) -> KeyPart | None:
    known = YUGABYTE_KEY_HASH.forms(column.oid) and (column.bytewise or column.oid not in TEXTS)
    if not known or (term.cast and column.oid not in _HARMLESS_CASTS.get(term.cast, ())):
        return None
    if term.parameter is not None:
        return KeyPart(term.parameter, column.oid)
    encoded = _encoded_constant(column.oid, term.constant)
    return KeyPart(-1, column.oid, literal=encoded) if encoded is not None else None


def _encoded_constant(oid: int, constant: str | int | None) -> bytes | None:
    """The bytes of a constant, where its text leaves no doubt."""
    value: Any = constant
    if oid in INTEGERS:
        if isinstance(constant, str):
            value = int(constant) if constant.isascii() and constant.isdigit() and len(constant) < 20 else None
        elif type(constant) is not int:
            value = None
    elif oid == UUID_OID:
        value = _uuid(constant)
    elif oid == BOOL:
        value = constant if isinstance(constant, bool) else None
    elif oid not in TEXTS or oid == BPCHAR or not isinstance(constant, str):
        value = None
    return YUGABYTE_KEY_HASH.encoder(oid)(value)


def _uuid(constant: str | int | None) -> UUID | None:
    """A UUID in its usual form; there are others, which are left to the server."""
    if not isinstance(constant, str) or len(constant) != 36:
        return None
    try:
        found = UUID(constant)
    except ValueError:
        return None
    return found if str(found) == constant.lower() else None


def _not_keyed(table: TableFacts, reason: str) -> StatementRoute:
    return StatementRoute(RouteKind.NOT_KEYED, table.space, reason=reason)
