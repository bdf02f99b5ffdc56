"""From arguments to buckets: a learned route compiled into a closure, and the keys a user names himself.

Everything that can be decided once per statement (which encoder, how many parts) is decided while compiling;
what is left for a call is one look-up of an argument, its encoder and the hash. The closures never raise: an
argument that is missing, NULL or not computable gives None, and the call runs unrouted.

This file knows no server: the hash comes as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from picopyn.errors import UsageError
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute

#: A compiled key: the arguments of a call → its bucket, or None when it cannot be computed.
KeyFunction = Callable[[Sequence[Any]], int | None]

#: A part of a key in many rows: the position of its argument, type OID and form; or the bytes of a literal.
RowPart = tuple[int, int, str] | bytes

#: Rows of arguments → the bucket of each, counted from 0; -1 when it cannot be computed or is hashed as NULL.
RowsFunction = Callable[[Sequence[Any]], list[int]]

#: A compiled route: the arguments of a call → all its buckets, or None when they cannot be computed.
RouteFunction = Callable[[Sequence[Any]], frozenset[int] | None]


class KeyHash(Protocol):
    """What this room needs of a dialect's key hash (see `picopyn.dialects.base.KeyHash`)."""

    def forms(self, oid: int) -> tuple[str, ...]:
        """Names of the forms in which a value of this type may be hashed; `()` if unsupported."""
        ...

    def encoder(self, oid: int, form: str = "") -> Callable[[Any], bytes | None]:
        """The encoder of one key part."""
        ...

    def bucket(self, encoded: bytes, bucket_count: int) -> int:
        """Bucket of the concatenated parts."""
        ...

    def fast_key(self, oid: int, position: int, bucket_count: int, otherwise: KeyFunction) -> KeyFunction:
        """One function for a key of one part, where there is one that costs less than `otherwise`."""
        ...

    def fast_rows(self, parts: Sequence[RowPart], bucket_count: int, otherwise: RowsFunction) -> RowsFunction:
        """One function for many rows, where there is one that costs less than `otherwise`."""
        ...


def compile_key(parts: Sequence[KeyPart], key_hash: KeyHash, bucket_count: int) -> KeyFunction:
    """Compile one key into a function of a call's arguments.

    Args:
        parts: The key's parts in the order of the table's key columns.
        key_hash: The dialect's hash.
        bucket_count: Number of buckets of the tier.

    Returns:
        A function that gives the bucket (or hash code), or None when an argument is missing, cannot be
        computed or is hashed as NULL: what a NULL in a key means depends on the statement, so such a call is
        never routed by key.
    """
    if not parts or bucket_count < 1:
        return no_bucket
    if len(parts) == 1 and parts[0].literal is None:
        return _compile_single(parts[0], key_hash, bucket_count)
    return _compile_composite(parts, key_hash, bucket_count)


def no_bucket(args: Sequence[Any]) -> int | None:
    """The key of a statement that has none."""
    return None


def _compile_single(part: KeyPart, key_hash: KeyHash, bucket_count: int) -> KeyFunction:
    encode = key_hash.encoder(part.oid, part.form)
    null = encode(None)
    position = part.parameter
    bucket = key_hash.bucket

    def key(args: Sequence[Any]) -> int | None:
        try:
            encoded = encode(args[position])
        except IndexError:
            return None
        if encoded is None or encoded == null:
            return None
        return bucket(encoded, bucket_count)

    return key_hash.fast_key(part.oid, position, bucket_count, otherwise=key)


def _compile_composite(parts: Sequence[KeyPart], key_hash: KeyHash, bucket_count: int) -> KeyFunction:
    """Literals are merged into the bytes before the first and after each parameter."""
    first, steps = b"", list[tuple[int, Callable[[Any], bytes | None], bytes | None, bytes]]()
    for part in parts:
        if part.literal is None:
            encode = key_hash.encoder(part.oid, part.form)
            steps.append((part.parameter, encode, encode(None), b""))
        elif steps:
            steps[-1] = (*steps[-1][:3], steps[-1][3] + part.literal)
        else:
            first += part.literal
    bucket = key_hash.bucket

    def key(args: Sequence[Any]) -> int | None:
        whole = first
        try:
            for position, encode, null, after in steps:
                encoded = encode(args[position])
                if encoded is None or encoded == null:
                    return None
                whole += encoded + after
        except IndexError:
            return None
        return bucket(whole, bucket_count)

    return key


