"""Many rows of arguments, sorted by who owns them.

What a call does for its one row is done here for a batch at a time, so that it costs a few steps of the interpreter per
row and hardly a call. Buckets are counted from 0 here, as *slots*: bucket 1 is slot 0; -1 stands for "not known".

This file knows no server and no snapshot: hash and owners come as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from picopyn.routing.route import KeyPart
from picopyn.routing.sharding import KeyHash

#: Rows of arguments → the slot of each; `UNKNOWN` where it cannot be computed or is hashed as NULL.
SlotsFunction = Callable[[Sequence[Any]], list[int]]

UNKNOWN: Final = -1


def compile_slots(parts: Sequence[KeyPart], key_hash: KeyHash, bucket_count: int) -> SlotsFunction:
    """Compile one key into a function of many rows; what it gives is that of `compile_key` for each of them.

    Args:
        parts: The key's parts in the order of the table's key columns.
        key_hash: The dialect's hash.
        bucket_count: Number of buckets of the tier.
    """
    if not parts or bucket_count < 1:
        return lambda rows: [UNKNOWN] * len(rows)
    columns = [_column(part, key_hash) for part in parts]
    nulls = [(None, key_hash.encoder(part.oid, part.form)(None)) for part in parts]

    def slots(rows: Sequence[Any]) -> list[int]:
        try:
            encoded = [encode(list(map(value, rows))) for value, encode in columns]
        except (IndexError, KeyError, TypeError):  # a row without that argument
            return [UNKNOWN] if len(rows) == 1 else [slot for row in rows for slot in slots((row,))]
        keys = [part for part, _ in encoded]
        if all(sound for _, sound in encoded):
            whole: Any = keys[0] if len(keys) == 1 else map(b"".join, zip(*keys, strict=True))
            return key_hash.bucket_many(whole, bucket_count)
        return [
            UNKNOWN
            if any(part in bad for part, bad in zip(key, nulls, strict=True))
            else key_hash.bucket(b"".join(key), bucket_count) - 1
            for key in zip(*keys, strict=True)
        ]

    return slots


def _column(
    part: KeyPart, key_hash: KeyHash
) -> tuple[Callable[[Any], Any], Callable[[Sequence[Any]], tuple[list[Any], bool]]]:
    """What takes the value of one part out of a row, and what encodes it for many rows."""
    literal = part.literal
    if literal is None:
        return itemgetter(part.parameter), key_hash.encode_many(part.oid, part.form)
    return type, lambda rows: ([literal] * len(rows), True)  # whatever the row has


class Groups:
    """Sorts rows by their owners, for one map of owners.

    Args:
        owners: The owner of each slot; None: not known.

    Attributes:
        owners: The same, with None behind the last one, for slot -1.
    """

    __slots__ = ("_put", "_rows", "owners")

    def __init__(self, owners: Sequence[str | None]) -> None:
        self.owners: tuple[str | None, ...] = (*owners, None)
        self._rows: dict[str | None, list[Any]] = {owner: [] for owner in self.owners}
        self._put = [self._rows[owner].append for owner in self.owners]

    def __len__(self) -> int:
        """How many owners there are, "not known" included."""
        return len(self._rows)

    def sort(self, rows: Sequence[Any], slots: Sequence[int]) -> dict[str | None, list[Any]]:
        """The rows of each owner, in the order given; owners without any are left out.

        Args:
            rows: The rows.
            slots: The slot of each.
        """
        put = self._put
        for row, slot in zip(rows, slots, strict=True):
            put[slot](row)
        found = {owner: rows_of.copy() for owner, rows_of in self._rows.items() if rows_of}
        for owner in found:
            self._rows[owner].clear()
        return found
