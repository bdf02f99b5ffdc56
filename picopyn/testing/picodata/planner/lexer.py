"""Words of a statement text: what counts as one token of Picodata's SQL, and where it stands.

It knows no grammar beyond tokens. Picodata's grammar has no comments, so none are skipped: they end as a
token that no rule accepts.

*Source*: identifiers, literals and parameters as in Picodata's grammar file (`sql-planner/…/query.pest`,
26.1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from picopyn.testing.picodata.planner.errors import syntax

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>"[^"]*(?:""[^"]*)*")
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<dollar>\$\$.*?\$\$)
    | (?P<param>\$\d+|\?)
    | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    | (?P<op>::|<>|!=|>=|<=|\|\||[-+*/%=<>()\[\],.;])
    | (?P<word>[^\s.,()":;\[\]'+\-*/%=<>!|$?]+)
    )""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: `"word"` (unquoted), `"quoted"`, `"string"`, `"dollar"`, `"param"`, `"number"`, `"op"` or
            `"end"`.
        text: Words folded to lower case, quoted names and strings without their quotes, the rest as written.
        position: Offset of its first character.
    """

    kind: str
    text: str
    position: int


def tokens_of(text: str) -> list[Token]:
    """All tokens, an `"end"` token last.

    Raises:
        ServerError: A character that begins no token.
    """
    found: list[Token] = []
    position = 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or ""
        found.append(Token(kind, _plain(kind, match[kind]), match.start(kind)))
        position = match.end()
    rest = len(text) - len(text[position:].lstrip())
    if rest < len(text):
        raise syntax(text, rest)
    return [*found, Token("end", "", len(text))]


def _plain(kind: str, raw: str) -> str:
    if kind == "word":
        return raw.lower()
    if kind == "quoted":
        return raw[1:-1].replace('""', '"')
    if kind == "string":
        return raw[1:-1].replace("''", "'")
    if kind == "dollar":
        return raw[2:-2]
    return raw