def compile_route(route: StatementRoute, key_hash: KeyHash, bucket_count: int) -> RouteFunction:
    """Compile a learned route into a function of a call's arguments.

    Args:
        route: What was learned about the statement.
        key_hash: The dialect's hash.
        bucket_count: Number of buckets of the route's tier.

    Returns:
        A function that gives all buckets of a call, or None when there are none to route by: the statement is
        not keyed, any node will do, or a key cannot be computed from these arguments.
    """
    if route.kind in (RouteKind.ANY_NODE, RouteKind.NOT_KEYED) or not (route.keys or route.buckets):
        return _no_buckets
    keys = tuple(compile_key(parts, key_hash, bucket_count) for parts in route.keys)
    constants = frozenset(route.buckets)
    if not keys:
        return lambda args: constants
    if len(keys) == 1 and not constants:
        return _single_bucket(keys[0])
    return _union_of(keys, constants)


def _no_buckets(args: Sequence[Any]) -> frozenset[int] | None:
    return None


def _single_bucket(key: KeyFunction) -> RouteFunction:
    def buckets(args: Sequence[Any]) -> frozenset[int] | None:
        bucket = key(args)
        return None if bucket is None else frozenset((bucket,))

    return buckets


def _union_of(keys: Sequence[KeyFunction], constants: frozenset[int]) -> RouteFunction:
    def buckets(args: Sequence[Any]) -> frozenset[int] | None:
        found = set(constants)
        for key in keys:
            bucket = key(args)
            if bucket is None:
                return None
            found.add(bucket)
        return frozenset(found)

    return buckets


#: Type OID under which a key value of this Python type is hashed, unless the user says otherwise.
_OID_OF_TYPE: Mapping[type, int] = {
    bool: 16,
    int: 20,
    str: 25,
    float: 701,
    datetime: 1184,
    Decimal: 1700,
    UUID: 2950,
}


@dataclass(frozen=True, slots=True)
class ShardingKey:
    """A place named by the user: the values of a table's key columns, or a bucket.

    Attributes:
        tier: Name of the tier (or other sharding space) the table lives in.
        values: Values of the key columns, in the order of the distribution key. `None` counts as NULL, which
            has a bucket of its own.
        bucket: A bucket instead of values.
        oids: Type OIDs of `values`; empty: as the Python types say (int → 20, str → 25, …).
        forms: Forms of `values` where a type has several (doubles); empty: only types with one form are
            computable.

    Raises:
        UsageError: Neither values nor a bucket, or both; a bucket below 1; lengths that differ; a type
            without an OID.
    """

    tier: str = "default"
    values: tuple[Any, ...] = field(default=(), repr=False)
    bucket: int | None = None
    oids: tuple[int, ...] = ()
    forms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple | list):
            raise UsageError(f"the values of a ShardingKey must be a tuple, not {type(self.values).__name__}")
        if bool(self.values) == (self.bucket is not None):
            raise UsageError("a ShardingKey needs either values or a bucket")
        if self.bucket is not None and (type(self.bucket) is not int or self.bucket < 1):
            raise UsageError("the bucket of a ShardingKey must be an integer of at least 1")
        if not isinstance(self.tier, str) or not self.tier:
            raise UsageError("the tier of a ShardingKey must be a non-empty string")
        if not self.oids:
            object.__setattr__(self, "oids", tuple(map(_oid_of, self.values)))
        if len(self.oids) != len(self.values) or len(self.forms) not in (0, len(self.values)):
            raise UsageError("a ShardingKey needs as many type OIDs and forms as values")

    def locate(self, key_hash: KeyHash, bucket_count: int) -> int | None:
        """Bucket of the key, or None when it cannot be computed or the tier has no such bucket."""
        if self.bucket is not None:
            return self.bucket if self.bucket <= bucket_count else None
        forms = self.forms or ("",) * len(self.values)
        whole = b""
        for value, oid, form in zip(self.values, self.oids, forms, strict=True):
            encoded = key_hash.encoder(oid, form)(value)
            if encoded is None:
                return None
            whole += encoded
        return key_hash.bucket(whole, bucket_count) if bucket_count > 0 else None

    def problem(self, key_hash: KeyHash) -> str:
        """Why the key has no bucket: which value, and what it should be. The value itself is never told."""
        for number, (value, oid, form) in enumerate(
            zip(self.values, self.oids, self.forms or ("",) * len(self.values), strict=True), 1
        ):
            if key_hash.encoder(oid, form)(value) is None:
                return _misfit(f"value {number}", value, oid, form, key_hash)
        return "its tier has no buckets"


