"""The `_pico_*` tables every instance has: their columns in the order in which `SELECT *` gives them on
26.1.6.

*Source*: the recorded RowDescriptions; the columns of tables that were not selected with `*` from
`picodata-protocol.md` section 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from picopyn.testing.picodata.planner.catalog import Column, Table

_COLUMNS = {
    "_pico_instance": """name text, uuid text, raft_id int, replicaset_name text, replicaset_uuid text,
        current_state json, target_state json, failure_domain json, tier text, picodata_version text,
        sync_incarnation int, target_state_reason text, target_state_change_time datetime""",
    "_pico_replicaset": """name text, uuid text, current_master_name text, target_master_name text, tier text,
        weight double, weight_origin text, state text, current_config_version int, target_config_version int,
        promotion_vclock json, master_change_counter int, current_bucket_state_version int,
        target_bucket_state_version int""",
    "_pico_peer_address": "raft_id int, address text, connection_type text",
    "_pico_tier": """name text, replication_factor int, can_vote bool, current_vshard_config_version int,
        target_vshard_config_version int, vshard_bootstrapped bool, bucket_count int, is_default bool,
        current_bucket_state_version int, target_bucket_state_version int""",
    "_pico_bucket": """tier_name text, bucket_id_start int, bucket_id_end int, state text,
        current_replicaset_name text, target_replicaset_name text""",
    "_pico_table": """id int, name text, distribution json, format json, schema_version int, operable bool,
        engine text, owner int, description text, opts json""",
    "_pico_property": "key text, value json",
    "_pico_db_config": "key text, scope text, value json",
}


def _table(name: str, columns: str) -> Table:
    pairs = (part.split() for part in columns.split(","))
    return Table(name, tuple(Column(column, kind) for column, kind in pairs), (), system=True)


#: System tables by name.
SYSTEM_TABLES: Mapping[str, Table] = {name: _table(name, columns) for name, columns in _COLUMNS.items()}
