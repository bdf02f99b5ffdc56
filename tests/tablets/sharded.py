"""Several real PostgreSQL servers that say what the nodes of a YugabyteDB say about their tablets.

Each server stands for a node. All hold the same rows, as they would be seen through any node; what tells them apart is
which one a statement was sent to. Who leads what is a table, the same everywhere, that a test changes as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from picopyn.dialects.base import Capability, KeyHash
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte.key_hash import YUGABYTE_KEY_HASH
from picopyn.testing import PostgresServer
from picopyn.testing.yugabyte_sql import HASH_CODE

_OBJECTS = """
CREATE TABLE tablets (tablet_id text, oid oid, db_name text DEFAULT current_database(), relname text,
    start_hash_code int, end_hash_code int, leader text, tablet_state text DEFAULT 'RUNNING');
CREATE VIEW yb_tablet_metadata AS SELECT *, ARRAY[leader] AS replicas FROM tablets;
CREATE TABLE hashed (name regclass, columns bigint);
CREATE FUNCTION yb_table_properties(relation oid, OUT num_tablets bigint, OUT num_hash_key_columns bigint,
    OUT is_colocated bool) LANGUAGE sql STABLE AS
    'SELECT 1::bigint, columns, false FROM hashed WHERE name = relation';
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE pairs (a bigint, b text COLLATE "C", v int, PRIMARY KEY (a, b));
INSERT INTO hashed VALUES ('t', 1), ('pairs', 2);
"""
_CODES = 65536


@dataclass(frozen=True, slots=True)
class TabletDialect(PostgresDialect):
    """A PostgreSQL whose nodes have tablets, and nothing else of a YugabyteDB."""

    @property
    def name(self) -> str:
        return "postgres with tablets"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({*super(TabletDialect, self).capabilities, Capability.TABLETS})

    @property
    def key_hash(self) -> KeyHash:
        return YUGABYTE_KEY_HASH


class Sharded:
    """The servers.

    Args:
        servers: One per node; they are changed.

    Attributes:
        ports: The ports of the nodes; those of proxies before them, where a test puts some.
    """

    def __init__(self, servers: Sequence[PostgresServer]) -> None:
        self.servers = servers
        self.ports = [server.port for server in servers]
        self.admins: list[Any] = []

    async def prepare(self) -> None:
        """Make the objects, and give each node its share of the hash codes."""
        self.admins = [await asyncpg.connect(server.dsn) for server in self.servers]
        await self.everywhere("DROP SCHEMA public CASCADE; CREATE SCHEMA public;" + HASH_CODE + _OBJECTS)
        await self.lead(range(len(self.servers)))

    async def everywhere(self, sql: str, *args: Any) -> None:
        """Run a text on all nodes."""
        for admin in self.admins:
            await admin.execute(sql, *args)

    def address(self, node: int) -> str:
        """By what the cluster knows a node."""
        return f"127.0.0.1:{self.ports[node]}"

    async def lead(self, leaders: Sequence[int | None]) -> None:
        """Cut both tables into as many tablets as there are leaders, in their order; None leads nobody."""
        count = len(leaders)
        await self.everywhere("TRUNCATE tablets")
        for number, leader in enumerate(leaders):
            start, end = -(-number * _CODES // count), -(-(number + 1) * _CODES // count)
            address = "" if leader is None else self.address(leader)
            for table in ("t", "pairs"):
                await self.everywhere(
                    "INSERT INTO tablets VALUES ($1, $2::regclass, default, $2, $3, $4, $5)",
                    f"{table} {number}",
                    table,
                    start,
                    end,
                    address,
                )

    async def kept(self, text: str = "SELECT id FROM t") -> list[set[Any]]:
        """What each node got, by what a question finds there."""
        return [{row[0] for row in await admin.fetch(text)} for admin in self.admins]

    async def close(self) -> None:
        """Close the connections of this object."""
        for admin in self.admins:
            await admin.close()


def owner(encoded: bytes, count: int = 3) -> int:
    """Number of the node that leads a key while all lead their share in order."""
    return YUGABYTE_KEY_HASH.bucket(encoded) * count // _CODES


def keys_of(node: int, keys: Iterable[int] = range(1000)) -> list[int]:
    """Keys of table `t` that a node leads then."""
    return [key for key in keys if owner(key.to_bytes(4, "big")) == node]
