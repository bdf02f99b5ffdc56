"""Many rows of arguments, sorted by who owns them.

What a call does for its one row is done here for a batch at a time, so that it costs a few steps of the interpreter per
row and hardly a call. Buckets are counted from 0 here, as *slots*: bucket 1 is slot 0; -1 stands for "not known".

This file knows no server and no snapshot: hash and owners come as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from picopyn.routing.route import KeyPart
from picopyn.routing.sharding import KeyHash, RowsFunction, compile_key

UNKNOWN: Final = -1


def compile_slots(parts: Sequence[KeyPart], key_hash: KeyHash, bucket_count: int) -> RowsFunction:
    """Compile one key into a function of many rows; what it gives is that of `compile_key` for each of them.

    Args:
        parts: The key's parts in the order of the table's key columns.
        key_hash: The dialect's hash.
        bucket_count: Number of buckets of the tier.

    Returns:
        Rows of arguments → the slot of each; `UNKNOWN` where it cannot be computed or is hashed as NULL.
    """
    key = compile_key(parts, key_hash, bucket_count)

    def slot(row: Any) -> int:
        try:
            bucket = key(row)
        except (KeyError, TypeError):  # it has no such argument, and says so in its own way
            return UNKNOWN
        return UNKNOWN if bucket is None else bucket - 1

    def one_by_one(rows: Sequence[Any]) -> list[int]:
        return list(map(slot, rows))

    if not parts or bucket_count < 1:
        return one_by_one
    columns = [(part.parameter, part.oid, part.form) if part.literal is None else part.literal for part in parts]
    return key_hash.fast_rows(columns, bucket_count, otherwise=one_by_one)


class Groups:
    """Sorts rows by their owners, for one map of owners.

    Args:
        owners: The owner of each slot; None: not known.

    Attributes:
        owners: The same, with None behind the last one, for slot -1.
    """

    __slots__ = ("_at", "_rows", "owners")

    def __init__(self, owners: Sequence[str | None]) -> None:
        self.owners: tuple[str | None, ...] = (*owners, None)
        self._rows: dict[str | None, list[Any]] = {owner: [] for owner in self.owners}
        self._at = [self._rows[owner] for owner in self.owners]

    def __len__(self) -> int:
        """How many owners there are, "not known" included."""
        return len(self._rows)

    def sort(self, rows: Sequence[Any], slots: Sequence[int]) -> dict[str | None, list[Any]]:
        """The rows of each owner, in the order given; owners without any are left out.

        Args:
            rows: The rows.
            slots: The slot of each.
        """
        at = self._at
        for row, slot in zip(rows, slots, strict=True):
            at[slot].append(row)  # written like this it is no call: the interpreter knows the method of a list
        found = {owner: rows_of.copy() for owner, rows_of in self._rows.items() if rows_of}
        for owner in found:
            self._rows[owner].clear()
        return found
