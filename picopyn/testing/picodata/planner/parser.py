"""The cursor over a statement's tokens that every grammar module moves, and the words Picodata reserves.

It knows tokens and positions, no rule of the grammar itself.
"""

from __future__ import annotations

from typing import NoReturn

from picopyn.testing.picodata.planner.accent import DEFAULT, Accent
from picopyn.testing.picodata.planner.errors import NotModelled, ServerError, syntax
from picopyn.testing.picodata.planner.lexer import Token, tokens_of

# Words that are never names unless quoted. *Source*: rule `Keyword` of Picodata's grammar (26.1).
_WORDS = """
    all and asc as begin between by case cast current_date current_time current_timestamp desc distinct
    else end except exists false filter from group having inner into in is join left limit localtimestamp
    localtime not null on option order or outer over primary select set similar substring table then to
    true union using values when where with window
"""
#: Words that are never names unless quoted.
KEYWORDS = frozenset(_WORDS.split())

#: Type names as planner types. *Source*: `picodata-protocol.md` section 7.
TYPE_NAMES = {
    **dict.fromkeys(("int", "integer", "bigint", "smallint", "unsigned", "int2", "int4", "int8"), "int"),
    **dict.fromkeys(("text", "string", "varchar"), "text"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
    "double": "double",
    **dict.fromkeys(("decimal", "numeric", "number"), "decimal"),
    "uuid": "uuid",
    "datetime": "datetime",
}


class Cursor:
    """A position in the tokens of one text; grammar modules subclass it."""

    def __init__(self, text: str, accent: Accent = DEFAULT) -> None:
        self.text = text
        self.accent = accent
        self.tokens = tokens_of(text)
        self.at = 0
        self.numbered = False
        self.unnumbered = 0

    @property
    def token(self) -> Token:
        """The token to read next."""
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        """A token further on, or the end."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Read one token."""
        token = self.token
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def refuse(self) -> NoReturn:
        """The grammar accepts nothing that begins here."""
        raise self.refusal()

    def refusal(self) -> ServerError:
        """The error for the present position."""
        return syntax(self.text, self.token.position)

    def is_word(self, *words: str) -> bool:
        """Whether these unquoted words come next, in this order."""
        tokens = (self.peek(ahead) for ahead in range(len(words)))
        return all(token.kind == "word" and token.text == word for token, word in zip(tokens, words, strict=True))

    def accept(self, *words: str) -> bool:
        """Read these words if they come next."""
        found = self.is_word(*words)
        if found:
            self.at += len(words)
        return found

    def expect(self, *words: str) -> None:
        """Read these words, one after the other, or refuse at the first that is missing."""
        for word in words:
            if not self.accept(word):
                self.refuse()

    def is_op(self, text: str) -> bool:
        """Whether this sign comes next."""
        return self.token.kind == "op" and self.token.text == text

    def accept_op(self, text: str) -> bool:
        """Read this sign if it comes next."""
        found = self.is_op(text)
        if found:
            self.at += 1
        return found

    def expect_op(self, text: str) -> None:
        """Read this sign or refuse."""
        if not self.accept_op(text):
            self.refuse()

    def is_name(self) -> bool:
        """Whether an identifier comes next."""
        token = self.token
        return token.kind == "quoted" or (token.kind == "word" and token.text not in KEYWORDS)

    def name(self) -> str:
        """Read an identifier."""
        if not self.is_name():
            self.refuse()
        return self.next().text

    def names(self) -> tuple[str, ...]:
        """Read `(a, b, …)`."""
        self.expect_op("(")
        found = [self.name()]
        while self.accept_op(","):
            found.append(self.name())
        self.expect_op(")")
        return tuple(found)

    def table_name(self) -> str:
        """Read a table's name, perhaps after `public.`; no other schema exists in the grammar."""
        if self.token.text == "public" and self.token.kind in ("word", "quoted") and self.peek().text == ".":
            self.at += 2
        return self.name()

    def string(self) -> str:
        """Read a string literal."""
        if self.token.kind != "string":
            self.refuse()
        return self.next().text

    def unsigned(self) -> int:
        """Read digits."""
        if self.token.kind != "number" or not self.token.text.isdigit():
            self.refuse()
        return int(self.next().text)

    def type_name(self) -> str:
        """Read a type, as a planner type."""
        token = self.token
        if token.kind == "word" and token.text == "json":
            raise NotModelled("values of type JSON")
        if token.kind != "word" or token.text not in TYPE_NAMES:
            self.refuse()
        self.next()
        kind = TYPE_NAMES[token.text]
        if token.text == "varchar" or kind == "decimal":
            self._type_length()
        return kind

    def _type_length(self) -> None:
        if not self.accept_op("("):
            return
        self.unsigned()
        if self.accept_op(","):
            self.unsigned()
        self.expect_op(")")

    def finish(self) -> None:
        """Refuse anything but the end of the text."""
        self.accept_op(";")
        if self.token.kind != "end":
            self.refuse()
