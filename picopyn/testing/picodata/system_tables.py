"""The system tables and functions of the embedded cluster, as relations and functions of the storage.

Decides their columns and their rows. Must not know who asks: privileges are checked before, and functions
that answer for the instance asked read the session setting `picopyn.instance`.

*Source*: `picodata-protocol.md` sections 1 and 2; column lists as recorded on 26.1.6 (section "simple").
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.model import Instance, Range
from picopyn.testing.picodata.planner.accent import Accent
from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.storage_names import SCHEMA, create_table_text, relation
from picopyn.testing.picodata.planner.system_tables import SYSTEM_TABLES
from picopyn.testing.picodata.storage import Storage
from picopyn.testing.picodata.users import ADMIN

_FIRST_ID = 512
_FUNCTIONS = f"""
CREATE TABLE {SCHEMA}._views (instance text, tier text, answer json, fault text, PRIMARY KEY (instance,
tier)); CREATE FUNCTION {SCHEMA}._pico_bucket(tier_name text) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE shown record;
BEGIN
  IF tier_name IS NULL THEN
    RAISE EXCEPTION '_pico_bucket: tier name is null';
  END IF;
  SELECT answer, fault INTO shown FROM {SCHEMA}._views
    WHERE instance = current_setting('picopyn.instance') AND tier = tier_name;
  IF NOT FOUND THEN
    RAISE EXCEPTION '_pico_bucket: tier ''%'' doesn''t exist', tier_name;
  END IF;
  IF shown.fault IS NOT NULL THEN
    RAISE EXCEPTION '_pico_bucket: %', shown.fault;
  END IF;
  RETURN shown.answer;