def _misfit(what: str, value: Any, oid: int, form: str, key_hash: KeyHash) -> str:
    name = type_name(oid)
    if form not in key_hash.forms(oid):
        ways = key_hash.forms(oid)
        return (
            f"{what} is of type {name}, which is hashed in one of the ways {', '.join(ways)}: say which"
            if ways
            else (f"{what} is of type {name}, which cannot be part of a key")
        )
    return f"{what} is of type {type(value).__name__} or out of range; expected is {name}"


def _oid_of(value: Any) -> int:
    if value is None:
        return 25
    for base in type(value).__mro__:
        if base in _OID_OF_TYPE:
            return _OID_OF_TYPE[base]
    raise UsageError(f"the type {type(value).__name__} cannot be part of a sharding key")


#: Names of types as SQL has them → their OIDs, Picodata's own words included.
OIDS: Mapping[str, int] = {
    "boolean": 16, "bool": 16, "integer": 20, "int": 20, "unsigned": 20, "bigint": 20, "smallint": 20,
    "text": 25, "string": 25, "varchar": 25, "double": 701, "datetime": 1184, "timestamptz": 1184,
    "decimal": 1700, "numeric": 1700, "uuid": 2950,
}  # fmt: skip
_NAMES: Mapping[int, str] = {oid: name for name, oid in reversed(tuple(OIDS.items()))}


def type_name(oid: int) -> str:
    """How a type is called in an error."""
    return _NAMES.get(oid, f"value of type {oid}")


@dataclass(frozen=True, slots=True)
class ShardingKeyFactory:
    """Makes the keys of one table's rows.

    Attributes:
        table: Name of the table, for error texts.
        tier: Tier the table lives in.
        columns: (column name, type OID) of the distribution key, in its order.
        forms: Forms of the columns, where a type has several; empty: the usual ones.
        key_hash: Looks at the values of a key when it is made; None: they are looked at when it is used.
    """

    table: str
    tier: str
    columns: tuple[tuple[str, int], ...]
    forms: tuple[str, ...] = ()
    key_hash: KeyHash | None = field(default=None, repr=False, compare=False)

    def key(self, *values: Any) -> ShardingKey:
        """The key of one row, from the values of the key's columns in their order.

        Args:
            *values: One for each column; None is NULL, which has a bucket of its own.

        Returns:
            The key, ready for `key=` of a call or of `Pool.acquire`.

        Raises:
            UsageError: Too many or too few values, or one that cannot be hashed as its column's type.
        """
        if len(values) != len(self.columns):
            names = ", ".join(f"{name} ({type_name(oid)})" for name, oid in self.columns)
            raise UsageError(
                f"the key of table {self.table!r} takes {len(self.columns)} values, not {len(values)}: {names}"
            )
        if self.key_hash is not None:
            self._check(values, self.key_hash)
        return ShardingKey(self.tier, values, oids=tuple(oid for _, oid in self.columns), forms=self.forms)

    def create_key(self, row: Mapping[str, Any]) -> ShardingKey:
        """The key of one row, by the names of its columns.

        Args:
            row: Values by column name; columns that are not part of the key are ignored.

        Returns:
            See `key`.

        Raises:
            UsageError: `row` is no mapping, a key column is missing, or a value cannot be hashed as its column's type.
        """
        if not isinstance(row, Mapping):
            raise UsageError("a row must be a mapping of column names to values")
        missing = [name for name, _ in self.columns if name not in row]
        if missing:
            raise UsageError(f"the key of table {self.table!r} needs the columns {', '.join(missing)}")
        return self.key(*(row[name] for name, _ in self.columns))

    def _check(self, values: Sequence[Any], key_hash: KeyHash) -> None:
        forms = self.forms or ("",) * len(values)
        for number, (value, (name, oid), form) in enumerate(zip(values, self.columns, forms, strict=True), 1):
            if key_hash.encoder(oid, form)(value) is None:
                problem = _misfit(f"value {number} ({name})", value, oid, form, key_hash)
                raise UsageError(f"the key of table {self.table!r} cannot be made: {problem}")
