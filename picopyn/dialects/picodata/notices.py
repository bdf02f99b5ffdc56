"""Reads the notice in which Picodata describes a statement while preparing it.

This file knows the shape of the notice; it does not know which connections receive one, or what is done with
it.

*Source*: Picodata, ADR 2025-09-12 "pgproto query metadata", `src/pgproto/messages.rs` (26.1.0 and later).
"""

from __future__ import annotations

import msgspec

from picopyn.dialects.base import StatementNotice


class _Metadata(msgspec.Struct, tag_field="type", tag="PreparedStatementMetadata"):
    query: str
    tier: str | None = None
    dk_meta: list[tuple[int, int]] = []


_decoder = msgspec.json.Decoder(_Metadata)


def read_notice(text: str) -> StatementNotice | None:
    """The statement metadata in the text of a notice; None when it is any other notice."""
    if not text.startswith("{"):
        return None
    try:
        said = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if any(number < 1 for number, _ in said.dk_meta):
        return None
    return StatementNotice(said.query, said.tier, tuple(said.dk_meta))
