"""From the arguments of a call to the bytes that YugabyteDB hashes, per type of the key column.

Bytes are those of the *column's* type, whatever the parameter's. A value is computed only where there is no doubt what
the server stores for it; NULL, a value asyncpg would refuse, and one whose outcome hangs on something else (a plain
`date` for a timestamp, a negative zero) give None. No argument makes an encoder raise.

Not here, so never keyed: `numeric` and enumerations (their bytes need the server), `money` and the `reg…` types
(asyncpg sends them as text, which the server interprets), and whatever cannot be part of a key. Text counts as its
UTF-8 bytes, which is right for the collation `C` only: whoever knows the column's collation must not come here with
another one.

*Source*: yugabyte-smart-drivers.md section 7.2, table "Encoding per YSQL type"; asyncpg 0.32 `pgproto/codecs/*.pyx` for
what a Python value is sent as.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from operator import index
from struct import Struct
from typing import Any, Final
from uuid import UUID

from picopyn.dialects.yugabyte.hash_code import HASH_CODES, hash_code

#: As `picopyn.dialects.base.Encoder`.
Encoder = Callable[[Any], bytes | None]

#: As `picopyn.dialects.base.KeyFunction`.
KeyFunction = Callable[[Sequence[Any]], int | None]

#: As `picopyn.dialects.base.RowPart`.
RowPart = tuple[int, int, str] | bytes

#: As `picopyn.dialects.base.RowsFunction`.
RowsFunction = Callable[[Sequence[Any]], list[int]]

BOOL: Final = 16
BYTEA: Final = 17
CHAR: Final = 18
NAME: Final = 19
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
TEXT: Final = 25
OID: Final = 26
XID: Final = 28
FLOAT4: Final = 700
FLOAT8: Final = 701
BPCHAR: Final = 1042
VARCHAR: Final = 1043
DATE: Final = 1082
TIME: Final = 1083
TIMESTAMP: Final = 1114
TIMESTAMPTZ: Final = 1184
UUID_OID: Final = 2950
PG_LSN: Final = 3220

INTEGERS: Final = frozenset({INT2, INT4, INT8})
#: Types with a collation.
TEXTS: Final = frozenset({NAME, TEXT, BPCHAR, VARCHAR})

#: Number of bytes a `name` may have. *Source*: PostgreSQL documentation, "Character Types": 64 bytes with terminator.
_LONGEST_NAME: Final = 63
_WHITE: Final = " \t\n\v\f\r"
_PG_EPOCH: Final = datetime(2000, 1, 1)
_PG_EPOCH_UTC: Final = datetime(2000, 1, 1, tzinfo=UTC)
_PG_EPOCH_DAY: Final = date(2000, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
#: asyncpg sends these as PostgreSQL's infinities.
_INFINITIES: Final = (date.max, date.min, datetime.max, datetime.min)
_DAYLIGHT: Final = timedelta(days=2)

_pack_int4: Final = Struct(">i").pack
_pack_int8: Final = Struct(">q").pack
_pack_unsigned: Final = Struct(">I").pack


class YugabyteKeyHash:
    """YugabyteDB's hash of a key, as `picopyn.dialects.base.KeyHash`: its buckets are the hash codes 0 … 65 535."""

    __slots__ = ()

    @staticmethod
    def forms(oid: int) -> tuple[str, ...]:
        """`("",)` for a type whose bytes are computed here, `()` for any other."""
        return ("",) if oid in _ENCODERS else ()

    @staticmethod
    def encoder(oid: int, form: str = "") -> Encoder:
        """The encoder of one key column: argument as the caller passes it → the bytes of the server, or None."""
        return _ENCODERS.get(oid, _never) if not form else _never

    @staticmethod
    def bucket(encoded: bytes, bucket_count: int = HASH_CODES) -> int:
        """Hash code (0 … 65 535) of the concatenated columns; the number of codes is always the same."""
        return hash_code(encoded)

    @staticmethod
    def fast_rows(parts: Sequence[RowPart], bucket_count: int, otherwise: RowsFunction) -> RowsFunction:
        """As `fast_key`: there is none. A hash code counts one less here, so code 0 counts as not known."""
        return otherwise

    @staticmethod
    def fast_key(oid: int, position: int, bucket_count: int, otherwise: KeyFunction) -> KeyFunction:
        """There is no faster way than that of the parts: the hash itself takes most of the time."""
        return otherwise


def _never(value: Any) -> bytes | None:
    return None


# ── integers, booleans ──────────────────────────────────────────────────────────────────────────────────────


def _int_encoder(pack: Callable[[int], bytes]) -> Encoder:
    """Encoder of an integer type: two's complement, high byte first, as wide as the column."""

    def encode(value: Any, pack: Callable[[int], bytes] = pack) -> bytes | None:
        try:
            return pack(value) if type(value) is int else pack(index(value))
        except Exception:  # too large, or no integer
            return None

    return encode


