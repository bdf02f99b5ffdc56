"""The one server all clients are measured against: a plain PostgreSQL on one core, with the tables they need."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from benchmarks import machine
from picopyn.testing import PostgresServer

_SETTINGS = {
    "shared_buffers": "256MB",
    "max_connections": "300",
    "synchronous_commit": "off",
    "jit": "off",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
}
_TABLES = """
CREATE TABLE bench (id bigint PRIMARY KEY, v text);
INSERT INTO bench SELECT i, 'value-' || i || repeat('x', 24) FROM generate_series(0, 99999) i;
CREATE TABLE written (id bigint, v text);
"""
#: What the published picopyn asks for: one instance that owns every bucket of one tier.
_PUBLISHED_TABLES = """
CREATE TABLE _pico_instance (name text, uuid text, replicaset_name text, raft_id int, current_state text);
CREATE TABLE _pico_replicaset (name text, uuid text, tier text, current_master_name text);
CREATE TABLE _pico_peer_address (raft_id int, address text, connection_type text);
CREATE TABLE _pico_tier (name text, bucket_count int);
INSERT INTO _pico_instance VALUES ('i1', 'u1', 'r1', 1, '["Online", 1]');
INSERT INTO _pico_replicaset VALUES ('r1', 'ru1', 'default', 'i1');
INSERT INTO _pico_tier VALUES ('default', 3000);
INSERT INTO _pico_peer_address VALUES (1, '127.0.0.1:{port}', 'pgproto');
CREATE FUNCTION _pico_bucket(tier text) RETURNS text LANGUAGE sql AS $$
  SELECT '[{{"bucket_id_start": 1, "bucket_id_end": 3000, "state": "active", "tier_name": "default",
             "current_replicaset_uuid": "ru1", "target_replicaset_uuid": "ru1"}}]' $$;
"""


@dataclass(frozen=True)
class BenchServer:
    """The running server.

    Attributes:
        dsn: How to connect.
        port: Its port.
        hosts: Its addresses, one per node.
        core: The core it is bound to; None when it is not.
        version: What it says it is.
    """

    dsn: str
    port: int
    hosts: tuple[str, ...]
    core: int | None
    version: str

    def pids(self) -> list[int]:
        """Its processes as of now."""
        return [row[0] for row in self.ask("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")]

    def empty(self) -> None:
        """Take away what was written."""
        self.ask("TRUNCATE written")

    def ask(self, *statements: str) -> list[Any]:
        """Run statements on a connection of their own; rows of the last one."""
        return asyncio.run(_ask(self.dsn, statements))


async def _ask(dsn: str, statements: tuple[str, ...]) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        rows: list[Any] = []
        for statement in statements:
            rows = await connection.fetch(statement) if statement.startswith("SELECT") else []
            if not statement.startswith("SELECT"):
                await connection.execute(statement)
        return rows
    finally:
        await connection.close()


@contextmanager
def bench_server(nodes: int = 1) -> Iterator[BenchServer]:
    """Start it, bound to the last core if there are at least two, with its tables filled."""
    hosts = tuple(f"127.0.0.{number}" for number in range(1, nodes + 1))
    core = machine.cores()[-1] if machine.can_pin() and len(machine.cores()) > 1 else None
    with _bound_to(core):
        server = PostgresServer(port=0, settings={**_SETTINGS, "listen_addresses": ",".join(hosts)})
        server.start()
    try:
        port = server.port or 0
        found = BenchServer(server.dsn, port, hosts, core, "")
        version = found.ask(_TABLES, _PUBLISHED_TABLES.format(port=port), "VACUUM ANALYZE bench", "SELECT version()")
        yield BenchServer(server.dsn, port, hosts, core, " ".join(version[0][0].split()[:2]))
    finally:
        server.stop()


@contextmanager
def _bound_to(core: int | None) -> Iterator[None]:
    """Children inherit the core; afterwards this process may use all again."""
    before = machine.cores()
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        if core is not None:
            os.sched_setaffinity(0, set(before))
