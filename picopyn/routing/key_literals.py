"""The literals of a text as parts of a key: the bytes that a server may hash for each of them.

A literal is hashed as the type the statement gives it, which the text alone does not tell; so each literal has a few
readings, and the buckets decide which one is meant. This file splits a text into words; it knows no grammar, no table
and no answers.

*Source*: key-probe.md rule 7; picodata-recorded.md section 3 (`a = $1 AND b = 'x'`); recorded plans: `id = 1.0` is
hashed as a decimal, `id = '1'` as an integer, `k = '2023-07-07T12:34:56Z'` as a moment, `f IS TRUE` as a boolean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from picopyn.routing.key_values import BOOL, FLOAT8, NUMERIC, TIMESTAMPTZ, UUID_OID, literal_values
from picopyn.routing.sharding import KeyHash

#: At most this many readings of a text's literals become parts of keys; the last ones, for conditions stand at the end.
MAX_READINGS: Final = 48

_INT8, _TEXT = 20, 25

#: As in `key_values`, with signs and the words for booleans.
_TOKEN: Final = re.compile(
    r"""'(?P<text>[^']*(?:''[^']*)*)'|"[^"]*(?:""[^"]*)*"|\$\d+"""
    r"""|(?P<sign>-?)(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!\w)|\.\d+)|(?P<word>\w+)""",
    re.DOTALL,
)

#: Types of which a quoted literal may be.
_QUOTED: Final = (_TEXT, _INT8, UUID_OID, TIMESTAMPTZ, NUMERIC, FLOAT8)


def literal_readings(sql: str, key_hash: KeyHash) -> tuple[bytes, ...]:
    """The different byte strings that literals of a text may be hashed as, at most `MAX_READINGS`.

    Args:
        sql: The statement's text.
        key_hash: The dialect's hash.
    """
    found: dict[bytes, None] = {}
    casts = "::" in sql or "cast" in sql.lower()
    for oid, value in _typed(sql, casts):
        for form in key_hash.forms(oid):
            encoded = key_hash.encoder(oid, form)(value)
            if encoded is not None:
                found.pop(encoded, None)
                found[encoded] = None
    return tuple(found)[-MAX_READINGS:]


def _typed(sql: str, casts: bool) -> Iterator[tuple[int, Any]]:
    for token in _TOKEN.finditer(sql):
        if token["text"] is not None:
            text = token["text"].replace("''", "'")
            for oid in _QUOTED:
                yield from ((oid, value) for value in literal_values(oid, (text,)))
        elif token["number"] is not None:
            with suppress(InvalidOperation):
                number = Decimal(token["sign"] + token["number"])
                for oid in _number_types(token["number"], casts):
                    yield from ((oid, value) for value in literal_values(oid, (number,)) if (value < 0) is (number < 0))
        elif token["word"] is not None and token["word"].lower() in ("true", "false"):
            yield BOOL, token["word"].lower() == "true"


def _number_types(written: str, casts: bool) -> tuple[int, ...]:
    """Types that a number may have as written; a cast anywhere in the text leaves all of them open."""
    if casts:
        return (_INT8, NUMERIC, FLOAT8)
    if "e" in written.lower():
        return (FLOAT8, NUMERIC)
    return (NUMERIC,) if "." in written else (_INT8,)
