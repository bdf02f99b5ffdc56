"""A second, slow statement of Picodata's key encoding, from the bytes a server receives to the bytes it
hashes.

Written from `picodata-protocol.md` section 6, `picodata-recorded.md` section 2, the MessagePack specification
and PostgreSQL's binary formats; it shares no code with the driver.
"""

from __future__ import annotations

import struct
from fractions import Fraction

EXTENSION = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


class Refused(Exception):  # noqa: N818 - an answer of the server
    """The server does not take this value."""


def hashed(oid: int, sent: bytes | None, form: str = "") -> bytes:
    """Bytes that a server hashes for one parameter received in binary format.

    Raises:
        Refused: The server answers 22P03.
    """
    if sent is None:
        return b"\xc0"
    if oid == 16:
        return b"\xc3" if sent == b"\1" else b"\xc2"
    if oid in (20, 21, 23):
        return messagepack_int(int.from_bytes(sent, "big", signed=True))
    if oid in (25, 1043):
        return sent
    if oid == 701:
        return double(struct.unpack(">d", sent)[0], form)
    if oid == 1184:
        return moment(int.from_bytes(sent, "big", signed=True))
    if oid == 1700:
        return decimal(sent)
    if oid == 2950:
        if len(sent) != 16:
            raise Refused
        return extension(2, sent)
    raise AssertionError(oid)


def messagepack_int(number: int) -> bytes:
    """The shortest integer format of the MessagePack specification."""
    if 0 <= number < 128:
        return struct.pack(">B", number)
    if -32 <= number < 0:
        return struct.pack(">b", number)
    if number > 0:
        for tag, code, top in ((0xCC, "B", 8), (0xCD, "H", 16), (0xCE, "I", 32), (0xCF, "Q", 64)):
            if number < 1 << top:
                return bytes([tag]) + struct.pack(">" + code, number)
    for tag, code, top in ((0xD0, "b", 7), (0xD1, "h", 15), (0xD2, "i", 31), (0xD3, "q", 63)):
        if number >= -(1 << top):
            return bytes([tag]) + struct.pack(">" + code, number)
    raise AssertionError(number)


def extension(kind: int, payload: bytes) -> bytes:
    """An extension value of the MessagePack specification."""
    size = len(payload)
    header = bytes([EXTENSION[size]]) if size in EXTENSION else bytes([0xC7, size])
    return header + bytes([kind]) + payload


def double(number: float, form: str) -> bytes:
    """Binding makes most doubles integers, a cast makes them doubles again, each release hashes its way."""
    where, release = form.split("-")
    ieee = struct.pack(">d", number)
    exponent = (ieee[0] & 0x7F) << 4 | ieee[1] >> 4
    mantissa_is_zero = not (int.from_bytes(ieee, "big") & ((1 << 52) - 1))
    if exponent == 0x7FF and not mantissa_is_zero:
        return b"\xc0"
    infinite, subnormal = exponent == 0x7FF, exponent == 0 and not mantissa_is_zero
    if not infinite and not subnormal:
        exact = Fraction(number)
        whole = int(exact)
        if abs(exact - whole) < Fraction(1, 2**52):
            whole = min(max(whole, -(2**63)), 2**63 - 1)
            if where == "bound":
                return messagepack_int(whole)
            number = float(whole)
            if release == "26.1":
                return messagepack_int(int(number))
            ieee = struct.pack(">d", number)
    return ieee if release == "26.1" else b"\xcb" + ieee


def moment(microseconds: int) -> bytes:
    """Timestamptz: microseconds since 2000-01-01 UTC."""
    if microseconds in (2**63 - 1, -(2**63)):
        raise Refused
    seconds, rest = divmod(microseconds, 10**6)
    seconds += 946_684_800
    if rest == 0:
        return extension(4, seconds.to_bytes(8, "little", signed=True))
    tail = (rest * 1000).to_bytes(4, "little") + bytes(4)
    return extension(4, seconds.to_bytes(8, "little", signed=True) + tail)


def decimal(sent: bytes) -> bytes:
    """Numeric: digits to the base 10 000, weight of the first, sign, number of decimals."""
    count, weight, sign, scale = struct.unpack_from(">HhHH", sent)
    if sign not in (0, 0x4000) or scale > 28 or weight > 7:
        raise Refused
    groups = struct.unpack_from(f">{count}H", sent, 8)
    if weight > 6 and not any(groups):
        raise Refused("a zero with 28 and more zeros before its point: not recorded, better not computed")
    value = sum((Fraction(10_000) ** (weight - i) * group for i, group in enumerate(groups)), Fraction(0))
    coefficient = value * 10**scale
    assert coefficient.denominator == 1
    digits = str(coefficient.numerator)
    if len(digits) > 28:
        raise Refused
    nibbles = digits + ("d" if sign else "c")
    return extension(1, bytes([scale]) + bytes.fromhex(nibbles.rjust(len(nibbles) + len(nibbles) % 2, "0")))


def murmur3(message: bytes, seed: int = 13) -> int:
    """MurmurHash3 x86 32 bit."""
    mask, state = 0xFFFFFFFF, seed

    def rotate(word: int, by: int) -> int:
        return (word << by | word >> (32 - by)) & mask

    def mixed(word: int) -> int:
        return rotate(word * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask

    whole = len(message) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(message[at : at + 4], "little")
        state = (rotate(state ^ mixed(word), 13) * 5 + 0xE6546B64) & mask
    state ^= mixed(int.from_bytes(message[whole:], "little"))
    state ^= len(message)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ state >> shift) * factor & mask
    return state


def bucket(encoded: bytes, bucket_count: int) -> int:
    """Bucket of a whole key."""
    return murmur3(encoded) % bucket_count + 1
