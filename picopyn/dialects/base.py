"""What a dialect is: a value that answers every question about one kind of server.

Rooms above ask a dialect; they never ask "is this Picodata?". A dialect has no socket, clock or random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from picopyn.errors import Fault
from picopyn.query_plan import QueryPlan

#: Turns one argument into the bytes that the server hashes; None when they cannot be computed.
Encoder = Callable[[Any], bytes | None]

#: The arguments of a call → the bucket of its key, or None when it cannot be computed.
KeyFunction = Callable[[Sequence[Any]], int | None]


#: A part of a key in many rows: the position of its argument, type OID and form; or the bytes of a literal.
RowPart = tuple[int, int, str] | bytes

#: Rows of arguments → for each the bucket of its key, counted from 0, so one less than a `KeyFunction` says; -1 when it
#: cannot be computed or is hashed as NULL.
RowsFunction = Callable[[Sequence[Any]], list[int]]


class Purpose(Enum):
    """What a connection is opened for; also the flavour under which a node pool keeps it."""

    PLAIN = "plain"
    REPLICA_READ = "replica reads"
    STRICT = "keyed calls only"
    TOPOLOGY = "topology"
    TOPOLOGY_NEWS = "topology, with news of it"
    METADATA = "statement metadata"
    LEADER_QUESTION = "leader question"
    PROBE = "node probe"


class Capability(Enum):
    """What a kind of server can or cannot do; the engine asks for capabilities, never for names."""

    SHARDED = "statements have owners"
    FORWARDING_NEEDS_EVERY_LEADER = "a statement not executed at its owner hangs while a leader of its tier is dead"
    SELECTS_HAVE_NO_EFFECT = "every SELECT may be repeated"
    STRICT_CONNECTIONS = "a connection can be told to refuse what it would have to send on"
    TRANSACTIONS = "BEGIN means something"
    STATEMENT_TIMEOUT = "statement_timeout is a start-up key"
    CATALOG = "types are described in pg_catalog"
    DISCARD = "a session is cleared by DISCARD and SET SESSION AUTHORIZATION at no further cost"
    LISTED_SERVERS = "servers list each other: yb_servers()"
    TABLETS = "every node takes every statement, and says who leads the tablets that tables are cut into"


class BucketScope(Enum):
    """How much the server said about the buckets of a statement."""

    EXACT = "exactly these"
    AT_MOST = "at most these"
    ANY = "no sharded table takes part"
    UNKNOWN = "known only while running"


@dataclass(frozen=True, slots=True)
class BucketAnswer:
    """The buckets a server named for one statement with its values bound.

    Attributes:
        scope: How to read `ranges`.
        ranges: Inclusive (first, last) pairs, ascending; empty for "no bucket" as well as for ANY and UNKNOWN.
    """

    scope: BucketScope
    ranges: tuple[tuple[int, int], ...] = ()

    def count(self) -> int:
        """Number of buckets named."""
        return sum(last - first + 1 for first, last in self.ranges)

    def buckets(self) -> frozenset[int]:
        """All buckets named, expanded; look at `count` first."""
        return frozenset(b for first, last in self.ranges for b in range(first, last + 1))


class KeyHash(Protocol):
    """How a kind of server turns a key into the number of a bucket."""

    def forms(self, oid: int) -> tuple[str, ...]:
        """Names of the forms in which a value of this type may be hashed; `("",)` for most, `()` if unsupported."""
        ...

    def encoder(self, oid: int, form: str = "") -> Encoder:
        """The encoder of one key part: argument as the caller passes it → bytes as the server hashes them, or None."""
        ...

    def bucket(self, encoded: bytes, bucket_count: int) -> int:
        """Bucket (1 … bucket_count) of the concatenated parts; a hash code (from 0) where tables are cut by those."""
        ...

    def fast_key(self, oid: int, position: int, bucket_count: int, otherwise: KeyFunction) -> KeyFunction:
        """One function for a key of one part, for types where that is worth it: called with every statement.

        Args:
            oid: Type OID.
            position: Where the key stands among the arguments.
            bucket_count: Number of buckets.
            otherwise: The same from `encoder` and `bucket`: for rare values, and for other types.
        """
        ...

    def fast_rows(self, parts: Sequence[RowPart], bucket_count: int, otherwise: RowsFunction) -> RowsFunction:
        """One function for many rows of arguments, for keys where that is worth it.

        Args:
            parts: The key.
            bucket_count: Number of buckets.
            otherwise: The same from `encoder` and `bucket`, one row after the other: for rare values, and other types.
        """
        ...


@dataclass(frozen=True, slots=True)
class StatementNotice:
    """What a server said about a statement while preparing it.

    Attributes:
        query: The exact text the server prepared.
        tier: Sharding space of the statement's tables, or None.
        dk_meta: (one-based parameter number, type OID) in the order of the key's columns; empty when there is none.
    """

    query: str
    tier: str | None
    dk_meta: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TableKey:
    """The key of one table.

    Attributes:
        tier: Sharding space the table lives in.
        columns: (name, type OID) of the key's columns in its order; empty: its rows have no owner.
        forms: Forms in which they are hashed, where that is known; empty: not known.
    """

    tier: str
    columns: tuple[tuple[str, int], ...]
    forms: tuple[str, ...] = ()


class TableKeys(Protocol):
    """How the key of a table is asked for."""

    @property
    def QUESTION(self) -> str:  # noqa: N802 - a constant of the room that answers
        """The text whose one row tells the key of the table named by the parameter."""
        ...

    def read_key(self, row: Sequence[Any], /) -> TableKey | None:
        """The answer; None when it cannot be read."""
        ...

    def columns_question(self, table: str, /) -> str:
        """The text whose answer names the columns of a table."""
        ...

    def read_columns(self, rows: Sequence[Sequence[Any]], /) -> tuple[tuple[str, int], ...]:
        """The columns that may be part of a key, with the OIDs of their types."""
        ...

    def select_by(self, table: str, columns: Sequence[tuple[str, int]], /) -> str:
        """A query of the rows with given values of these columns, each a parameter."""
        ...


class Dialect(Protocol):
    """One kind of server, as a value."""

    @property
    def name(self) -> str:
        """The word a user writes: `"picodata"`, `"yugabyte"`, `"postgres"`."""
        ...

    @property
    def default_port(self) -> int:
        """Port used for an address without one."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this kind of server can do."""
        ...

    @property
    def key_hash(self) -> KeyHash:
        """How keys become buckets."""
        ...

    @property
    def table_keys(self) -> TableKeys | None:
        """How the key of a table is asked for; None where tables have none."""
        ...

    @property
    def probe_question(self) -> str:
        """A text that every living server answers at once, without parameters, however busy it is."""
        ...

    def startup_options(self, purpose: Purpose) -> Mapping[str, str]:
        """Start-up keys of a connection for this purpose."""
        ...

    def fault(self, sqlstate: str | None, message: str) -> Fault:
        """What a server's error means."""
        ...

    def is_partial(self, sqlstate: str | None, message: str) -> bool:
        """Whether an error leaves open what the statement did at other replicasets, if it concerned several."""
        ...

    def leaves_open(self, sqlstate: str | None, message: str, *, commit: bool) -> bool:
        """Whether a server's error leaves open if the statement took effect at all; of COMMIT, more errors may."""
        ...

    def only_reads(self, sqlstate: str | None) -> bool:
        """Whether an error says that a session, opened to read only, has refused a write: nothing was done."""
        ...

    @property
    def outcome_questions(self) -> tuple[str, str] | None:
        """How it is found out what became of a transaction whose COMMIT was not answered; None: it cannot be.

        The first text is asked before COMMIT. Its first column is None for a transaction that cannot change anything;
        its columns are the parameters of the second text, whose one value is `"committed"`, `"aborted"`,
        `"in progress"`, or something else where the server does not know.
        """
        ...

    def parse_notice(self, text: str) -> StatementNotice | None:
        """The statement metadata in a notice, or None when it is another notice."""
        ...

    def is_read(self, sql: str) -> bool:
        """Whether the text only reads (and so may run on a replica, and be repeated where the server allows it)."""
        ...

    def executes_alone(self, version: str) -> bool:
        """Whether a server of this version executes by itself what concerns only its own rows.

        Args:
            version: What the server tells of itself; empty: it is not known.
        """
        ...

    def never_hangs(self, sql: str) -> bool:
        """Whether the text is answered by any node alone, whatever the state of the cluster (`BEGIN`, `EXPLAIN` …)."""
        ...

    def can_be_asked(self, sql: str) -> bool:
        """Whether asking the server for the buckets of this text is worth it and harmless."""
        ...

    def bucket_question(self, sql: str) -> str:
        """The text that asks the server for the buckets of `sql`, with the same parameters."""
        ...

    def read_bucket_answer(self, rows: Sequence[Sequence[Any]]) -> BucketAnswer | None:
        """The answer to `bucket_question`; None when it cannot be read."""
        ...

    def plan_question(self, sql: str) -> str:
        """The text that asks the server for its plan for `sql`, with the same parameters.

        Raises:
            NotSupported: Plans of this kind of server are not read.
        """
        ...

    def read_plan(self, rows: Sequence[Sequence[Any]]) -> QueryPlan:
        """The answer to `plan_question`; what is not understood in it stays as text."""
        ...
