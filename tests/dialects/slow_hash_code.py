"""YugabyteDB's hash code, slowly: every word cut to 64 bits after every step, bytes put together one by one.

Written from yugabyte-smart-drivers.md section 7.2, and judged by the published vectors as well. The formula of the mix
is read from a table of shifts, so that it shares no line with what it judges.
"""

from __future__ import annotations

WORD = 2**64

#: (which of the three words changes, the one that is shifted, left or right, by how much)
MIX = [
    ("a", "c", "right", 43),
    ("b", "a", "left", 9),
    ("c", "b", "right", 8),
    ("a", "c", "right", 38),
    ("b", "a", "left", 23),
    ("c", "b", "right", 5),
    ("a", "c", "right", 35),
    ("b", "a", "left", 49),
    ("c", "b", "right", 11),
    ("a", "c", "right", 12),
    ("b", "a", "left", 18),
    ("c", "b", "right", 22),
]


def mix(words: dict[str, int]) -> None:
    """Twelve steps: the word loses the two others, then takes the shifted one by exclusive or."""
    for changed, shifted, direction, count in MIX:
        for other in "abc":
            if other != changed:
                words[changed] = (words[changed] - words[other]) % WORD
        moved = words[shifted] * 2**count if direction == "left" else words[shifted] // 2**count
        words[changed] ^= moved % WORD


def jenkins64(encoded: bytes, seed: int = 97) -> int:
    """64-bit `lookup2` of some bytes."""
    words = {"a": 0xE08C1D668B756F82, "b": 0xE08C1D668B756F82, "c": seed}
    rest = list(encoded)
    while len(rest) >= 24:
        for word in "abc":
            words[word] = (words[word] + sum(rest.pop(0) << 8 * place for place in range(8))) % WORD
        mix(words)
    words["c"] = (words["c"] + len(encoded)) % WORD
    places = [(word, place) for word, first in (("a", 0), ("b", 0), ("c", 1)) for place in range(first, 8)]
    for byte, (word, place) in zip(rest, places, strict=False):
        words[word] = (words[word] + (byte << 8 * place)) % WORD
    mix(words)
    return words["c"]


def hash_code(encoded: bytes) -> int:
    """16 bits of it."""
    high, upper, lower, low = (jenkins64(encoded) >> shift & 0xFFFF for shift in (48, 32, 16, 0))
    return high ^ (3 * upper) % 65536 ^ (5 * lower) % 65536 ^ (7 * low) % 65536
