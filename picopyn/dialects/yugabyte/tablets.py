"""What YugabyteDB is asked about tables and their tablets, and how the answers are read.

Columns are named, and only those that the release has; a row that makes no sense is left out. Which table a row belongs
to is said by an OID, whose meaning differs by release, and by a name, which users without rights do not see.

*Source*: yugabyte-smart-drivers.md section 7.4 (`yb_tablet_metadata` with its traps, `yb_table_properties`, the recipe
for hash columns).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

from picopyn.dialects.yugabyte.hash_code import HASH_CODES
from picopyn.topology.host_text import canonical
from picopyn.topology.tablet_map import Tablet, TabletMap

#: Which columns the view has: none where the release has no such view.
COLUMNS_QUESTION: Final = (
    "SELECT attname::text AS name FROM pg_attribute "
    "WHERE attrelid = to_regclass('yb_tablet_metadata') AND attnum > 0 AND NOT attisdropped"
)

_NEEDED: Final = ("tablet_id", "oid", "db_name", "relname", "start_hash_code", "end_hash_code", "leader")
#: What stands in place of a name that the user may not see.
_MASKED: Final = "<insufficient privilege>"

#: All columns of one table, in order, and their places in the primary key. `$1` is the name as SQL, looked up as in any
#: statement. A partitioned table, a view, and one with rules or children is no place of its own.
TABLE_QUESTION: Final = """
SELECT c.oid::bigint AS oid, c.relfilenode::bigint AS file, n.nspname::text AS schema, c.relname::text AS name,
    c.relkind = 'r' AND NOT c.relhasrules AND NOT c.relhassubclass AS plain,
    p.num_hash_key_columns::int AS hashed, coalesce(p.is_colocated, false) AS colocated,
    a.attname::text AS column, a.atttypid::bigint AS type, k.place::int AS place,
    CASE WHEN a.attcollation = 0 THEN true
        WHEN l.collprovider = 'd' THEN d.datcollate IN ('C', 'POSIX')
            AND coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c'
        ELSE l.collprovider = 'c' AND l.collcollate IN ('C', 'POSIX') END AS bytewise
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_database d ON d.datname = current_database()
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation l ON l.oid = a.attcollation
LEFT JOIN LATERAL yb_table_properties(c.oid) p ON true
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
LEFT JOIN LATERAL (
    SELECT place FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u (number, place) WHERE u.number = a.attnum
) k ON true
WHERE c.oid = to_regclass($1)
ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One hash column.

    Attributes:
        name: Its name.
        oid: Its type.
        bytewise: Its values are hashed as they are: no collation reorders them.
    """

    name: str
    oid: int
    bytewise: bool = True


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a statement's key needs to know of a table.

    Attributes:
        oid: Its identity.
        file: The number of its storage; another one after a rewrite.
        schema: Where it lies.
        name: Its name.
        columns: Names of all columns, in order.
        key: The hash columns, in the order of the key; empty for a table that is not cut by hash codes.
    """

    oid: int
    file: int
    schema: str
    name: str
    columns: tuple[str, ...]
    key: tuple[KeyColumn, ...] = ()

    @property
    def space(self) -> str:
        """The name under which its tablets are known."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TabletRow:
    """One row of the view.

    Attributes:
        oid: Says which table; see `belongs`.
        name: Name of the table; empty where it is masked.
        tablet: The tablet.
    """

    oid: int
    name: str
    tablet: Tablet


def tablets_question(columns: Iterable[str]) -> str | None:
    """The text that asks for all tablets of the database; None for a release that cannot be asked."""
    known = set(columns)
    if not known.issuperset(_NEEDED):
        return None
    running = " AND tablet_state = 'RUNNING'" if "tablet_state" in known else ""
    copies = ", array_to_string(replicas, ',') AS replicas" if "replicas" in known else ""
    return (
        f"SELECT tablet_id, oid::bigint AS oid, relname, start_hash_code, end_hash_code, leader{copies} "
        "FROM yb_tablet_metadata "
        f"WHERE db_name = current_database() AND start_hash_code IS NOT NULL{running}"
    )


def read_tablets(rows: Iterable[Mapping[str, Any]]) -> tuple[TabletRow, ...]:
    """Read the answer; one row per tablet and table, those that make no sense left out."""
    found = {}
    for row in rows:
        read = _tablet(row)
        if read is not None:
            found[row["tablet_id"], read.oid, read.name] = read
    return tuple(found.values())


def _tablet(row: Mapping[str, Any]) -> TabletRow | None:
    start, end, oid, name = row["start_hash_code"], row["end_hash_code"], row["oid"], row["relname"]
    if not (type(start) is int and type(end) is int and type(oid) is int and 0 <= start < end <= HASH_CODES):
        return None
    shown = name if isinstance(name, str) and name != _MASKED else ""
    return TabletRow(oid, shown, Tablet(start, end, _address(row["leader"]), _addresses(row.get("replicas"))))


def _addresses(replicas: Any) -> str:
    """Each `host:port` without brackets, in one order, with commas between them."""
    if not isinstance(replicas, str):
        return ""
    return intern(",".join(sorted(filter(None, map(_address, replicas.split(","))))))


def _address(leader: Any) -> str:
    """`host:port` as addresses are compared, without brackets; empty where there is none, as during an election."""
    if not isinstance(leader, str):
        return ""
    host, colon, port = leader.strip().rpartition(":")
    return f"{canonical(host)}:{port}" if colon and host and port.isascii() and port.isdigit() else ""


def read_table(rows: Sequence[Mapping[str, Any]]) -> TableFacts | None:
    """Read the answer to `TABLE_QUESTION`; None when there is no such table."""
    if not rows:
        return None
    first = rows[0]
    columns = tuple(row["column"] for row in rows)
    facts = (first["oid"], first["file"], first["schema"], first["name"], columns)
    hashed = first["hashed"] or 0
    if not first["plain"] or first["colocated"] or hashed < 1:
        return TableFacts(*facts)
    places = {row["place"]: row for row in rows if row["place"] is not None}
    if any(place not in places for place in range(1, hashed + 1)):
        return TableFacts(*facts)
    key = (places[place] for place in range(1, hashed + 1))
    return TableFacts(*facts, tuple(KeyColumn(row["column"], row["type"], bool(row["bytewise"])) for row in key))


def tablets_of(table: TableFacts, rows: Iterable[TabletRow]) -> list[Tablet]:
    """The tablets of a table.

    Newer releases give its OID; older ones the number of its storage, which is another one after a rewrite, and may be
    somebody else's OID. A name that is shown must be right as well.
    """
    named = [row for row in rows if row.name in ("", table.name)]
    own = [row.tablet for row in named if row.oid == table.oid]
    return own or [row.tablet for row in named if row.oid == table.file]


def tablet_map(tables: Iterable[TableFacts], rows: Sequence[TabletRow]) -> TabletMap:
    """The map of those tables that are cut by hash codes."""
    by_oid: dict[int, list[TabletRow]] = {}
    for row in rows:
        by_oid.setdefault(row.oid, []).append(row)
    found = {}
    for table in tables:
        if table.key:
            candidates = by_oid.get(table.oid, []) + (by_oid.get(table.file, []) if table.file != table.oid else [])
            found[table.space] = tablets_of(table, candidates)
    return TabletMap.of(found)


#: Which nodes there are, to tell which of them a leader's address means.
NAMES_QUESTION: Final = "SELECT * FROM yb_servers()"


def read_names(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Uuid of each node by the `host:port` under which the cluster knows it; nothing where the release tells none."""
    names = {}
    for row in rows:
        host, port, uuid = row.get("host"), row.get("port"), row.get("uuid")
        address = _address(f"{host}:{port}") if host else ""
        if address and isinstance(uuid, str) and uuid:
            names[address] = uuid
    return names
