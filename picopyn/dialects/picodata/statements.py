"""What the words of a statement tell: whether it reads, and whether the server may be asked about it.

This file splits a text into words; it knows no grammar and no table. Where words do not suffice it says no.

*Source*: `picodata-protocol.md` section 8 (no comments, no side effects in SELECT and WITH); `key-probe.md`
rule 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: More parameters are asked about only for an INSERT of one row: planning a long IN list can crash
#: an instance.
MOST_PARAMETERS = 64

_TOKEN = re.compile(
    r"""
    (?P<literal>'[^']*(?:''[^']*)*'|"[^"]*(?:""[^"]*)*") |
    (?P<comment>--|/\*) |
    \$(?P<number>\d+) |
    (?P<word>[^\W\d]\w*) |
    (?P<sign>[?(),;$']|") |
    [^\W_]+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_READS = frozenset({"SELECT", "VALUES", "WITH", "EXPLAIN"})
_NEVER_HANG = frozenset({"EXPLAIN", "BEGIN", "COMMIT", "ROLLBACK", "END", "SET", "DEALLOCATE"})
_ASKED = frozenset({"SELECT", "VALUES", "WITH", "INSERT", "UPDATE", "DELETE"})


def is_read(sql: str) -> bool:
    """Whether the statement only reads. A WITH never writes in Picodata, and EXPLAIN does not execute."""
    return _first_word(sql) in _READS


def can_be_asked(sql: str) -> bool:
    """Whether the server may be asked which buckets the statement concerns.

    Not asked: everything but queries and INSERT, UPDATE, DELETE, texts with comments (the server refuses
    them), and more than 64 parameters unless they are one row of an INSERT. Whether a text without parameters
    is worth a question is the asker's affair: it is while a leader is missing.
    """
    if _first_word(sql) not in _ASKED:
        return False
    parameters, one_row = 0, False
    for kind, text in _tokens(sql):
        if kind == "comment" or (kind == "sign" and text in ("'", '"')):
            return False
        if kind == "number":
            parameters = max(parameters, int(text))
        elif kind == "sign" and text == "?":
            parameters += 1
        if parameters > MOST_PARAMETERS and not one_row:
            if not _inserts_one_row(sql):
                return False  # at once: this is asked at every call of such a text, and a bulk INSERT is long
            one_row = True
    return True


def never_hangs(sql: str) -> bool:
    """Whether any live instance answers the statement by itself, whatever the state of the cluster.

    *Source*: `picodata-recorded.md` section 1 (EXPLAIN answers while a leader is dead); `picodata-protocol.md`
    section 8 (transaction words and SET do nothing, DEALLOCATE is the connection's own).
    """
    return _first_word(sql) in _NEVER_HANG


def _first_word(sql: str) -> str:
    """The first word in capitals, behind blanks and opening parentheses; empty if anything else is first."""
    for kind, text in _tokens(sql):
        if kind == "word":
            return text.upper()
        if kind != "sign" or text != "(":
            return ""
    return ""


def _inserts_one_row(sql: str) -> bool:
    """Whether the text is an INSERT … VALUES with one parenthesised row."""
    if _first_word(sql) != "INSERT":
        return False
    depth, rows, values = 0, 0, False
    for kind, text in _tokens(sql):
        if kind == "word" and depth == 0:
            if values:
                break
            values = text.upper() == "VALUES"
        elif text == "(":
            rows += values and depth == 0
            if rows > 1:
                break
            depth += 1
        elif text == ")":
            depth -= 1
    return rows == 1


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of all but blanks; kinds: literal, comment, number (of a parameter), word, sign, other."""
    for token in _TOKEN.finditer(sql):
        kind = token.lastgroup or "other"
        text = token[kind] if token.lastgroup else token[0]
        if not text.isspace():
            yield kind, text
