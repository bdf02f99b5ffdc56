"""The buckets of many keys: what `bucket_hash` does for one, in few steps of the interpreter per row.

A load asks for the bucket of every row, so a call of ours per row is too much. What is written here is one expression a
row, made of functions in C, for each shape that a key mostly has: one or two columns, integers or texts. Every other
key is put together column by column. Rows for which that does not do (a value of another type, NULL, one out of range)
are left to the function that does one after the other: only that one knows what asyncpg makes of odd values. They take
a few of their neighbours with them, not the whole batch.

This file decides nothing about bytes: they are those of `bucket_hash`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import add, attrgetter, itemgetter
from typing import Any, Final, cast
from uuid import UUID

import mmh3
import msgspec

#: As `picopyn.dialects.base.Encoder`.
Encoder = Callable[[Any], bytes | None]

#: As `picopyn.dialects.base.RowPart`.
RowPart = tuple[int, int, str] | bytes

#: As `picopyn.dialects.base.RowsFunction`.
RowsFunction = Callable[[Sequence[Any]], list[int]]

SEED: Final = 13
#: The hash; it costs less than `mmh3.hash`, which reads its arguments by name.
hash_of: Final = mmh3.mmh3_32_uintdigest
#: The bytes of an integer that fits into 64 bits.
pack_int: Final[Callable[[int], bytes]] = msgspec.msgpack.Encoder().encode

#: The integer types, with their least and greatest value.
INTEGERS: Final = {21: (-(2**15), 2**15 - 1), 23: (-(2**31), 2**31 - 1), 20: (-(2**63), 2**63 - 1)}
TEXTS: Final = (25, 1043)
UUID_OID: Final = 2950
#: What stands before the 16 bytes of a UUID.
UUID_HEADER: Final = b"\xd8\x02"

#: Rows that go through all steps together: so few that what is made on the way stays in the processor's caches.
STRETCH: Final = 1024
#: Rows that go one after the other where one of them is odd.
FEW: Final = 32

#: The greatest integer that can be sent.
GREATEST: Final = 2**63 - 1
#: The kinds of columns that have expressions of their own. Smaller integers are rare: Picodata has one type of them.
_KINDS: Final = {20: "int", **dict.fromkeys(TEXTS, "text")}
#: What a row raises that does not fit its expression: no text, half a surrogate pair, below all integers, too short.
_ODD: Final = (TypeError, UnicodeEncodeError, OverflowError, LookupError)

#: A function for rows, from the positions of one or two columns, the number of buckets, and what does for odd rows.
_Shape = Callable[[Sequence[int], int, RowsFunction], RowsFunction]


def compile_rows(
    parts: Sequence[RowPart], bucket_count: int, encoder: Callable[[int, str], Encoder], otherwise: RowsFunction
) -> RowsFunction:
    """Compile a key into a function of many rows.

    Args:
        parts: The key: position, type OID and form of each argument, or the bytes of a literal.
        bucket_count: Number of buckets.
        encoder: The encoder of a type and form.
        otherwise: What does the same one row after the other.
    """
    columns = [part for part in parts if not isinstance(part, bytes)]
    shape = _SHAPES.get(tuple(_KINDS.get(oid, "") for _, oid, _ in columns)) if len(columns) == len(parts) else None
    if not columns:
        return otherwise
    if shape is None:
        fast = _any(parts, bucket_count, encoder, otherwise)
    else:
        fast = shape([position for position, _, _ in columns], bucket_count, otherwise)

    def slots(rows: Sequence[Any]) -> list[int]:
        try:
            return fast(rows) if rows else []
        except _ODD:
            if len(rows) <= FEW:
                return otherwise(rows)
            pieces = _pieces(rows, STRETCH if len(rows) > STRETCH else FEW)
            return [slot for some in pieces for slot in slots(some)]

    return slots


def _pieces(rows: Sequence[Any], step: int) -> Iterator[Sequence[Any]]:
    return (rows[first : first + step] for first in range(0, len(rows), step))


# An integer is looked at: True and an IntEnum have the bytes of something else. A text need not be: the method refuses
# whatever is none. `for i in (row[a],)` is how an expression gets a local name.


def _int(at: Sequence[int], count: int, odd: RowsFunction) -> RowsFunction:
    (a,), pack, top = at, pack_int, GREATEST
    return lambda rows: [
        hash_of(pack(i), SEED) % count if type(i) is int and i <= top else odd((row,))[0]
        for row in rows
        for i in (row[a],)
    ]


def _text(at: Sequence[int], count: int, odd: RowsFunction) -> RowsFunction:
    (a,), encode = at, str.encode
    return lambda rows: [hash_of(encode(row[a]), SEED) % count for row in rows]


def _int_int(at: Sequence[int], count: int, odd: RowsFunction) -> RowsFunction:
    (a, b), pack, top = at, pack_int, GREATEST
    return lambda rows: [
        hash_of(pack(i) + pack(j), SEED) % count
        if type(i) is int and type(j) is int and i <= top and j <= top
        else odd((row,))[0]
        for row in rows
        for i in (row[a],)
        for j in (row[b],)
    ]


def _int_text(at: Sequence[int], count: int, odd: RowsFunction) -> RowsFunction:
    (a, b), pack, encode, top = at, pack_int, str.encode, GREATEST
    return lambda rows: [
        hash_of(pack(i) + encode(row[b]), SEED) % count if type(i) is int and i <= top else odd((row,))[0]
        for row in rows
        for i in (row[a],)
    ]


def _text_int(at: Sequence[int], count: int, odd: RowsFunction) -> RowsFunction:
    (a, b), pack, encode, top = at, pack_int, str.encode, GREATEST
    return lambda rows: [
        hash_of(encode(row[a]) + pack(i), SEED) % count if type(i) is int and i <= top else odd((row,))[0]
        for row in rows
        for i in (row[b],)
    ]


def _text_text(at: Sequence[int], count: int, odd: RowsFunction) -> RowsFunction:
    (a, b), encode = at, str.encode
    return lambda rows: [hash_of(encode(row[a]) + encode(row[b]), SEED) % count for row in rows]


_SHAPES: Final[Mapping[tuple[str, ...], _Shape]] = {
    ("int",): _int,
    ("text",): _text,
    ("int", "int"): _int_int,
    ("int", "text"): _int_text,
    ("text", "int"): _text_int,
    ("text", "text"): _text_text,
}


def _any(
    parts: Sequence[RowPart], count: int, encoder: Callable[[int, str], Encoder], otherwise: RowsFunction
) -> RowsFunction:
    """Column by column: whatever the columns are."""
    columns = [_literal(part) if isinstance(part, bytes) else _column(part, encoder) for part in parts]

    return lambda rows: [
        hash_of(key, SEED) % count
        for some in _pieces(rows, STRETCH)
        for key in _joined([column(some) for column in columns])
    ]


def _joined(encoded: list[Iterable[bytes]]) -> Iterable[bytes]:
    if len(encoded) == 1:
        return encoded[0]
    return map(add, *encoded) if len(encoded) == 2 else map(b"".join, zip(*encoded, strict=True))


_integer_of: Final = attrgetter("int")
_bytes_of: Final[Callable[[int, int, str], bytes]] = int.to_bytes  # type: ignore[assignment]

#: The encoded values of one column of the key.
_Column = Callable[[Sequence[Any]], Iterable[bytes]]


def _literal(part: bytes) -> _Column:
    return lambda rows: repeat(part, len(rows))


def _column(part: tuple[int, int, str], encoder: Callable[[int, str], Encoder]) -> _Column:
    position, oid, form = part
    value = itemgetter(position)
    if oid in INTEGERS:
        return partial(_integers, value, *INTEGERS[oid])
    if oid in TEXTS:
        return lambda rows: map(str.encode, map(value, rows))
    by_itself = partial(_one_by_one, encoder(oid, form))
    if oid == UUID_OID:
        return lambda rows: _uuids(list(map(value, rows)), by_itself)
    return lambda rows: by_itself(list(map(value, rows)))


def _one_by_one(encode: Encoder, values: list[Any]) -> Iterable[bytes]:
    encoded = list(map(encode, values))
    if None in encoded or encode(None) in encoded:
        raise TypeError("not all have a place by themselves")
    return cast(list[bytes], encoded)


def _uuids(values: list[Any], otherwise: Callable[[list[Any]], Iterable[bytes]]) -> Iterable[bytes]:
    """Python's own, by the integers that they are: `bytes` would be a function of Python's for each."""
    if set(map(type, values)) != {UUID}:
        return otherwise(values)
    return map(UUID_HEADER.__add__, map(_bytes_of, map(_integer_of, values), repeat(16), repeat("big")))


def _integers(value: Callable[[Any], Any], lowest: int, highest: int, rows: Sequence[Any]) -> Iterable[bytes]:
    values = list(map(value, rows))
    if list(map(type, values)).count(int) < len(values) or min(values) < lowest or max(values) > highest:
        raise TypeError("not all are plain integers of this type")
    return map(pack_int, values)
