"""How Picodata turns a key into a bucket: the bytes it hashes for every type, and the hash.

A server hashes the value *it received*, so every encoder starts from the Python argument as a caller passes
it to asyncpg (0.32, binary format) and repeats asyncpg's coercions: `True` or `1.0` for an int8, a string for
a uuid, an int for a numeric, a naive datetime as local time. What cannot be known (asyncpg or the server
would refuse the value, or the outcome hangs on something outside it) is `None`, "cannot compute"; no argument
makes an encoder raise.

This file knows no statement, no tier and no snapshot.

*Source*: picodata-protocol.md section 6 (bytes per type, seed, modulus), picodata-recorded.md section 2
(doubles, decimals, timestamps as recorded), asyncpg 0.32 `pgproto/codecs/*.pyx` (coercions).
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from picopyn.dialects.picodata.bucket_rows import INTEGERS, SEED, TEXTS, UUID_HEADER, UUID_OID, compile_rows, hash_of
from picopyn.dialects.picodata.bucket_rows import pack_int as _pack_int

try:
    from picopyn.dialects.picodata._quick_keys import int_key, text_key
except ImportError:  # installed where nothing can be compiled
    from picopyn.dialects.picodata.quick_keys import int_key, text_key

#: As `picopyn.dialects.base.Encoder`.
Encoder = Callable[[Any], bytes | None]

#: As `picopyn.dialects.base.KeyFunction`.
KeyFunction = Callable[[Sequence[Any]], int | None]

#: As `picopyn.dialects.base.RowPart`.
RowPart = tuple[int, int, str] | bytes

#: As `picopyn.dialects.base.RowsFunction`.
RowsFunction = Callable[[Sequence[Any]], list[int]]

BOOL: Final = 16
INT8: Final = 20
TEXT: Final = 25
FLOAT8: Final = 701
VARCHAR: Final = 1043
TIMESTAMPTZ: Final = 1184
NUMERIC: Final = 1700

#: The forms of a double: `bound` is the bare parameter (`k = $1`), `cast` the one converted by the statement
#: (`k = $1::double`); `26.1` is hashed by Tarantool 2.11.8 (Picodata 26.1 and later), `older` by the ones
#: before.
DOUBLE_FORMS: Final = ("bound-26.1", "bound-older", "cast-26.1", "cast-older")

_NULL: Final = b"\xc0"
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_SMALLEST_NORMAL: Final = 2.0**-1022
_EPSILON: Final = 2.0**-52
_MAX_DECIMAL_DIGITS: Final = 28

_pack_double: Final = struct.Struct(">d").pack
_unpack_double: Final = struct.Struct(">d").unpack
_pack_seconds: Final = struct.Struct("<q").pack
_pack_moment: Final = struct.Struct("<qiHH").pack

_PG_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_PG_EPOCH_SECONDS: Final = 946_684_800
#: asyncpg sends these as PostgreSQL's infinities, which Picodata refuses.
_INFINITIES: Final = (datetime.max, datetime.min)
_INFINITIES_SINCE_EPOCH: Final = (datetime.max - datetime(2000, 1, 1), datetime.min - datetime(2000, 1, 1))


class PicodataKeyHash:
    """Picodata's hash of a key, as `picopyn.dialects.base.KeyHash`."""

    __slots__ = ()

    @staticmethod
    def forms(oid: int) -> tuple[str, ...]:
        """Names of the forms in which a value of this type may be hashed.

        Args:
            oid: Type OID of the parameter.

        Returns:
            `("",)` for a type with one form, `DOUBLE_FORMS` for float8, `()` for a type that cannot be part
            of a key.
        """
        if oid == FLOAT8:
            return DOUBLE_FORMS
        return ("",) if (oid, "") in _ENCODERS else ()

    @staticmethod
    def encoder(oid: int, form: str = "") -> Encoder:
        """The encoder of one key part.

        Args:
            oid: Type OID under which the server takes the parameter.
            form: One of `forms(oid)`.

        Returns:
            A function from the argument to the hashed bytes, or to None when they cannot be computed; `None`
            as an argument gives the bytes of NULL. For an unknown type or form it answers None to everything.
        """
        return _ENCODERS.get((oid, form), _never)

    @staticmethod
    def bucket(encoded: bytes, bucket_count: int) -> int:
        """Bucket of a key.

        Args:
            encoded: The parts' bytes, one after the other in the order of the key's columns.
            bucket_count: Number of buckets of the tier, at least 1.

        Returns:
            A number from 1 to `bucket_count`.
        """
        return hash_of(encoded, SEED) % bucket_count + 1

    @staticmethod
    def fast_key(oid: int, position: int, bucket_count: int, otherwise: KeyFunction) -> KeyFunction:
        """One function for a key that is an integer, of which Picodata has one type, or a text; see the protocol."""
        if oid == INT8:
            return int_key(position, bucket_count, otherwise)
        if oid in TEXTS:
            return text_key(position, bucket_count, otherwise)
        return otherwise

    @staticmethod
    def fast_rows(parts: Sequence[RowPart], bucket_count: int, otherwise: RowsFunction) -> RowsFunction:
        """One function for many rows; see the protocol."""
        return compile_rows(parts, bucket_count, PicodataKeyHash.encoder, otherwise)


