"""The key of a table: the questions, and what their answers say.

The catalogue says it outright, where it may be read. Everybody who may read the table itself can have its columns from
an EXPLAIN, and then learn which of them form the key as for any other statement.

*Source*: `picodata-protocol.md` section 1 (`_pico_table`), recorded rows and EXPLAINs of 25.6.0, 26.1.6 and 26.2.1-rc2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from picopyn.dialects.base import TableKey

#: Every user with a grant may ask; the parameter is the name as the server keeps it.
QUESTION: Final = "SELECT distribution, format FROM _pico_table WHERE name = $1"

#: Types of columns as the catalogue and EXPLAIN call them → OIDs of their parameters.
#: *Source*: `picodata-protocol.md` section 7.
_OIDS: Final[Mapping[str, int]] = {
    "boolean": 16,
    "bool": 16,
    "integer": 20,
    "int": 20,
    "unsigned": 20,
    "string": 25,
    "text": 25,
    "double": 701,
    "datetime": 1184,
    "decimal": 1700,
    "uuid": 2950,
}
#: `"t"."id"::int -> "id"`, since 26.2 without quotes.
_COLUMN: Final = re.compile(r'::(?P<type>\w+) -> (?:"(?P<quoted>[^"]+)"|(?P<plain>\w+))(?=[,)])')


def read_key(row: Sequence[Any]) -> TableKey | None:
    """What the catalogue says about a table.

    Args:
        row: The row that answers `QUESTION`.

    Returns:
        The key; without columns for a table that is on every node; None when it cannot be read.
    """
    try:
        distribution, columns = (json.loads(cell) if isinstance(cell, str) else cell for cell in row)
        if "Global" in distribution:
            return TableKey("", ())
        names, _, tier = distribution["ShardedImplicitly"]
        types = {column["name"]: _OIDS[column["field_type"]] for column in columns if column["field_type"] in _OIDS}
        return TableKey(tier, tuple((name, types[name]) for name in names))
    except (KeyError, TypeError, ValueError):
        return None


def columns_question(table: str) -> str:
    """The text whose answer names the columns of a table; nothing is executed."""
    return f"EXPLAIN SELECT * FROM {_quoted(table)}"


def read_columns(rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, int], ...]:
    """The columns that an EXPLAIN names and that may be part of a key, with the OIDs of their types."""
    for row in rows:
        if isinstance(row[0], str) and row[0].startswith("projection ("):
            found = ((match["quoted"] or match["plain"], match["type"]) for match in _COLUMN.finditer(row[0]))
            return tuple((name, _OIDS[kind]) for name, kind in found if kind in _OIDS)
    return ()


def select_by(table: str, columns: Sequence[tuple[str, int]]) -> str:
    """A query of one row by these columns, each a parameter; it is learned like any other."""
    conditions = " AND ".join(f"{_quoted(name)} = ${number}" for number, (name, _) in enumerate(columns, 1))
    return f"SELECT 1 FROM {_quoted(table)} WHERE {conditions}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