def _encode_unsigned(value: Any) -> bytes | None:
    """Four bytes; asyncpg takes nothing but an `int`."""
    return _pack_unsigned(value) if isinstance(value, int) and 0 <= value < 2**32 else None


def _encode_bool(value: Any) -> bytes | None:
    """Only real booleans: asyncpg refuses 0 and 1."""
    if value is True:
        return b"\x01"
    return b"\x00" if value is False else None


# ── text and bytes ──────────────────────────────────────────────────────────────────────────────────────────


def _encode_text(value: Any) -> bytes | None:
    """UTF-8 without terminator; a lone surrogate cannot be sent."""
    try:
        return str.encode(value)
    except Exception:
        return None


def _encode_name(value: Any) -> bytes | None:
    """As text, unless the server would cut it."""
    encoded = _encode_text(value)
    return encoded if encoded is not None and len(encoded) <= _LONGEST_NAME else None


def _encode_padded(value: Any) -> bytes | None:
    """`char(n)`: without the blanks at the end; with other white space there it is left to the server."""
    encoded = _encode_text(value)
    if encoded is None:
        return None
    trimmed = encoded.rstrip(b" ")
    return trimmed if trimmed == encoded.rstrip(_WHITE.encode()) else None


def _encode_bytes(value: Any) -> bytes | None:
    if type(value) is bytes:
        return value
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _encode_single(value: Any) -> bytes | None:
    """`"char"`: asyncpg takes it as bytes."""
    return value if type(value) is bytes and len(value) == 1 else None


def _encode_uuid(value: Any) -> bytes | None:
    if isinstance(value, UUID):
        return value.bytes
    if type(value) is not str:
        return None
    try:
        digits = value.replace("-", "")
        return bytes.fromhex(digits) if len(value) <= 36 and len(digits) == 32 and digits.isalnum() else None
    except ValueError:
        return None


# ── floating point ──────────────────────────────────────────────────────────────────────────────────────────


def _float_encoder(pack: Callable[[float], bytes], nan: bytes) -> Encoder:
    """IEEE 754, high byte first; NaN in its one form.

    A negative zero equals the other one, but has other bytes: it is left to the server.
    """
    negative_zero = pack(-0.0)

    def encode(value: Any) -> bytes | None:
        if not isinstance(value, float | int):
            return None
        try:
            encoded = nan if value != value else pack(value)
        except Exception:  # too large
            return None
        return None if encoded == negative_zero else encoded

    return encode


# ── days and moments ────────────────────────────────────────────────────────────────────────────────────────


def _encode_date(value: Any) -> bytes | None:
    """Days since 2000-01-01."""
    if type(value) is not date or value in _INFINITIES:
        return None
    return _pack_int4(value.toordinal() - _PG_EPOCH_DAY)


def _encode_time(value: Any) -> bytes | None:
    """Microseconds of the day."""
    if not isinstance(value, time) or value.tzinfo is not None:
        return None
    return _pack_int8(((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond)


def _encode_timestamp(value: Any) -> bytes | None:
    """Microseconds since 2000-01-01."""
    if not isinstance(value, datetime) or value.tzinfo is not None or value in _INFINITIES:
        return None
    return _pack_int8((value - _PG_EPOCH) // _MICROSECOND)


def _encode_timestamptz(value: Any) -> bytes | None:
    """Microseconds since 2000-01-01 in UTC; asyncpg takes a moment without zone as local time."""
    if not isinstance(value, datetime):
        return None
    try:
        naive = value.replace(tzinfo=None)
        if not datetime.min + _DAYLIGHT < naive < datetime.max - _DAYLIGHT:  # near what means infinity
            return None
        return _pack_int8((value.astimezone(UTC) - _PG_EPOCH_UTC) // _MICROSECOND)
    except Exception:
        return None


_ENCODERS: Final[Mapping[int, Encoder]] = {
    BOOL: _encode_bool,
    BYTEA: _encode_bytes,
    CHAR: _encode_single,
    NAME: _encode_name,
    INT8: _int_encoder(_pack_int8),
    INT2: _int_encoder(Struct(">h").pack),
    INT4: _int_encoder(_pack_int4),
    TEXT: _encode_text,
    OID: _encode_unsigned,
    XID: _encode_unsigned,
    FLOAT4: _float_encoder(Struct(">f").pack, b"\x7f\xc0\0\0"),
    FLOAT8: _float_encoder(Struct(">d").pack, b"\x7f\xf8\0\0\0\0\0\0"),
    BPCHAR: _encode_padded,
    VARCHAR: _encode_text,
    DATE: _encode_date,
    TIME: _encode_time,
    TIMESTAMP: _encode_timestamp,
    TIMESTAMPTZ: _encode_timestamptz,
    UUID_OID: _encode_uuid,
    PG_LSN: _int_encoder(_pack_int8),  # so far goes asyncpg
}

#: The one value of this file that dialects hand out.
YUGABYTE_KEY_HASH: Final = YugabyteKeyHash()
