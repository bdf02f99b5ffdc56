"""Texts with many keys, made from those with one, and the other way round. No grammar: words and parentheses suffice.

What does not fit is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from picopyn.errors import UsageError

#: Most keys of one text. Planning a long IN list can fell an instance.
#: *Source*: `picodata-recorded.md` section 3 (200 terms crash 26.1.6; 40 take 7 ms to prepare).
MOST_KEYS: Final = 50
#: So many keys a text has; a list in between is filled up with its last one, so that few texts are prepared.
_SIZES: Final = (1, 2, 5, 10, 20, MOST_KEYS)

_TOKEN: Final = re.compile(
    r"""(?P<skip>'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/)|\$(?P<number>\d+)|(?P<word>[^\W\d]\w*)|(?P<sign>[(),])""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class KeyText:
    """A text with one key, from which texts with several are made.

    Attributes:
        head: What comes before the key's place.
        key: What stands there for one key, with its parameters as `$1` … `$width`.
        tail: What comes behind.
        width: Parameters of a key.
        others: Parameters that are no part of the key; they follow those of the first key.
        in_list: The place is the list of an IN; else a condition.
    """

    head: str
    key: str
    tail: str
    width: int
    others: int
    in_list: bool

    @property
    def most(self) -> int:
        """Most keys of one text."""
        return max(MOST_KEYS // self.width, 1)

    def size(self, count: int) -> int:
        """How many keys the text for so many has."""
        return next((size for size in _SIZES if count <= size <= self.most), self.most)

    def text(self, size: int) -> str:
        """The text for so many keys."""
        keys = [self._numbered(number) for number in range(size)]
        if self.in_list:
            return f"{self.head}{', '.join(keys)}{self.tail}"
        return f"{self.head}{' OR '.join(f'({key})' for key in keys)}{self.tail}"

    def arguments(self, rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        """The arguments for the text of `size(len(rows))` keys.

        Args:
            rows: For each key its values and then the other arguments, which are the same in all.
        """
        missing = self.size(len(rows)) - len(rows)
        more = [value for row in [*rows[1:], *[rows[-1]] * missing] for value in row[: self.width]]
        return (*rows[0], *more)

    def _numbered(self, number: int) -> str:
        first = 0 if number == 0 else self.others + self.width * number
        return _renumbered(self.key, first)


def read_key_text(sql: str, width: int) -> KeyText:
    """Find the place of the key in a text.

    Args:
        sql: The text: the key's parameters are `$1` … `$width`, each once, in parentheses of their own:
            `… WHERE id IN ($1)`, `… WHERE (a = $1 AND b = $2) …`.
        width: Parameters of the key.

    Raises:
        UsageError: There is no such place.
    """
    tokens = [token for token in _TOKEN.finditer(sql) if token.lastgroup != "skip"]
    numbers = [int(token["number"]) for token in tokens if token["number"]]
    wanted = set(range(1, width + 1))
    place = _innermost(tokens, wanted)
    inside = [int(token["number"]) for token in tokens[place[0] : place[1]] if token["number"]] if place else []
    if place is None or sorted(inside) != sorted(wanted) or sum(number in wanted for number in numbers) != width:
        said = "IN ($1)" if width == 1 else "(a = $1 AND b = $2 …)"
        raise UsageError(f"the parameters of the key, $1 to ${width}, need parentheses of their own, like {said}")
    opening, closing = tokens[place[0]], tokens[place[1]]
    before = [(token["word"] or "").upper() for token in tokens[max(place[0] - 2, 0) : place[0]]]
    in_list = before[-1:] == ["IN"]
    if before[-1:] == ["NOT"] or before == ["NOT", "IN"]:
        raise UsageError("a text for one key finds the rows of that key; this one finds all others (NOT)")
    key = sql[opening.end() : closing.start()]
    if in_list and key.strip() != "$1":
        raise UsageError("the list of the IN has to be ($1) alone")
    others = max(numbers) - width
    return KeyText(sql[: opening.end()], key, sql[closing.start() :], width, others, in_list)


def split_values(sql: str, args: Sequence[Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """A many-row INSERT as one of one row, and the arguments of each row.

    Args:
        sql: `INSERT … VALUES (…), (…), …`: rows that differ in nothing but their parameters, numbered through.
        args: Its arguments.

    Raises:
        UsageError: It is no such text.
    """
    tokens = [token for token in _TOKEN.finditer(sql) if token.lastgroup != "skip"]
    rows = list(_value_rows(tokens))
    if not rows:
        raise UsageError("only an INSERT with rows of VALUES can be split")
    count = len(args) // len(rows)
    texts = [_renumbered(sql[first.start() : last.end()], -count * n) for n, (first, last) in enumerate(rows)]
    used = [sorted({int(number) for number in re.findall(r"\$(\d+)", text)}) for text in (texts[0], texts[-1])]
    begin, end = rows[0][0].start(), rows[-1][1].end()
    beside = any(token["number"] and not begin < token.start() < end for token in tokens)
    if beside or len(set(texts)) != 1 or count * len(rows) != len(args) or used[0] != list(range(1, count + 1)):
        raise UsageError(
            "rows of VALUES can be split when they differ in nothing but their parameters, numbered through: "
            "($1, $2), ($3, $4), …"
        )
    one = f"{sql[:begin]}{texts[0]}{sql[end:]}"
    return one, [tuple(args[n * count : (n + 1) * count]) for n in range(len(rows))]


def _innermost(tokens: Sequence[re.Match[str]], wanted: set[int]) -> tuple[int, int] | None:
    """The innermost parentheses around all these parameters, as indexes of tokens."""
    open_at: list[tuple[int, set[int]]] = []
    for at, token in enumerate(tokens):
        if token["sign"] == "(":
            open_at.append((at, set()))
        elif token["sign"] == ")" and open_at:
            opening, inside = open_at.pop()
            if wanted <= inside:
                return opening, at
            if open_at:
                open_at[-1][1].update(inside)
        elif token["number"] and open_at:
            open_at[-1][1].add(int(token["number"]))
    return None


def _value_rows(tokens: Sequence[re.Match[str]]) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """The opening and closing parentheses of each row of VALUES of an INSERT."""
    if not tokens or (tokens[0]["word"] or "").upper() != "INSERT":
        return
    depth, seen, opening = 0, False, None
    for token in tokens:
        if depth == 0 and token["word"]:
            if seen:
                return
            seen = token["word"].upper() == "VALUES"
        elif token["sign"] == "(":
            opening = token if seen and depth == 0 else opening
            depth += 1
        elif token["sign"] == ")":
            depth -= 1
            if depth == 0 and opening is not None:
                yield opening, token
                opening = None


def _renumbered(text: str, by: int) -> str:
    """A part of a text whose parameters have other numbers."""

    def number(token: re.Match[str]) -> str:
        return f"${int(token['number']) + by}" if token["number"] else token[0]

    return _TOKEN.sub(number, text) if by else text
