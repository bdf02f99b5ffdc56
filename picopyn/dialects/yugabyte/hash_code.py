"""How YugabyteDB turns the bytes of a hash key into one of 65 536 codes, by which its tables are cut into tablets.

This file knows bytes and numbers only: no type, no table, no tablet. It is plain Python, and for keys of up to eight
bytes (every integer) written out in one piece, since it runs at every keyed call.

*Source*: yugabyte-smart-drivers.md section 7.2 (Jenkins' `lookup2` for 64 bits, seed 97, folded to 16 bits), checked by
every vector that was published (section 7.3).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

#: Number of codes: a tablet holds those from its start (inclusive) to its end (exclusive), which may be this number.
HASH_CODES: Final = 1 << 16

_WORD: Final = (1 << 64) - 1
_START: Final = 0xE08C1D668B756F82
_SEED: Final = 97
_BLOCK: Final = 24
_three_words: Final = Struct("<3Q").unpack_from


def hash_code(encoded: bytes) -> int:
    """The code (0 … 65 535) of a key.

    Args:
        encoded: The encoded columns, one after the other.
    """
    size = len(encoded)
    if size > 8:
        return _fold(_hash(encoded, size))
    # `_mix` and `_fold`, with what is constant for short keys worked out. Numbers may grow beyond 64 bits, or below
    # zero, for as long as their low 64 bits are right: only what is shifted to the right must be cut.
    c = _SEED + size
    a = int.from_bytes(encoded, "little") - c
    b = (_START - c - a ^ a << 9) & _WORD
    c = (c - a - b ^ b >> 8) & _WORD
    a = a - b - c ^ c >> 38
    b = (b - c - a ^ a << 23) & _WORD
    c = (c - a - b ^ b >> 5) & _WORD
    a = a - b - c ^ c >> 35
    b = (b - c - a ^ (a & 0x7FFF) << 49) & _WORD
    c = (c - a - b ^ b >> 11) & _WORD
    a = a - b - c ^ c >> 12
    b = (b - c - a ^ a << 18) & _WORD
    c = c - a - b ^ b >> 22
    return (c >> 48 ^ (c >> 32) * 3 ^ (c >> 16) * 5 ^ c * 7) & 0xFFFF


def _hash(encoded: bytes, size: int) -> int:
    a = b = _START
    c = _SEED
    whole = size - size % _BLOCK
    for at in range(0, whole, _BLOCK):
        first, second, third = _three_words(encoded, at)
        a, b, c = _mix(a + first, b + second, c + third)
    tail = int.from_bytes(encoded[whole:], "little")
    # The lowest byte of the last word stays free for the size.
    return _mix(a + (tail & _WORD), b + (tail >> 64 & _WORD), c + size + (tail >> 128 << 8))[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    """Mix three words; they may come with more than 64 bits, and leave with 64."""
    b, c = b & _WORD, c & _WORD
    a = a - b - c ^ c >> 43
    b = (b - c - a ^ a << 9) & _WORD
    c = (c - a - b ^ b >> 8) & _WORD
    a = a - b - c ^ c >> 38
    b = (b - c - a ^ a << 23) & _WORD
    c = (c - a - b ^ b >> 5) & _WORD
    a = a - b - c ^ c >> 35
    b = (b - c - a ^ a << 49) & _WORD
    c = (c - a - b ^ b >> 11) & _WORD
    a = a - b - c ^ c >> 12
    b = (b - c - a ^ a << 18) & _WORD
    c = (c - a - b ^ b >> 22) & _WORD
    return a & _WORD, b, c


def _fold(h: int) -> int:
    """16 bits of 64."""
    return (h >> 48 ^ (h >> 32) * 3 ^ (h >> 16) * 5 ^ h * 7) & 0xFFFF
