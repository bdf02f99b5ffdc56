"""The SQL objects by which a YugabyteDB tells about itself, over tables that a cluster of ours fills.

Decides what `yb_servers()`, `yb_tablet_metadata` and `yb_table_properties()` look like in each release. They lie in
`pg_catalog`, as at the original, so that nobody's `search_path` hides them.

*Source*: `yugabyte-smart-drivers.md` sections 1.1 (columns and since when), 7.4 (the view, its masks and its forms),
7.6 (when a read is done by followers, and how stale it is).
"""

from __future__ import annotations

from typing import Final

from picopyn.testing.yugabyte_sql import HASH_CODE

#: Columns of `yb_servers()`: those of 2.7, with `uuid` since 2.17, with `universe_uuid` since 2024.1.6.
SERVER_COLUMNS: Final = (8, 9, 10)

_COLUMNS: Final = (
    ("host", "text"),
    ("port", "bigint"),
    ("num_connections", "bigint"),
    ("node_type", "text"),
    ("cloud", "text"),
    ("region", "text"),
    ("zone", "text"),
    ("public_ip", "text"),
    ("uuid", "text"),
    ("universe_uuid", "text"),
)

TABLES: Final = """
CREATE SCHEMA picopyn_cluster;
GRANT USAGE ON SCHEMA picopyn_cluster TO public;
CREATE TABLE picopyn_cluster.servers (
    name text PRIMARY KEY, host text, port bigint, node_type text, cloud text, region text, zone text,
    public_ip text, uuid text, universe_uuid text, listed bool NOT NULL DEFAULT true, address inet);
CREATE TABLE picopyn_cluster.tablets (
    tablet_id text PRIMARY KEY, oid oid, db_name text, relname text, start_hash_code int, end_hash_code int,
    leader text, replicas text[]);
CREATE TABLE picopyn_cluster.hash_tables (oid oid PRIMARY KEY, columns bigint);
GRANT SELECT ON ALL TABLES IN SCHEMA picopyn_cluster TO public;
CREATE FUNCTION picopyn_cluster.follower_read() RETURNS int LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN coalesce(nullif(current_setting('yb.read_from_followers', true), ''), 'off')::bool
        AND current_setting('transaction_read_only')::bool
        THEN coalesce(nullif(current_setting('yb.follower_read_staleness_ms', true), ''), '30000')::int END
$$;
"""

#: Where a session is: all sessions come from the address of the node they go through. PostgreSQL looks built-in
#: functions up in a table of its own, so only what the planner puts in place of the call can stand for one.
_WHERE: Final = """
CREATE OR REPLACE FUNCTION pg_catalog.inet_server_addr() RETURNS inet LANGUAGE sql STABLE
    AS 'SELECT inet_client_addr()';
CREATE OR REPLACE FUNCTION pg_catalog.inet_server_port() RETURNS int LANGUAGE sql STABLE AS 'SELECT {port}';
"""

#: A node lists its own sessions only. Whoever comes through no node sees all of them.
_SESSIONS: Final = """
DO $$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW pg_catalog.pg_stat_activity AS SELECT * FROM ('
    || rtrim(pg_get_viewdef('pg_catalog.pg_stat_activity'::regclass), ';') || ') AS everywhere
    WHERE client_addr IS NULL OR client_addr = inet_client_addr()
    OR NOT EXISTS (SELECT FROM picopyn_cluster.servers WHERE address = inet_client_addr())';
END $$;
"""

_HERE: Final = """
CREATE FUNCTION pg_catalog.yb_server_{what}() RETURNS text LANGUAGE sql STABLE
    AS 'SELECT {what} FROM picopyn_cluster.servers WHERE address = inet_client_addr()';
"""

_TABLETS: Final = """
CREATE VIEW pg_catalog.yb_tablet_metadata AS
    SELECT tablet_id, oid, db_name, {relname} AS relname, start_hash_code, end_hash_code, leader, replicas{more}
    FROM picopyn_cluster.tablets;
GRANT SELECT ON pg_catalog.yb_tablet_metadata TO public;
"""

_MASKED: Final = "CASE WHEN has_table_privilege(oid, 'SELECT') THEN relname ELSE '<insufficient privilege>' END"

_PROPERTIES: Final = """
CREATE FUNCTION pg_catalog.yb_table_properties(relation oid, OUT num_tablets bigint, OUT num_hash_key_columns bigint,
    OUT is_colocated bool, OUT tablegroup_oid oid, OUT colocation_id oid) LANGUAGE sql STABLE AS
$$ SELECT (SELECT count(*) FROM picopyn_cluster.tablets t WHERE t.oid = h.oid), h.columns, false, NULL::oid, NULL::oid
   FROM picopyn_cluster.hash_tables h WHERE h.oid = relation $$;
"""

_CODE: Final = f"SET search_path = pg_catalog; {HASH_CODE}; RESET search_path;"


def objects(port: int, columns: int, tablets: str | None) -> str:
    """The text that makes them.

    Args:
        port: The port of every node.
        columns: How many columns `yb_servers()` has, one of `SERVER_COLUMNS`.
        tablets: Form of `yb_tablet_metadata`: `"old"`, `"new"` (with masks and a state), or None where there is none.
    """
    shown = _COLUMNS[:columns]
    types = ", ".join(f"{name} {kind}" for name, kind in shown)
    values = ", ".join("0::bigint" if name == "num_connections" else name for name, _ in shown)
    servers = (
        f"CREATE FUNCTION pg_catalog.yb_servers() RETURNS TABLE ({types}) LANGUAGE sql VOLATILE AS "
        f"$$ SELECT {values} FROM picopyn_cluster.servers WHERE listed ORDER BY servers.name $$;"
    )
    view = ""
    if tablets is not None:
        new = tablets == "new"
        more = ", '{}'::json AS tablet_attrs, 'RUNNING'::text AS tablet_state" if new else ""
        view = _TABLETS.format(relname=_MASKED if new else "relname", more=more) + _PROPERTIES
    here = "".join(_HERE.format(what=what) for what in ("cloud", "region", "zone"))
    return _WHERE.format(port=port) + _SESSIONS + here + servers + view + _CODE


def literal(value: str | None) -> str:
    """A text as SQL."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"
