"""What is known about where a statement text runs: the value that learning produces and planning consumes.

This file knows no bucket hash, no server and no snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class RouteKind(Enum):
    """What decides where a statement runs."""

    KEYED = "one key made of parameters"
    KEY_SET = "a set of keys made of parameters and constants"
    CONSTANT = "a bucket that does not depend on the parameters"
    ANY_NODE = "no sharded table takes part: every node answers by itself"
    NOT_KEYED = "the server must ask several nodes, or the key cannot be computed here"


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a key, taken from one parameter, or from a literal of the text.

    Attributes:
        parameter: Zero-based position of the parameter in the call's arguments; -1 for a literal.
        oid: Type OID under which the server takes that parameter; 0 for a literal.
        form: Name of the hash form, where a type has more than one (see the dialect's key hash); `""` for the
            usual.
        literal: What a literal is hashed as; None for a parameter.
    """

    parameter: int
    oid: int
    form: str = ""
    literal: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StatementRoute:
    """Where one statement text runs, as far as it is known.

    Attributes:
        kind: What decides.
        tier: Name of the sharding space whose buckets are meant; None when no sharded table takes part.
        keys: The keys, each an ordered tuple of parts in the order of the table's key columns. Exactly one
            for `KEYED`; for `KEY_SET` one or more.
        buckets: Buckets (hash codes, where tables are cut by those) that always belong to the set: the one of
            `CONSTANT`, or the constants of a `KEY_SET`.
        evidence: Bits of evidence behind the answer (see `key_probe`); 0 where the server said it outright.
        reason: Why the text is not keyed, or how it was learned; for people, counted in statistics.
    """

    kind: RouteKind
    tier: str | None = None
    keys: tuple[tuple[KeyPart, ...], ...] = ()
    buckets: tuple[int, ...] = ()
    evidence: float = 0.0
    reason: str = ""
