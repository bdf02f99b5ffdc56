"""The bucket of a key that is one integer or one text, in as few steps as Python needs: it is computed at every call.

`_quick_keys.c` has the same functions in C, which cost a call less than half (`docs/adr/0016`); these are used where
that could not be compiled. The bytes are those of `bucket_hash`'s encoders; tests compare all three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from picopyn.dialects.picodata.bucket_rows import GREATEST, SEED, hash_of, pack_int

#: As `picopyn.dialects.base.KeyFunction`.
KeyFunction = Callable[[Sequence[Any]], int | None]


def int_key(position: int, bucket_count: int, otherwise: KeyFunction, /) -> KeyFunction:
    """A function of a call's arguments, for an integer among them.

    Args:
        position: Where it stands.
        bucket_count: Number of buckets.
        otherwise: The same for whatever is no plain integer that can be sent.
    """

    def key(args: Sequence[Any]) -> int | None:
        try:
            value = args[position]
            if type(value) is int and value <= GREATEST:
                return hash_of(pack_int(value), SEED) % bucket_count + 1
        except (IndexError, OverflowError):  # it is not there, or less than can be packed
            return None
        return otherwise(args)

    return key


def text_key(position: int, bucket_count: int, otherwise: KeyFunction, /) -> KeyFunction:
    """The same for a text."""

    def key(args: Sequence[Any]) -> int | None:
        try:
            value = args[position]
            if type(value) is str:
                return hash_of(value.encode(), SEED) % bucket_count + 1
        except (IndexError, UnicodeEncodeError):  # it is not there, or has half a surrogate pair
            return None
        return otherwise(args)

    return key
