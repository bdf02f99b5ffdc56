"""The bucket of a key: which bytes of a value are hashed, and how; written for the embedded cluster alone.

It knows values, not columns: Picodata hashes a value by its own type, before it becomes the column's. This is
on purpose not the driver's code; both are judged by `tests/recorded/bucket-vectors.json`.

*Source*: `picodata-protocol.md` section 6 (Picodata's `calculate_bucket_id`, Tarantool's `tuple_hash.cc`);
`picodata-recorded.md` section 2 for the older form of doubles.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from picopyn.testing.picodata.planner.statement import Value

_SEED = 13
_MASK = 0xFFFFFFFF
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bucket_of(values: Sequence[Value], bucket_count: int, double_form: str = "older") -> int:
    """Bucket (1 … `bucket_count`) of a key given in the order of the sharding key.

    Args:
        values: One value per column of the key; a `float` is a value that Picodata keeps as a double.
        bucket_count: Number of buckets of the tier; at least 1.
        double_form: `"older"` (Tarantool 2.11.5, what was recorded) or `"26.1"` (Tarantool 2.11.8).
    """
    data = b"".join(hash_input(value, double_form) for value in values)
    return murmur3_32(data) % bucket_count + 1


def hash_input(value: Value, double_form: str = "older") -> bytes:
    """The bytes of one value that enter the hash."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _double(value, double_form)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, UUID):
        return b"\xd8\x02" + value.bytes
    return _datetime(value)


def _integer(value: int) -> bytes:
    """A MessagePack integer in its shortest form, header included."""
    if value >= 0:
        return _unsigned(value)
    if value >= -32:
        return struct.pack(">b", value)
    for limit, header, code in ((0x80, b"\xd0", ">b"), (0x8000, b"\xd1", ">h"), (0x80000000, b"\xd2", ">i")):
        if value >= -limit:
            return header + struct.pack(code, value)
    return b"\xd3" + struct.pack(">q", value)


def _unsigned(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    for limit, header, code in (
        (0x100, b"\xcc", ">B"),
        (0x10000, b"\xcd", ">H"),
        (0x100000000, b"\xce", ">I"),
    ):
        if value < limit:
            return header + struct.pack(code, value)
    return b"\xcf" + struct.pack(">Q", value)


def _double(value: float, form: str) -> bytes:
    raw = struct.pack(">d", value)
    if form == "older":
        return b"\xcb" + raw
    if math.isfinite(value) and value.is_integer() and -(2.0**63) <= value < 2.0**64:
        return _integer(int(value))
    return raw


def _decimal(value: Decimal) -> bytes:
    """A MessagePack decimal: extension 1 with the scale (kept as it is) and packed digits, sign last."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Picodata knows no decimal NaN or infinity"
    text = "".join(map(str, digits)).lstrip("0") or "0"
    nibbles = text + ("d" if sign else "c")
    packed = bytes.fromhex(nibbles.rjust(len(nibbles) + len(nibbles) % 2, "0"))
    payload = _integer(-exponent) + packed
    headers = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}
    header = headers.get(len(payload), b"\xc7" + bytes((len(payload),)))
    return header + b"\x01" + payload


def _datetime(value: datetime) -> bytes:
    """A MessagePack datetime: seconds alone if that says it all, else nanoseconds and offset minutes too."""
    offset = (value.utcoffset() or timedelta()) // timedelta(minutes=1)
    whole, rest = divmod(value - _EPOCH, timedelta(seconds=1))
    nanoseconds = rest // timedelta(microseconds=1) * 1000
    if not nanoseconds and not offset:
        return b"\xd7\x04" + struct.pack("<q", whole)
    return b"\xd8\x04" + struct.pack("<qihh", whole, nanoseconds, offset, 0)


def murmur3_32(data: bytes) -> int:
    """MurmurHash3, x86 32-bit variant, with Tarantool's seed."""
    state = _SEED
    whole = len(data) & ~3
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        state ^= _mixed(block)
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    if tail := data[whole:]:
        state ^= _mixed(int.from_bytes(tail, "little"))
    return _finished(state ^ len(data))


def _mixed(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _finished(state: int) -> int:
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
