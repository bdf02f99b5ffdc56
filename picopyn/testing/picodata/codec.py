"""Values between the wire and Python, for the types Picodata has. Pure.

Decides how a bound parameter is read and how a result value is written, in text and in binary form. Must not
know statements or storage. `datetime` values keep the offset they came with.

*Source*: `picodata-protocol.md` section 7 (types), `picodata-recorded.md` section 2 (what is refused);
binary forms as PostgreSQL's `send` and `receive` functions define them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from picopyn.testing.picodata.planner.errors import ServerError

Value = Any

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_int64 = struct.Struct("!q")
_double = struct.Struct("!d")
_NAMES = {20: "int8", 21: "int2", 23: "int4", 25: "text", 1043: "varchar", 16: "bool", 701: "float8"}
_NAMES |= {1700: "numeric", 2950: "uuid", 1184: "timestamptz"}
_TRUE = {"t", "true", "y", "yes", "on", "1"}
_FALSE = {"f", "false", "n", "no", "off", "0"}


def decode(oid: int, code: int, raw: bytes, number: int) -> Value:
    """Read parameter `number` (one-based) of type `oid`, sent in format `code` (0 text, 1 binary).

    A double that is not a number becomes None: that is what Picodata makes of it.

    Raises:
        ServerError: 22P02 for a bad text, 22P03 for bad binary data.
    """
    name = _NAMES.get(oid, "text")
    try:
        if code:
            return _BINARY_IN[name](raw)
        return _TEXT_IN[name](raw.decode())
    except (ValueError, InvalidOperation, struct.error, OverflowError):
        if code:
            fault = ServerError(
                "22P03",
                f"failed to bind parameter ${number}: decoding error: binary data is not a valid {name}",
            )
        else:
            shown = raw.decode(errors="replace")
            fault = ServerError(
                "22P02",
                f"failed to bind parameter ${number}: decoding error: '{shown}' is not a valid {name}",
            )
        raise fault from None


def _int_in(bits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text) if text.lstrip("+-").isascii() and text.lstrip("+-").isdigit() else _no(text)
        return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else _no(text)

    return read


def _no(text: object) -> Any:
    raise ValueError(text)


def _int_binary(size: int) -> Callable[[bytes], int]:
    def read(raw: bytes) -> int:
        return int.from_bytes(raw, "big", signed=True) if len(raw) == size else _no(raw)

    return read


def _bool_in(text: str) -> bool:
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else _no(text)


def _double_in(text: str) -> float | None:
    value = float(text)
    return None if math.isnan(value) else value


def _decimal_in(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        _no(text)
    return Decimal(format(value, "f"))


def _uuid_in(text: str) -> UUID:
    return UUID(text) if len(text) in (32, 36) else _no(text)


def _datetime_in(text: str) -> datetime:
    if len(text) == 10:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    value = datetime.fromisoformat(text)
    return value if value.tzinfo is not None else _no(text)


def _bool_binary(raw: bytes) -> bool:
    return raw == b"\1" if len(raw) == 1 else _no(raw)


def _double_binary(raw: bytes) -> float | None:
    value: float = _double.unpack(raw)[0]
    return None if math.isnan(value) else value


def _uuid_binary(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _datetime_binary(raw: bytes) -> datetime:
    micros: int = _int64.unpack(raw)[0]
    return _EPOCH + timedelta(microseconds=micros)


def _decimal_binary(raw: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from("!hhHh", raw)
    if sign not in (0, 0x4000):
        _no(raw)
    digits = struct.unpack_from(f"!{count}h", raw, 8)
    unscaled = 0
    for digit in digits:
        unscaled = unscaled * 10_000 + digit
    shift = scale + 4 * (weight - count + 1)
    unscaled = unscaled * 10**shift if shift >= 0 else unscaled // 10**-shift
    if unscaled >= 1 << 96 or scale > 28:
        _no(raw)
    return (
        Decimal(unscaled if sign == 0 else -unscaled).scaleb(-scale)
        if unscaled
        else Decimal(0).scaleb(-scale)
    )


_TEXT_IN: dict[str, Callable[[str], Value]] = {
    "int8": _int_in(64),
    "int4": _int_in(32),
    "int2": _int_in(16),
    "text": str,
    "varchar": str,
    "bool": _bool_in,
    "float8": _double_in,
    "numeric": _decimal_in,
    "uuid": _uuid_in,
    "timestamptz": _datetime_in,
}
_BINARY_IN: dict[str, Callable[[bytes], Value]] = {
    "int8": _int_binary(8),
    "int4": _int_binary(4),
    "int2": _int_binary(2),
    "text": bytes.decode,
    "varchar": bytes.decode,
    "bool": _bool_binary,
    "float8": _double_binary,
    "numeric": _decimal_binary,
    "uuid": _uuid_binary,
    "timestamptz": _datetime_binary,
}


def encoder(oid: int, code: int) -> Callable[[Value], bytes]:
    """The function that writes values of type `oid` in format `code`; None never reaches it."""
    return (_BINARY_OUT if code else _TEXT_OUT).get(oid, _text_out)


def _text_out(value: Value) -> bytes:
    return str(value).encode()


def _double_out(value: float) -> bytes:
    text = repr(float(value))
    return (text[:-2] if text.endswith(".0") else text.replace("nan", "NaN")).encode()


def _decimal_out(value: Decimal) -> bytes:
    return format(value, "f").encode()


def _bool_out(value: bool) -> bytes:
    return b"t" if value else b"f"


def _datetime_out(value: datetime) -> bytes:
    text = value.strftime("%Y-%m-%d %H:%M:%S")
    offset = value.utcoffset() or timedelta()
    minutes = abs(int(offset.total_seconds())) // 60
    sign = "-" if offset < timedelta() else "+"
    fraction = f".{value.microsecond:06}" if value.microsecond else ""
    rest = f":{minutes % 60:02}" if minutes % 60 else ""
    return f"{text}{fraction}{sign}{minutes // 60:02}{rest}".encode()


def _decimal_binary_out(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return struct.pack("!hhHh", 0, 0, 0xC000, 0)
    scale = max(0, -exponent)
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(0, exponent)
    unscaled *= 10 ** (-scale % 4)
    groups: list[int] = []
    while unscaled:
        unscaled, group = divmod(unscaled, 10_000)
        groups.append(group)
    weight = len(groups) - 1 - (scale + 3) // 4
    groups.reverse()
    while groups and groups[-1] == 0:
        groups.pop()
    head = struct.pack("!hhHh", len(groups), weight if groups else 0, 0x4000 if sign and groups else 0, scale)
    return head + struct.pack(f"!{len(groups)}h", *groups)


def _datetime_binary_out(value: datetime) -> bytes:
    return _int64.pack((value - _EPOCH) // timedelta(microseconds=1))


_TEXT_OUT: dict[int, Callable[[Value], bytes]] = {
    16: _bool_out,
    701: _double_out,
    1700: _decimal_out,
    1184: _datetime_out,
}
_BINARY_OUT: dict[int, Callable[[Value], bytes]] = {
    16: lambda value: b"\1" if value else b"\0",
    20: _int64.pack,
    701: _double.pack,
    1700: _decimal_binary_out,
    2950: lambda value: value.bytes,
    1184: _datetime_binary_out,
}
