"""YugabyteDB's YSQL as a value: a PostgreSQL whose nodes list each other.

This room knows SQLSTATEs, SQL texts and rows. Where calls go is decided in `routing.placement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from picopyn.dialects.base import Capability, KeyHash, Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte import faults
from picopyn.dialects.yugabyte.key_hash import YUGABYTE_KEY_HASH
from picopyn.errors import Fault

__all__ = ["YugabyteDialect"]

_CAPABILITIES: Final = frozenset(
    {
        Capability.TRANSACTIONS,
        Capability.STATEMENT_TIMEOUT,
        Capability.CATALOG,
        Capability.LISTED_SERVERS,
        Capability.TABLETS,
    }
)
_FOLLOWING: Final[Mapping[str, str]] = MappingProxyType(
    {"yb_read_from_followers": "on", "default_transaction_read_only": "on"}
)


@dataclass(frozen=True, slots=True)
class YugabyteDialect(PostgresDialect):
    """The dialect of YugabyteDB 2.7 and later.

    Nothing is inferred from the text of a statement. Sessions are cleared without `DISCARD`, `DEALLOCATE` and
    `SET SESSION AUTHORIZATION`, because the connection manager may put several sessions on one server process, and
    those would bind it to one of them.

    *Source*: `yugabyte-smart-drivers.md` sections 6.1 and 6.4.
    """

    @property
    def name(self) -> str:
        """`"yugabyte"`."""
        return "yugabyte"

    @property
    def default_port(self) -> int:
        """The default port of YSQL."""
        return 5433

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of PostgreSQL, and that servers list each other and lead tablets; sessions are not discarded."""
        return _CAPABILITIES

    def startup_options(self, purpose: Purpose) -> Mapping[str, str]:
        """For reads from followers: allowed, and the session read-only, without which they are not done.

        *Source*: `yugabyte-smart-drivers.md` section 7.6; YugabyteDB documentation, "Follower reads".
        """
        return _FOLLOWING if purpose is Purpose.REPLICA_READ else super(YugabyteDialect, self).startup_options(purpose)

    @property
    def key_hash(self) -> KeyHash:
        """`yb_hash_code`."""
        return YUGABYTE_KEY_HASH

    def leaves_open(self, sqlstate: str | None, message: str, *, commit: bool) -> bool:
        """Whether an error of a node leaves open what became of the request that it had sent on."""
        return faults.leaves_open(sqlstate, message, commit=commit)

    @property
    def outcome_questions(self) -> tuple[str, str] | None:
        """None: its transactions have no number that a later session could ask about."""
        return None

    def fault(self, sqlstate: str | None, message: str) -> Fault:
        """What a server's error means."""
        return faults.fault(sqlstate, message)
