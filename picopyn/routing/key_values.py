"""Values to ask a server with: random ones of every type, and the corners where constant folding may bite.

A value never leaves this driver but in a question to the server, and never means anything: a question is
planned, not executed. This file knows types by their OIDs and the literals of a statement's text; it knows no
hash and no answers.

*Source*: key-probe.md rules 6 and 11; picodata-recorded.md section 2 (a uuid whose byte 8 is ≥ 0xe0 harms a
server, so none is made here).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation, Overflow
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

BOOL: Final = 16
INTEGERS: Final = {21: 2**15, 23: 2**31, 20: 2**63}
TEXTS: Final = frozenset((25, 1043))
FLOAT8: Final = 701
TIMESTAMPTZ: Final = 1184
NUMERIC: Final = 1700
UUID_OID: Final = 2950

#: Types whose values can be made here.
SUPPORTED: Final = frozenset((BOOL, *INTEGERS, *TEXTS, FLOAT8, TIMESTAMPTZ, NUMERIC, UUID_OID))

#: At most this many different literals of a text become corner values.
MAX_LITERALS: Final = 12

_SMALL: Final = 30_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Strings, quoted names, comments, parameters and words are skipped over so that only free-standing numbers
#: are found.
_TOKEN: Final = re.compile(
    r"""'(?P<text>[^']*(?:''[^']*)*)'|"[^"]*(?:""[^"]*)*"|--[^\n]*|/\*.*?\*/|\$\d+"""
    r"""|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?!\w)|\.\d+)|\w+""",
    re.DOTALL,
)

if TYPE_CHECKING:
    from random import Random


def literals(sql: str) -> tuple[str | Decimal, ...]:
    """The different literals of a text, in order: strings as str, numbers as Decimal.

    They serve as corner values only, so a literal too many or too few does no harm.
    """
    found: dict[str | Decimal, None] = {}
    for match in _TOKEN.finditer(sql):
        if match["text"] is not None:
            found.setdefault(match["text"].replace("''", "'"))
        elif match["number"] is not None:
            with suppress(InvalidOperation):
                found.setdefault(Decimal(match["number"]))
    return tuple(found)[:MAX_LITERALS]


def family(oid: int) -> int:
    """Types whose values may be equal share a family: all numbers, all texts, each other type alone."""
    if oid in INTEGERS or oid in (FLOAT8, NUMERIC):
        return 20
    return 25 if oid in TEXTS else oid


class ValueMaker:
    """Makes arguments for the parameters of one statement; owned by one probe.

    Attributes:
        oids: Type OIDs of the parameters, in order. A parameter of a type not in `SUPPORTED` is always given
            NULL.
        caution: How careful random values are; every refusal by the server raises it: 0 mixed sizes and
            texts, 1 small numbers and texts of digits, 2 texts that are uuids, 3 texts that are moments.
    """

    def __init__(self, oids: Sequence[int], rng: Random) -> None:
        self.oids = tuple(oids)
        self.caution = 0
        self._rng = rng
        self._booleans = [position for position, oid in enumerate(self.oids) if oid == BOOL]
        self._turned = rng.getrandbits(1)

    def arguments(self, stage: int) -> list[Any]:
        """Random arguments, no two of one type equal.

        Args:
            stage: Number of the question: kinds of doubles, sizes of numbers and booleans take turns with it.
        """
        used: set[Any] = set()
        made = []
        for position, oid in enumerate(self.oids):
            value = self._one(position, oid, stage)
            while value in used and oid != BOOL and value is not None:
                value = self._one(position, oid, stage)
            used.add(value)
            made.append(value)
        return made

    def other(self, position: int, than: Any, stage: int) -> Any:
        """Another random value for one parameter."""
        oid = self.oids[position]
        if oid == BOOL:
            return not than
        value = self._one(position, oid, stage)
        while value == than and value is not None:
            value = self._one(position, oid, stage)
        return value

    def _one(self, position: int, oid: int, stage: int) -> Any:
        if oid == BOOL:
            return self._flag(self._booleans.index(position), stage)
        if oid == FLOAT8:
            return self._double(stage + position)
        maker = _MAKERS.get(oid)
        return None if maker is None else maker(self, oid, stage)

    def _flag(self, order: int, stage: int) -> bool:
        """The first three booleans take different turns, so that four questions tell them apart."""
        turns = (stage, stage // 2, stage + stage // 2)
        turn = turns[order] + self._turned if order < len(turns) else self._rng.getrandbits(1)
        return turn % 2 == 1

    def _double(self, turn: int) -> float:
        """Fractional, integral, ≥ 2⁶³ in turn: only all three together tell the forms of a double apart."""
        rng = self._rng
        kind = turn % 3
        if kind == 0:
            return rng.randint(2, 1_000_000) + rng.randrange(1, 1024, 2) / 1024
        return float(rng.randint(2, 1_000_000)) if kind == 1 else rng.randint(2, 9) * 10.0 ** rng.randint(25, 300)

    def _integer(self, oid: int, stage: int) -> int:
        """Small ones first: a parameter may be a limit, or an option with a range."""
        if self.caution or stage % 4 < 2 or oid == 21:
            return self._rng.randint(2, _SMALL)
        if stage % 4 == 2 or oid == 23:
            return self._rng.randint(100_000, 2_000_000_000)
        return self._rng.randint(2**33, 2**62)

    def _text(self, oid: int, stage: int) -> str:
        """Digits first: a text may be converted to a number by the statement."""
        rng = self._rng
        if self.caution == 2:
            return str(self._uuid(oid, stage))
        if self.caution >= 3:
            return self._moment(oid, stage).isoformat()
        if self.caution == 1 or stage % 2 == 0:
            return str(rng.randint(10_000, 99_999_999))
        return f"k{rng.getrandbits(48):012x}"

    def _decimal(self, oid: int, stage: int) -> Decimal:
        digits = Decimal(self._rng.randint(100, 1_000_000_000))
        return digits.scaleb(-self._rng.choice((0, 1, 2, 5)))

    def _moment(self, oid: int, stage: int) -> datetime:
        microseconds = self._rng.randrange(1, 1_000_000) if stage % 2 else 0
        return _EPOCH + timedelta(seconds=self._rng.randint(0, 2_000_000_000), microseconds=microseconds)

    def _uuid(self, oid: int, stage: int) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)


_MAKERS: Final[dict[int, Callable[[ValueMaker, int, int], Any]]] = {
    **dict.fromkeys(INTEGERS, ValueMaker._integer),
    **dict.fromkeys(TEXTS, ValueMaker._text),
    TIMESTAMPTZ: ValueMaker._moment,
    NUMERIC: ValueMaker._decimal,
    UUID_OID: ValueMaker._uuid,
}


def corner_values(oid: int) -> tuple[Any, ...]:
    """Values of one type that conditions like to mention."""
    numbers = (0, 1, -1, -_SMALL - 1)
    if oid in INTEGERS:
        return numbers
    if oid == NUMERIC:
        return tuple(map(Decimal, numbers))
    if oid == FLOAT8:
        return tuple(map(float, numbers))
    return _OTHER_CORNERS.get(25 if oid in TEXTS else oid, ())


_OTHER_CORNERS: Final[dict[int, tuple[Any, ...]]] = {
    BOOL: (False, True),
    25: ("", "0", "~"),
    TIMESTAMPTZ: (_EPOCH,),
    UUID_OID: (UUID(int=0),),
}


def literal_values(oid: int, found: Sequence[str | Decimal]) -> Iterator[Any]:
    """The literals of a text as values of one type, where they can be; numbers with both signs."""
    for literal in found:
        if isinstance(literal, Decimal):
            yield from _number_as(oid, literal)
        else:
            yield from _string_as(oid, literal)


def _number_as(oid: int, literal: Decimal) -> Iterator[Any]:
    for number in (literal, literal.copy_negate()):
        if oid == NUMERIC:
            yield number
        elif oid == FLOAT8:
            yield float(number)
        elif oid in INTEGERS and -INTEGERS[oid] < number < INTEGERS[oid] and number == int(number):
            yield int(number)


def _string_as(oid: int, literal: str) -> Iterator[Any]:
    if oid in TEXTS:
        yield literal
        return
    convert = _FROM_STRING.get(oid)
    if convert is not None:
        try:
            value = convert(literal)
        except (ValueError, ArithmeticError):
            return
        if oid in INTEGERS and abs(value) >= INTEGERS[oid]:
            return
        if not isinstance(value, Decimal) or value.is_finite():
            yield value


def _moment_of(literal: str) -> datetime:
    moment = datetime.fromisoformat(literal)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_FROM_STRING: Final[dict[int, Callable[[str], Any]]] = {
    **dict.fromkeys(INTEGERS, int),
    FLOAT8: float,
    NUMERIC: Decimal,
    UUID_OID: UUID,
    TIMESTAMPTZ: _moment_of,
}


def numbers_near(oid: int, value: Any) -> Iterator[Any]:
    """The neighbours of a number, for conditions that compare rather than equate."""
    if oid in (NUMERIC, FLOAT8) or (oid in INTEGERS and abs(value) < INTEGERS[oid] - 1):
        with suppress(Overflow):
            yield value + 1
            yield value - 1
