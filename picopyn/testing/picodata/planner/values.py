"""Values on the wire: what Bind brings becomes Python values, and results become what DataRow carries.

Both formats, text (0) and binary (1), as Picodata speaks them. *Source*: `picodata-protocol.md` section 7,
`picodata-recorded.md` section 2, the recorded DataRows and errors.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from picopyn.testing.picodata.planner import arrays
from picopyn.testing.picodata.planner.errors import ServerError
from picopyn.testing.picodata.planner.literals import (
    double_parameter,
    parse_bool,
    parse_datetime,
    parse_decimal,
    parse_double,
    parse_int,
    parse_uuid,
)
from picopyn.testing.picodata.planner.statement import Value

_EPOCH_2000 = datetime(2000, 1, 1, tzinfo=UTC)
_NAMES = {20: "int8", 23: "int4", 21: "int2", 25: "text", 1043: "varchar", 16: "bool", 701: "float8"} | {
    1700: "numeric",
    2950: "uuid",
    1184: "timestamptz",
}
_INTEGERS = {20: ">q", 23: ">i", 21: ">h"}
_MOST_DIGITS = 28


def decode_parameter(oid: int, format: int, data: bytes | None, number: int) -> Value:
    """One bound value.

    Args:
        oid: Type of the parameter (`Statement.parameter_oids`).
        format: 0 text, 1 binary.
        data: What Bind carried; None for NULL.
        number: Position of the parameter from 1, for the error.

    Raises:
        ServerError: 22P02 or 22P03.
    """
    if data is None:
        return None
    return _decode_text(oid, data, number) if format == 0 else _decode_binary(oid, data, number)


def _decode_text(oid: int, data: bytes, number: int) -> Value:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _undecodable("22P02", number, f"invalid UTF-8 in a {_NAMES.get(oid, 'value')}") from None
    if oid in (25, 1043):
        return text
    if oid in arrays.ELEMENTS:
        return _array_from_text(arrays.ELEMENTS[oid], text, number)
    value = _from_text(oid, text)
    if value is None:
        raise _undecodable("22P02", number, f"'{text}' is not a valid {_NAMES.get(oid, 'value')}")
    return double_parameter(value) if oid == 701 and isinstance(value, float) else value


def _array_from_text(element: int, text: str, number: int) -> Value:
    try:
        found: Any = arrays.from_text(text, lambda part: _decode_text(element, part.encode(), number))
    except ValueError:
        raise _undecodable("22P02", number, f"'{text}' is not a valid array") from None
    return _value(found)


def _value(array: Any) -> Value:
    """An array as a value; it is only passed on."""
    value: Value = array
    return value


def _from_text(oid: int, text: str) -> Value:
    if oid in _INTEGERS:
        value = parse_int(text)
        bits = 8 * struct.calcsize(_INTEGERS[oid]) - 1
        return value if value is not None and -(2**bits) <= value < 2**bits else None
    parsers: dict[int, Callable[[str], Value]] = {
        16: parse_bool,
        701: parse_double,
        1700: parse_decimal,
        2950: parse_uuid,
        1184: parse_datetime,
    }
    return parsers[oid](text)


def _undecodable(sqlstate: str, number: int, what: str) -> ServerError:
    return ServerError(sqlstate, f"failed to bind parameter ${number}: decoding error: {what}")


def _decode_binary(oid: int, data: bytes, number: int) -> Value:
    try:
        return _from_binary(oid, data)
    except (ValueError, OverflowError, struct.error):
        what = f"binary data is not a valid {_NAMES.get(oid, 'value')}"
        raise _undecodable("22P03", number, what) from None


def _from_binary(oid: int, data: bytes) -> Value:
    if oid in _INTEGERS:
        return int(struct.unpack(_INTEGERS[oid], data)[0])
    if oid in (25, 1043):
        return data.decode()
    if oid in arrays.ELEMENTS:
        return _value(arrays.from_binary(data, lambda part: _from_binary(arrays.ELEMENTS[oid], part)))
    if oid == 16:
        return bool(struct.unpack(">?", data)[0])
    if oid == 701:
        return double_parameter(struct.unpack(">d", data)[0])
    if oid == 2950:
        return UUID(bytes=data)
    if oid == 1184:
        return _EPOCH_2000 + timedelta(microseconds=struct.unpack(">q", data)[0])
    return _numeric_from_binary(data)


def _numeric_from_binary(data: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from(">hhHH", data)
    if sign not in (0, 0x4000):
        raise ValueError("NaN or infinity")
    groups = struct.unpack_from(f">{count}h", data, 8)
    number = 0
    for group in groups:
        number = number * 10000 + group
    shift = 4 * (weight - count + 1)
    digits = str(number * 10 ** (shift + scale) if shift + scale >= 0 else number // 10 ** -(shift + scale))
    if len(digits) > _MOST_DIGITS:
        raise ValueError("more digits than the server keeps")
    return Decimal((int(sign == 0x4000), tuple(map(int, digits)), -scale))


def encode_value(oid: int, format: int, value: Any) -> bytes | None:
    """One field of a result.

    Args:
        oid: Type of the column (`Statement.columns`).
        format: 0 text, 1 binary.
        value: What the storage gave: Python values as asyncpg makes them; datetimes also as the text the
            planner's SQL gives (moment and offset), JSON also as text.

    Returns:
        The bytes, or None for NULL.
    """
    value = _presented(oid, value)
    if value is None:
        return None
    return _to_text(oid, value).encode() if format == 0 else _to_binary(oid, value)


def _presented(oid: int, value: Any) -> Any:
    if value is None:
        return None
    if oid == 1184 and isinstance(value, str):
        return stored_datetime(value)
    if oid == 701:
        return None if math.isnan(value) else float(value)
    if oid == 1700 and not isinstance(value, Decimal):
        return Decimal(str(value))
    return value


def stored_datetime(text: str) -> datetime:
    """A datetime out of the text that the planner's SQL makes of it: `2023-07-07T09:34:56.500000|180`."""
    moment, _, minutes = text.partition("|")
    zone = timezone(timedelta(minutes=int(minutes or 0)))
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).astimezone(zone)


