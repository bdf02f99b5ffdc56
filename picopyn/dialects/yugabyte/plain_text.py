"""Whether the text of a statement is plain enough to be given to a parser, and the text without its comments.

A parser of SQL takes seconds for a text of a megabyte and calls itself for every bracket, so what it sees is bounded
here first: in length, in tokens, in nesting. What dialects of SQL write differently (dollar quotes, prefixes of
strings, backslashes, names beyond ASCII) is refused, so that no two readers can disagree about where a string ends.

*Source*: PostgreSQL documentation, "Lexical Structure".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: Characters and tokens of the longest text that is looked at.
LONGEST: Final = 10_000
MOST_TOKENS: Final = 1_500
#: Brackets, CASE and NOT that may be open; operators that may follow each other.
DEEPEST: Final = 20
LONGEST_RUN: Final = 8

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\r\n]*|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)
    |(?P<string>'(?:[^'\\\0]|'')*')
    |(?P<name>"(?:[^"\\\0]|"")+")
    |(?P<parameter>\$[0-9]{1,5}(?![0-9A-Za-z_$]))
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![0-9A-Za-z_$]))
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*(?![$'"\w]))
    |(?P<open>[(\[])
    |(?P<close>[)\]])
    |(?P<operator>[+*<>=~!@%^|,.:?;]|-(?!-)|/(?!\*)|&(?!['"]))""",
    re.VERBOSE | re.ASCII,
)
#: Statements with a key.
_FIRST: Final = frozenset({"select", "insert", "update", "delete"})


def plain_text(text: str) -> str | None:
    """The text without comments and without a semicolon at its end; None when it is not to be parsed."""
    if len(text) > LONGEST:
        return None
    tokens: list[tuple[str, str]] = []
    for kind, token in _tokens(text):
        tokens.append((kind, token))
        if not kind or len(tokens) > MOST_TOKENS:
            return None
    while tokens and (tokens[-1][0] == "space" or tokens[-1][1] == ";"):
        tokens.pop()
    words = [token.lower() for kind, token in tokens if kind == "word"]
    if not words or words[0] not in _FIRST or words.count("select") > (words[0] == "select"):
        return None
    if any(token == ";" for _, token in tokens) or not _is_shallow(tokens):
        return None
    return "".join(map(_written, tokens)).strip()


def _written(token: tuple[str, str]) -> str:
    """A token as it is passed on; after a parameter comes a blank, for `$1,$` begins a quoted text to some."""
    kind, text = token
    return " " if kind == "space" else f"{text} " if kind == "parameter" else text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token; a kind of `""` is the end of what is plain."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            yield "", ""
            return
        yield found.lastgroup or "", found.group()
        at = found.end()


def _is_shallow(tokens: list[tuple[str, str]]) -> bool:
    """Whether brackets close, and no construct that a parser calls itself for goes too deep."""
    depth = run = nots = cases = 0
    for kind, token in tokens:
        word = token.lower()
        run = run + 1 if kind == "operator" else run * (kind == "space")
        depth += (kind == "open") - (kind == "close")
        cases += (word == "case") - (word == "end")
        nots += word == "not"
        if depth < 0 or max(depth + cases, run, nots) > (LONGEST_RUN if run > LONGEST_RUN else DEEPEST):
            return False
    return depth == 0
