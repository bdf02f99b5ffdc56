"""A small planner that names buckets as Picodata does, for statements given as expressions.

It binds the arguments, folds constants, turns what is left into alternatives and names the buckets of those
that fix every column of the key. It knows the driver's rooms not at all: types are hashed by
`tests.dialects.slow_hash`.

*Source*: tests/recorded/picodata-plans.json, against which `test_recorded_plans.py` judges it.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from itertools import product
from typing import Any
from uuid import UUID

from tests.dialects import slow_hash


class Scope(Enum):
    """How to read an answer."""

    EXACT = 1
    AT_MOST = 2
    ANY = 3
    UNKNOWN = 4


@dataclass(frozen=True)
class P:
    """Parameter `$number`; `cast` is `$number::double`."""

    number: int
    cast: bool = False


@dataclass(frozen=True)
class L:
    """A literal: its value, and the type it is hashed as."""

    value: Any
    oid: int


@dataclass(frozen=True)
class Cmp:
    """Column or constant on the left, constant or column on the right; a column is its name."""

    op: str
    left: Any
    right: Any


@dataclass(frozen=True)
class In:
    """Column IN (constants)."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class And:
    """All of them."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Or:
    """One of them."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Any


@dataclass(frozen=True)
class IsNull:
    """Constant IS NULL."""

    value: Any


@dataclass(frozen=True)
class Flag:
    """A boolean parameter as a condition."""

    parameter: P


@dataclass(frozen=True)
class Opaque:
    """A condition that says nothing about the key, whatever its values."""


def eq(left: Any, right: Any) -> Cmp:
    """Equality."""
    return Cmp("=", left, right)


def both(*parts: Any) -> And:
    """AND."""
    return And(parts)


def either(*parts: Any) -> Or:
    """OR."""
    return Or(parts)


COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Model:
    """One statement and the server it is asked at.

    Attributes:
        key: Columns of the distribution key, in order; empty: no sharded table.
        oids: Types of the parameters.
        where: Conditions of which each part of a UNION or each query has its own; the buckets are united.
        rows: Instead of conditions, the key values of an INSERT's rows.
        bucket_count: Of the table's tier.
        all_count: Of the asked instance's own tier, which an answer "all" counts.
        release: `"older"` or `"26.1"`, for doubles.
        null_folds: Whether a NULL condition is dropped from an OR.
        refuses: Whether the server refuses these arguments.
    """

    key: tuple[str, ...]
    oids: tuple[int, ...]
    where: tuple[Any, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    bucket_count: int = 3000
    all_count: int = 3000
    release: str = "older"
    null_folds: bool = True
    refuses: Callable[[Sequence[Any]], bool] = field(default=lambda args: False)

    def buckets(self, args: Sequence[Any]) -> frozenset[int] | None:
        """The buckets of the statement with these arguments; None for all."""
        found: set[int] = set()
        for row in self.rows:
            found.add(self._bucket([self._encoded(part, args) for part in row]))
        for condition in self.where:
            for alternative in self._alternatives(self._fold(condition, args), args):
                if not set(self.key) <= set(alternative):
                    return None
                for values in product(*(alternative[column] for column in self.key)):
                    found.add(self._bucket(values))
        return frozenset(found)

    def answer(self, args: Sequence[Any]) -> tuple[Scope, tuple[tuple[int, int], ...]]:
        """What EXPLAIN says."""
        if not self.key:
            return Scope.ANY, ()
        buckets = self.buckets(args)
        if buckets is None:
            return Scope.EXACT, ((1, self.all_count),)
        return Scope.EXACT, tuple((bucket, bucket) for bucket in sorted(buckets))

    def _bucket(self, parts: Sequence[bytes]) -> int:
        return slow_hash.bucket(b"".join(parts), self.bucket_count)

    def _value(self, constant: P | L, args: Sequence[Any]) -> Any:
        return args[constant.number - 1] if isinstance(constant, P) else constant.value

    def _encoded(self, constant: P | L, args: Sequence[Any]) -> bytes:
        value = self._value(constant, args)
        if isinstance(constant, L):
            return encode(constant.oid, value, "cast", self.release)
        where = "cast" if constant.cast else "bound"
        return encode(self.oids[constant.number - 1], value, where, self.release)

    def _fold(self, condition: Any, args: Sequence[Any]) -> Any:
        """True, False, None (NULL) or what is left of the condition."""
        if isinstance(condition, bool):
            return condition
        if isinstance(condition, Flag):
            return self._value(condition.parameter, args)
        if isinstance(condition, IsNull):
            return self._value(condition.value, args) is None
        if isinstance(condition, Cmp) and not isinstance(condition.left, str) and not isinstance(condition.right, str):
            left, right = self._value(condition.left, args), self._value(condition.right, args)
            return None if left is None or right is None else COMPARE[condition.op](left, right)
        if isinstance(condition, Not):
            return self._fold_not(self._fold(condition.part, args), args)
        if isinstance(condition, And | Or):
            return self._fold_parts(condition, [self._fold(part, args) for part in condition.parts])
        return condition

    def _fold_not(self, folded: Any, args: Sequence[Any]) -> Any:
        if folded is None or isinstance(folded, bool):
            return None if folded is None else not folded
        if isinstance(folded, And):
            return self._fold(Or(tuple(Not(part) for part in folded.parts)), args)
        if isinstance(folded, Or):
            return self._fold(And(tuple(Not(part) for part in folded.parts)), args)
        return folded.part if isinstance(folded, Not) else Opaque()

    def _fold_parts(self, condition: And | Or, parts: list[Any]) -> Any:
        decisive = isinstance(condition, Or)
        if any(part is decisive for part in parts):
            return decisive
        left = [part for part in parts if part is not (not decisive)]
        if decisive and self.null_folds:
            left = [part for part in left if part is not None]
        left = [Opaque() if part is None else part for part in left]
        if not left:
            return not decisive
        return left[0] if len(left) == 1 else type(condition)(tuple(left))

    def _alternatives(self, condition: Any, args: Sequence[Any]) -> list[dict[str, frozenset[bytes]]]:
        if condition is False:
            return []
        if isinstance(condition, Cmp) and condition.op == "=":
            column, constant = condition.left, condition.right
            if not isinstance(column, str):
                column, constant = constant, column
            if isinstance(column, str) and not isinstance(constant, str):
                return [{column: frozenset((self._encoded(constant, args),))}]
        if isinstance(condition, In):
            return [{condition.column: frozenset(self._encoded(value, args) for value in condition.values)}]
        if isinstance(condition, Or):
            return [found for part in condition.parts for found in self._alternatives(part, args)]
        if isinstance(condition, And):
            return self._joined([self._alternatives(part, args) for part in condition.parts])
        return [{}]

    def _joined(self, parts: list[list[dict[str, frozenset[bytes]]]]) -> list[dict[str, frozenset[bytes]]]:
        joined = []
        for choice in product(*parts):
            merged: dict[str, frozenset[bytes]] = {}
            for fixed in choice:
                for column, values in fixed.items():
                    merged[column] = merged.get(column, values) & values
            if all(merged.values()):
                joined.append(merged)
        return joined


def encode(oid: int, value: Any, where: str, release: str) -> bytes:
    """Bytes hashed for a value that the server has received or read as a literal."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if oid == 701:
        return slow_hash.double(float(value), f"{where}-{release}")
    if oid == 1700:
        return encode_decimal(Decimal(value))
    if oid == 1184:
        return slow_hash.moment((value - datetime(2000, 1, 1, tzinfo=UTC)) // (value.resolution))
    if oid == 2950:
        return slow_hash.extension(2, UUID(str(value)).bytes)
    return slow_hash.messagepack_int(value) if isinstance(value, int) else str(value).encode()


def encode_decimal(value: Decimal) -> bytes:
    """As a binary numeric that keeps the scale."""
    if not value.is_finite():
        raise slow_hash.Refused
    scale = max(-int(value.as_tuple().exponent), 0)
    digits = f"{abs(value):f}".replace(".", "").lstrip("0") or "0"
    if len(digits) > 28 or scale > 28:
        raise slow_hash.Refused
    digits = digits.rjust(-(-len(digits) // 4) * 4, "0")
    nibbles = digits.lstrip("0") or "0"
    sign = "d" if value.is_signed() else "c"
    packed = nibbles + sign
    payload = struct.pack("B", scale) + bytes.fromhex(packed.rjust(len(packed) + len(packed) % 2, "0"))
    return slow_hash.extension(1, payload)