END $$;
CREATE FUNCTION {SCHEMA}.pico_instance_uuid() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT uuid FROM {SCHEMA}._pico_instance WHERE name = current_setting('picopyn.instance') $$;
CREATE FUNCTION {SCHEMA}.pico_instance_name(wanted text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT name FROM {SCHEMA}._pico_instance WHERE uuid = wanted $$;
CREATE FUNCTION {SCHEMA}.pico_replicaset_name(wanted text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT replicaset_name FROM {SCHEMA}._pico_instance WHERE uuid = wanted $$;
CREATE FUNCTION {SCHEMA}.pico_tier_name(wanted text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT tier FROM {SCHEMA}._pico_instance WHERE uuid = wanted $$;
CREATE FUNCTION {SCHEMA}.pico_raft_leader_id() RETURNS int8 LANGUAGE sql STABLE AS $$
  SELECT min(raft_id) FROM {SCHEMA}._pico_instance WHERE current_state ->> 0 = 'Online' $$;
CREATE FUNCTION {SCHEMA}.pico_raft_leader_uuid() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT uuid FROM {SCHEMA}._pico_instance WHERE raft_id = {SCHEMA}.pico_raft_leader_id() $$;
"""


def _version_function(accent: Accent) -> str:
    """26.2 says whose version it is, 26.1 does not (recorded)."""
    text = "picodata " * accent.since_26_2 + accent.version_text
    return f"CREATE FUNCTION {SCHEMA}.version() RETURNS text LANGUAGE sql STABLE AS $$ SELECT '{text}'::text $$"


async def create(storage: Storage, accent: Accent) -> None:
    """Make every relation and function, all empty."""
    tables = ";".join(create_table_text(table) for table in SYSTEM_TABLES.values())
    script = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}; {tables}; {_FUNCTIONS}; {_version_function(accent)}"

    async def use(connection: Any) -> None:
        await connection.execute(script)

    await storage.run("", use)


class Publisher:
    """Writes the cluster's state into the system tables, then calls `published`. Owner: the server process."""

    def __init__(self, cluster: Cluster, storage: Storage, published: Callable[[], None]) -> None:
        self._published = published
        self._cluster = cluster
        self._storage = storage
        self._producers: dict[str, Callable[[Cluster], list[dict[str, Any]]]] = {
            "_pico_instance": _instances,
            "_pico_replicaset": _replicasets,
            "_pico_peer_address": _addresses,
            "_pico_tier": _tiers,
            "_pico_table": _tables,
            "_pico_property": _properties,
            "_pico_db_config": _settings,
            "_views": _views,
        }
        self._shown: dict[str, str] = {}
        self._lock = asyncio.Lock()

    async def publish(self) -> None:
        """Make the system tables show what is true now; tables that do not change are left alone."""
        async with self._lock:
            fresh = {name: _compact(produce(self._cluster)) for name, produce in self._producers.items()}
            changed = {name: text for name, text in fresh.items() if self._shown.get(name) != text}
            if changed:
                await self._write(changed)
                self._shown |= changed
            self._published()

    async def _write(self, tables: dict[str, str]) -> None:
        async def use(connection: Any) -> None:
            async with connection.transaction():
                for name, text in tables.items():
                    place = relation(name)
                    await connection.execute(f"DELETE FROM {place}")
                    rows = f"INSERT INTO {place} SELECT * FROM json_populate_recordset(NULL::{place}, $1)"
                    await connection.execute(rows, text)

        await self._storage.run("", use)


def _compact(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, separators=(",", ":"))


def _instances(cluster: Cluster) -> list[dict[str, Any]]:
    return [_instance(cluster, item) for item in cluster.instances.values()]


def _instance(cluster: Cluster, item: Instance) -> dict[str, Any]:
    return {
        "name": item.name,
        "uuid": item.uuid,
        "raft_id": item.raft_id,
        "replicaset_name": item.replicaset,
        "replicaset_uuid": cluster.replicasets[item.replicaset].uuid,
        "current_state": [item.current.variant, item.current.incarnation],
        "target_state": [item.target.variant, item.target.incarnation],
        "failure_domain": {},
        "tier": item.tier,
        "picodata_version": cluster.accent.version_text,
        "sync_incarnation": item.current.incarnation,
        "target_state_reason": item.reason,
        "target_state_change_time": item.changed.isoformat(),
    }


def _replicasets(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "uuid": item.uuid,
            "current_master_name": item.current_master,
            "target_master_name": item.target_master,
            "tier": item.tier,
            "weight": 1.0,
            "weight_origin": "auto",
            "state": item.state,
            "current_config_version": item.config_version,
            "target_config_version": item.config_version,
            "promotion_vclock": {"1": 100 + item.master_changes},
            "master_change_counter": item.master_changes,
            "current_bucket_state_version": 0,
            "target_bucket_state_version": 0,
        }
        for item in cluster.replicasets.values()
    ]


def _addresses(cluster: Cluster) -> list[dict[str, Any]]:
    """The `http` and `iproto` addresses lead nowhere: drivers must not take them.

    25.6 has none for `http` (recorded).
    """
    return [
        {"raft_id": item.raft_id, "address": address, "connection_type": kind}
        for item in cluster.instances.values()
        for kind, address in (
            ("http", f"{item.address.host}:{5000 + item.raft_id}"),
            ("iproto", f"{item.address.host}:{3300 + item.raft_id}"),
            ("pgproto", str(item.address)),
        )
        if kind != "http" or not cluster.accent.before_26_1
    ]


def _tiers(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "replication_factor": item.replication,
            "can_vote": True,
            "current_vshard_config_version": item.vshard_version,
            "target_vshard_config_version": item.vshard_version,
            "vshard_bootstrapped": item.bucket_count > 0,
            "bucket_count": item.bucket_count,
            "is_default": item.name == cluster.catalog.default_tier,
            "current_bucket_state_version": 0,
            "target_bucket_state_version": 0,
        }
        for item in cluster.tiers.values()
    ]


_FIELD_TYPES = {"int": "integer", "text": "string", "bool": "boolean", "json": "any"}


def _tables(cluster: Cluster) -> list[dict[str, Any]]:
    system = [_table(table, _FIRST_ID + number) for number, table in enumerate(SYSTEM_TABLES.values())]
    return system + [_table(table, cluster.table_id(table.name)) for table in cluster.catalog.tables.values()]


def _table(table: Table, number: int) -> dict[str, Any]:
    fields = [
        {
            "name": column.name,
            "field_type": "unsigned" if column.name == "bucket_id" else _FIELD_TYPES.get(column.type, column.type),
            "is_nullable": column.nullable,
        }
        for column in table.format
    ]
    sharded = {"ShardedImplicitly": [list(table.distribution or ()), "murmur3", table.tier]}
    return {
        "id": number,
        "name": table.name,
        "distribution": sharded if table.sharded else {"Global": None},
        "format": fields,
        "schema_version": table.version,
        "operable": True,
        "engine": table.engine,
        "owner": 1 if table.owner == ADMIN else 33,
        "description": "",
        "opts": [],
    }


def _properties(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {"key": "cluster_uuid", "value": cluster.uuid},
        {"key": "cluster_version", "value": cluster.accent.version_text.partition("-")[0]},
        {"key": "global_schema_version", "value": cluster.catalog.version},
    ]


def _settings(cluster: Cluster) -> list[dict[str, Any]]:
    values = {
        "governor_auto_offline_timeout": cluster.settings.auto_offline_timeout,
        "sql_motion_row_max": cluster.settings.motion_row_max,
        "sql_vdbe_opcode_max": cluster.settings.vdbe_opcode_max,
        "sql_runtime_concurrency_max": cluster.shape.concurrency,
    }
    return [{"key": key, "scope": "", "value": value} for key, value in values.items()]


def _views(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {
            "instance": instance.name,
            "tier": tier.name,
            "answer": [_range(cluster, tier.name, item) for item in view.ranges],
            "fault": _fault(view.lost),
        }
        for instance in cluster.instances.values()
        for tier in cluster.tiers.values()
        if tier.bucket_count and instance.routes
        for view in [cluster.views.of(instance.name, tier.name)]
    ]


def _fault(lost: int | None) -> str | None:
    return None if lost is None else f"Bucket {lost} cannot be found. Is rebalancing in progress?"


def _range(cluster: Cluster, tier: str, item: Range) -> dict[str, Any]:
    owner = cluster.replicasets[item.replicaset].uuid
    return {
        "bucket_id_start": item.first,
        "target_replicaset_uuid": owner,
        "tier_name": tier,
        "state": "active",
        "current_replicaset_uuid": owner,
        "bucket_id_end": item.last,
    }
