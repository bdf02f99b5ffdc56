"""Picodata as a value: what its connections are opened with, what its texts mean, how keys become buckets.

This room knows the server's words. It opens no connection and runs no statement; discovery is in
[`discovery`][picopyn.dialects.picodata.discovery].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from picopyn.dialects.base import BucketAnswer, Capability, KeyHash, Purpose, StatementNotice, TableKeys
from picopyn.dialects.picodata import explain, faults, notices, plans, statements, table_keys
from picopyn.errors import Fault
from picopyn.query_plan import QueryPlan

__all__ = ["PicodataDialect"]

_INVALIDATION = {"pico_stmt_invalidation": "true"}

#: `pico_*` are start-up keys of their own, the others travel inside `options`. Booleans are exactly `true`:
#: any other spelling closes the socket without a word.
#: *Source*: Picodata, `src/pgproto/client/startup.rs` (26.1.6); older servers ignore these keys.
_STARTUP: Mapping[Purpose, Mapping[str, str]] = {
    Purpose.PLAIN: _INVALIDATION,
    Purpose.REPLICA_READ: {"options": "read_preference=any", **_INVALIDATION},
    Purpose.STRICT: {"options": "forward=off", **_INVALIDATION},  # 26.1 and older ignore it (recorded)
    Purpose.TOPOLOGY: {},
    # Planned, version 1 of it: every server until now ignores it, as it does any key it does not know.
    # *Source*: `doc/adr/2025-09-12-pgproto-topology-notifications.md`.
    Purpose.TOPOLOGY_NEWS: {"picodata_catalog_cdc": "1"},
    Purpose.METADATA: {"pico_query_metadata": "true", **_INVALIDATION},
    Purpose.LEADER_QUESTION: {"options": "sql_vdbe_opcode_max=1"},
    Purpose.PROBE: {},
}


#: Year and number of a version, like "26.1.6-0-g1a2b3c4"; since 26.2 with a word before it.
_VERSION: Final = re.compile(r"(?:picodata )?(\d+)\.(\d+)\.")
#: The first one that executes by itself what concerns only its own rows.
_EXECUTES_ALONE: Final = (26, 1)


@dataclass(frozen=True, slots=True)
class PicodataDialect:
    """The dialect of Picodata 25.6 and later.

    Attributes:
        startup: Whether connections are opened with Picodata's start-up options; False for benchmarks against
            a plain PostgreSQL, which refuses them.
    """

    startup: bool = True

    @property
    def name(self) -> str:
        """`"picodata"`."""
        return "picodata"

    @property
    def default_port(self) -> int:
        """Picodata's default port for PostgreSQL clients."""
        return 4327

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Sharded; forwards, but hangs while a leader is dead; SELECT has no effect."""
        return _CAPABILITIES

    @property
    def key_hash(self) -> KeyHash:
        """How Picodata turns a key into a bucket."""
        from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH

        return PICODATA_KEY_HASH

    @property
    def table_keys(self) -> TableKeys:
        """How the key of a table is asked for."""
        return table_keys

    @property
    def probe_question(self) -> str:
        """Planned but not executed, so it is answered although every place for running statements is taken.

        *Source*: recorded with 26.1.6, `picodata-recorded.md` section 1.
        """
        return "EXPLAIN SELECT 1"

    def startup_options(self, purpose: Purpose) -> Mapping[str, str]:
        """Start-up keys of a connection for this purpose; read only."""
        return MappingProxyType(_STARTUP[purpose]) if self.startup else MappingProxyType({})

    def fault(self, sqlstate: str | None, message: str) -> Fault:
        """What a server's error means; `faults.read_fault` says how far the promise goes."""
        return faults.fault(sqlstate, message)

    def is_partial(self, sqlstate: str | None, message: str) -> bool:
        """Whether the error speaks only of the part of the statement that was forwarded to one replicaset."""
        return not faults.read_fault(sqlstate, message).whole

    def leaves_open(self, sqlstate: str | None, message: str, *, commit: bool) -> bool:
        """Never for a statement of one owner; see `is_partial` for others."""
        return False

    def only_reads(self, sqlstate: str | None) -> bool:
        """Never: a replica sends a write on to its leader."""
        return False

    @property
    def outcome_questions(self) -> tuple[str, str] | None:
        """None: there are no transactions."""
        return None

    def parse_notice(self, text: str) -> StatementNotice | None:
        """The statement metadata in a notice, or None when it is another notice."""
        return notices.read_notice(text)

    def is_read(self, sql: str) -> bool:
        """Whether the text only reads."""
        return statements.is_read(sql)

    def executes_alone(self, version: str) -> bool:
        """Whether what concerns only an instance's own rows is executed there, without waiting for other leaders.

        *Source*: `picodata-protocol.md`, table of versions (the local path came with 26.1.0); `picodata-recorded.md`
        section 1 (on 25.6, with one leader dead, everything on sharded tables hangs).
        """
        found = _VERSION.match(version)
        return found is None or (int(found[1]), int(found[2])) >= _EXECUTES_ALONE

    def never_hangs(self, sql: str) -> bool:
        """Whether any live instance answers the text by itself."""
        return statements.never_hangs(sql)

    def can_be_asked(self, sql: str) -> bool:
        """Whether asking for the buckets of this text is worth it and harmless."""
        return statements.can_be_asked(sql)

    def bucket_question(self, sql: str) -> str:
        """The EXPLAIN of the text: same parameters, not executed, answered even while a leader is dead."""
        return f"EXPLAIN {sql}"

    def read_bucket_answer(self, rows: Sequence[Sequence[Any]]) -> BucketAnswer | None:
        """The buckets an EXPLAIN named; None when it cannot be read."""
        return explain.read_buckets(rows)

    def plan_question(self, sql: str) -> str:
        """The EXPLAIN of the text."""
        return f"EXPLAIN {sql}"

    def read_plan(self, rows: Sequence[Sequence[Any]]) -> QueryPlan:
        """The plan in an EXPLAIN, in the layouts of 25.6, 26.1 and 26.2."""
        return plans.read_plan(rows)


_CAPABILITIES = frozenset(
    {
        Capability.SHARDED,
        Capability.FORWARDING_NEEDS_EVERY_LEADER,
        Capability.SELECTS_HAVE_NO_EFFECT,
        Capability.STRICT_CONNECTIONS,
    }
)