def _to_text(oid: int, value: Any) -> str:
    if oid in arrays.ELEMENTS:
        return arrays.to_text(value, lambda part: _to_text(arrays.ELEMENTS[oid], part))
    if oid == 16:
        return "t" if value else "f"
    if oid == 114:
        return json_text(value)
    if oid == 701:
        return _double_text(value)
    if oid == 1700:
        return f"{value:f}"
    return datetime_text(value) if oid == 1184 else str(value)


def json_text(value: Any) -> str:
    """JSON as Picodata writes it: no blanks."""
    loaded = json.loads(value) if isinstance(value, str | bytes) else value
    return json.dumps(loaded, separators=(",", ":"), ensure_ascii=False)


def _double_text(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(value)
    return f"{Decimal(text):f}" if "e" in text else text


def datetime_text(value: datetime) -> str:
    """A datetime as Picodata writes it: microseconds only if there are any, the offset's minutes only if
    there are any.
    """
    offset = value.utcoffset() or timedelta()
    minutes = abs(offset) // timedelta(minutes=1)
    zone = f"{'-' if offset < timedelta() else '+'}{minutes // 60:02d}" + (
        f":{minutes % 60:02d}" if minutes % 60 else ""
    )
    fraction = f".{value.microsecond:06d}" if value.microsecond else ""
    return f"{value:%Y-%m-%d %H:%M:%S}{fraction}{zone}"


def _to_binary(oid: int, value: Any) -> bytes:
    if oid in arrays.ELEMENTS:
        element = arrays.ELEMENTS[oid]
        return arrays.to_binary(element, value, lambda part: _to_binary(element, part))
    if oid == 20:
        return struct.pack(">q", value)
    if oid == 16:
        return struct.pack(">?", value)
    if oid == 701:
        return struct.pack(">d", value)
    if oid == 1700:
        return _numeric_to_binary(value)
    if oid == 2950:
        return UUID(str(value)).bytes
    if oid == 1184:
        return struct.pack(">q", (value - _EPOCH_2000) // timedelta(microseconds=1))
    return _to_text(oid, value).encode()


def _numeric_to_binary(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    whole, _, fraction = f"{abs(value):f}".partition(".")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    text = whole + fraction
    groups = [int(text[at : at + 4]) for at in range(0, len(text), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        groups.pop(0)
        weight -= 1
    while groups and not groups[-1]:
        groups.pop()
    head = struct.pack(">hhHH", len(groups), weight if groups else 0, 0x4000 if sign and any(digits) else 0, scale)
    return head + struct.pack(f">{len(groups)}h", *groups)
