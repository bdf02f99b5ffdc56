"""PostgreSQL as a value: what its errors mean, what its hosts are asked, and that nothing about it is sharded.

This room knows SQLSTATEs and SQL texts. Who leads is decided in [`host_roles`][picopyn.routing.host_roles], from what
the hosts say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from picopyn.dialects.base import (
    BucketAnswer,
    Capability,
    Encoder,
    KeyFunction,
    KeyHash,
    Purpose,
    RowPart,
    RowsFunction,
    StatementNotice,
    TableKeys,
)
from picopyn.dialects.postgres import faults, outcome
from picopyn.errors import Fault, NotSupported
from picopyn.query_plan import QueryPlan

__all__ = ["PostgresDialect"]

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
_CAPABILITIES: Final = frozenset(
    {Capability.TRANSACTIONS, Capability.STATEMENT_TIMEOUT, Capability.CATALOG, Capability.DISCARD}
)


@dataclass(frozen=True, slots=True)
class PostgresDialect:
    """The dialect of PostgreSQL 9.5 and later, and of what behaves like one: poolers, forks, hosted services.

    Nothing is inferred from the text of a statement: a SELECT may call a function that writes.
    """

    @property
    def name(self) -> str:
        """`"postgres"`."""
        return "postgres"

    @property
    def default_port(self) -> int:
        """PostgreSQL's default port."""
        return 5432

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Transactions, and a catalogue that describes types; statements have no owners."""
        return _CAPABILITIES

    @property
    def key_hash(self) -> KeyHash:
        """A hash of nothing: no type may be part of a key."""
        return _NO_KEYS

    @property
    def table_keys(self) -> TableKeys | None:
        """None: tables have no key."""
        return None

    @property
    def probe_question(self) -> str:
        """The text that a living server answers at once, whatever the state of its databases."""
        return "SELECT 1"

    def startup_options(self, purpose: Purpose) -> Mapping[str, str]:
        """None: every connection may serve every purpose."""
        return _NO_OPTIONS

    def fault(self, sqlstate: str | None, message: str) -> Fault:
        """What a server's error means, by its SQLSTATE alone: texts are translated."""
        return faults.fault(sqlstate)

    def is_partial(self, sqlstate: str | None, message: str) -> bool:
        """Never: a statement that fails is rolled back as a whole."""
        return False

    def leaves_open(self, sqlstate: str | None, message: str, *, commit: bool) -> bool:
        """Never: a server that answers with an error has rolled back."""
        return False

    def only_reads(self, sqlstate: str | None) -> bool:
        """By the SQLSTATE of a read-only transaction."""
        return sqlstate == faults.ONLY_READS

    @property
    def outcome_questions(self) -> tuple[str, str] | None:
        """By the number of the transaction, while the server that gave it runs on."""
        return outcome.MARK, outcome.FATE

    def parse_notice(self, text: str) -> StatementNotice | None:
        """No notice says anything about a statement's key."""
        return None

    def is_read(self, sql: str) -> bool:
        """Never known from the text."""
        return False

    def executes_alone(self, version: str) -> bool:
        """Always: the server that gets a text runs it alone."""
        return True

    def never_hangs(self, sql: str) -> bool:
        """Always: the server that gets a text runs it alone."""
        return True

    def can_be_asked(self, sql: str) -> bool:
        """Never: there are no buckets to ask for."""
        return False

    def bucket_question(self, sql: str) -> str:
        """There is none."""
        raise NotSupported("PostgreSQL has no buckets to ask for")

    def read_bucket_answer(self, rows: Sequence[Sequence[Any]]) -> BucketAnswer | None:
        """There is none."""
        return None

    def plan_question(self, sql: str) -> str:
        """Not here: PostgreSQL has an EXPLAIN of its own, with options and formats."""
        raise NotSupported("explain() reads the plans of Picodata; here, fetch an EXPLAIN of your own")

    def read_plan(self, rows: Sequence[Sequence[Any]]) -> QueryPlan:
        """As text."""
        return QueryPlan("\n".join(str(row[0]) for row in rows))


class _NoKeys:
    """The hash of servers without keys."""

    __slots__ = ()

    def forms(self, oid: int) -> tuple[str, ...]:
        return ()

    def encoder(self, oid: int, form: str = "") -> Encoder:
        return _cannot_be_encoded

    def bucket(self, encoded: bytes, bucket_count: int) -> int:
        return 1

    def fast_rows(self, parts: Sequence[RowPart], bucket_count: int, otherwise: RowsFunction) -> RowsFunction:
        return otherwise

    def fast_key(self, oid: int, position: int, bucket_count: int, otherwise: KeyFunction) -> KeyFunction:
        return otherwise


def _cannot_be_encoded(value: Any) -> bytes | None:
    return None


_NO_KEYS: Final = _NoKeys()