def _never(value: Any) -> bytes | None:
    return None


# ── boolean, integers, text ─────────────────────────────────────────────────────────────────────────────────


def _encode_bool(value: Any) -> bytes | None:
    """Only real booleans: asyncpg refuses 0 and 1."""
    if value is True:
        return b"\xc3"
    if value is False:
        return b"\xc2"
    return _NULL if value is None else None


def _int_encoder(lowest: int, highest: int) -> Encoder:
    """Encoder of an integer type: the shortest MessagePack integer, header included, whatever the width."""

    def encode(value: Any, pack: Callable[[int], bytes] = _pack_int) -> bytes | None:
        if type(value) is int:
            return pack(value) if lowest <= value <= highest else None
        if value is None:
            return _NULL
        try:
            number = _as_int(value)
            return pack(number) if lowest <= number <= highest else None
        except Exception:
            return None

    return encode


def _as_int(value: Any) -> int:
    """The integer asyncpg sends: `int(value)` where the type has `__int__` (truncating), else `__index__`."""
    if hasattr(type(value), "__int__"):
        value = int(value)
    return operator.index(value)


def _encode_text(value: Any) -> bytes | None:
    """Raw UTF-8 without any header; a str subclass counts by its content, a lone surrogate cannot be sent."""
    if value is None:
        return _NULL
    try:
        return str.encode(value)
    except Exception:
        return None


# ── doubles ─────────────────────────────────────────────────────────────────────────────────────────────────


def _double_encoder(encode_bound: Callable[[float | int], bytes]) -> Encoder:
    def encode(value: Any) -> bytes | None:
        if value is None:
            return _NULL
        try:
            number = value if type(value) is float else _as_double(value)
            bound = _bound(number)
            return _NULL if bound is None else encode_bound(bound)
        except Exception:
            return None

    return encode


def _as_double(value: Any) -> float:
    """The double asyncpg sends: `struct` converts as it does (`__float__`, then `__index__`; no strings)."""
    number: float = _unpack_double(_pack_double(value))[0]
    return number


def _bound(number: float) -> float | int | None:
    """What a float8 is after binding: NULL for NaN, mostly an integer (saturated to int64), else a double.

    *Source*: picodata-recorded.md section 2, "Exact rule for a bound FLOAT8".
    """
    if number != number:
        return None
    magnitude = abs(number)
    if magnitude == math.inf or 0.0 < magnitude < _SMALLEST_NORMAL or math.modf(magnitude)[0] >= _EPSILON:
        return number
    return max(_INT64_MIN, min(_INT64_MAX, int(number)))


def _bound_older(bound: float | int) -> bytes:
    return _pack_int(bound) if isinstance(bound, int) else b"\xcb" + _pack_double(bound)


def _bound_26_1(bound: float | int) -> bytes:
    return _pack_int(bound) if isinstance(bound, int) else _pack_double(bound)


def _cast_older(bound: float | int) -> bytes:
    return b"\xcb" + _pack_double(bound)


def _cast_26_1(bound: float | int) -> bytes:
    """What binding made an integer is an integral double again, and 26.1 hashes those as integers."""
    return _pack_int(int(float(bound))) if isinstance(bound, int) else _pack_double(bound)


# ── decimals, uuids, datetimes ──────────────────────────────────────────────────────────────────────────────


def _encode_decimal(value: Any) -> bytes | None:
    """MessagePack extension 1: scale, then packed decimal digits whose last nibble is the sign.

    Binary numeric keeps the scale and the sign (of zero too) and writes a positive exponent out as zeros. The
    server takes at most 28 digits.
    """
    if value is None:
        return _NULL
    try:
        number = value if isinstance(value, Decimal) else Decimal(value)
        sign, digits, exponent = number.as_tuple()
        if not isinstance(exponent, int) or not -_MAX_DECIMAL_DIGITS <= exponent <= _MAX_DECIMAL_DIGITS:
            return None
        zeros = max(exponent, 0)
        if len(digits) + zeros > _MAX_DECIMAL_DIGITS:
            return None
        significant = ("".join(map(str, digits)) + "0" * zeros).lstrip("0") or "0"
        return _pack_decimal(significant + ("d" if sign else "c"), max(-exponent, 0))
    except Exception:
        return None


def _pack_decimal(nibbles: str, scale: int) -> bytes:
    if len(nibbles) % 2:
        nibbles = "0" + nibbles
    payload = bytes((scale,)) + bytes.fromhex(nibbles)
    return _EXTENSION_HEADERS.get(len(payload), bytes((0xC7, len(payload)))) + b"\x01" + payload


#: MessagePack's fixed-size extension headers by payload length.
_EXTENSION_HEADERS: Final[Mapping[int, bytes]] = {
    1: b"\xd4",
    2: b"\xd5",
    4: b"\xd6",
    8: b"\xd7",
    16: b"\xd8",
}


def _encode_uuid(value: Any) -> bytes | None:
    """MessagePack extension 2 with the 16 bytes in RFC order."""
    if type(value) is UUID:
        return UUID_HEADER + value.bytes
    if value is None:
        return _NULL
    try:
        raw = _uuid_of_text(value) if type(value) is str else bytes(memoryview(value.bytes))
        return UUID_HEADER + raw if len(raw) == 16 else None
    except Exception:
        return None


def _uuid_of_text(text: str) -> bytes:
    """A string as asyncpg reads it: 32 hexadecimal digits, hyphens anywhere, at most 36 characters."""
    digits = text.replace("-", "")
    return bytes.fromhex(digits) if len(text) <= 36 and len(digits) == 32 else b""


def _encode_datetime(value: Any) -> bytes | None:
    """MessagePack extension 4: seconds since 1970 (floored); nanoseconds, offset and zone where there are
    some.

    asyncpg sends UTC, so offset and zone are always 0. A naive datetime is local time. A plain `date` cannot
    be computed: asyncpg gives it the UTC offset of the moment of sending.
    """
    if value is None:
        return _NULL
    try:
        if not issubclass(type(value), datetime) or value in _INFINITIES:
            return None
        since = value.astimezone(UTC) - _PG_EPOCH
        return _pack_datetime(since)
    except Exception:
        return None


def _pack_datetime(since: timedelta) -> bytes | None:
    if since in _INFINITIES_SINCE_EPOCH:
        return None
    seconds = since.days * 86_400 + since.seconds + _PG_EPOCH_SECONDS
    if not since.microseconds:
        return b"\xd7\x04" + _pack_seconds(seconds)
    return b"\xd8\x04" + _pack_moment(seconds, since.microseconds * 1000, 0, 0)


_ENCODERS: Final[Mapping[tuple[int, str], Encoder]] = {
    (BOOL, ""): _encode_bool,
    **{(oid, ""): _int_encoder(*limits) for oid, limits in INTEGERS.items()},
    (TEXT, ""): _encode_text,
    (VARCHAR, ""): _encode_text,
    (FLOAT8, "bound-26.1"): _double_encoder(_bound_26_1),
    (FLOAT8, "bound-older"): _double_encoder(_bound_older),
    (FLOAT8, "cast-26.1"): _double_encoder(_cast_26_1),
    (FLOAT8, "cast-older"): _double_encoder(_cast_older),
    (TIMESTAMPTZ, ""): _encode_datetime,
    (NUMERIC, ""): _encode_decimal,
    (UUID_OID, ""): _encode_uuid,
}

#: The one value of this file that dialects hand out.
PICODATA_KEY_HASH: Final = PicodataKeyHash()
