"""Corner questions: arguments with which a statement's conditions may fold to something else.

A server folds constants after it has bound the parameters, so a key that fits random values may not fit
`true`, NULL, equal values or a value the text itself mentions. This file decides which of those are worth a
question, and in which order.

*Source*: key-probe.md, table and rule 11.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from itertools import combinations, product, zip_longest
from typing import TYPE_CHECKING, Any, Final

from picopyn.routing.key_values import (
    BOOL,
    FLOAT8,
    SUPPORTED,
    ValueMaker,
    corner_values,
    family,
    literal_values,
    numbers_near,
)

if TYPE_CHECKING:
    from random import Random


#: Positions and the values they are given; everything else in the question is random.
Overrides = dict[int, Any]

_MAX_FLAGS: Final = 3
_MAX_PAIRS: Final = 6
_MIXES: Final = 6


class Corners:
    """The corner questions of one statement; owned by one probe."""

    def __init__(
        self,
        maker: ValueMaker,
        key_parameters: Set[int],
        literals: Sequence[Any],
        rng: Random,
    ) -> None:
        """Prepare the corners.

        Args:
            maker: Makes the random values around a corner.
            key_parameters: Positions that take part in a key: a call with NULL there is never routed, so it
                is not asked.
            literals: The literals of the text.
            rng: Source of the mixed corners.
        """
        self._maker = maker
        self._key_parameters = key_parameters
        self._rng = rng
        self._positions = [i for i, oid in enumerate(maker.oids) if oid in SUPPORTED]
        self._corners = {i: corner_values(maker.oids[i]) for i in self._positions}
        self._literals = {i: tuple(dict.fromkeys(literal_values(maker.oids[i], literals))) for i in self._positions}

    def questions(self, limit: int) -> Iterator[tuple[Any, ...]]:
        """At most `limit` questions, the kinds of corners taking turns: a short limit cuts each of them."""
        kinds = (self._flags(), self._nulls(), self._equals(), self._values(), self._doubles(), self._mixes())
        asked = 0
        for round_of_kinds in zip_longest(*kinds):
            for overrides in round_of_kinds:
                if overrides is not None and asked < limit:
                    asked += 1
                    yield self._arguments(overrides, asked)

    def _arguments(self, overrides: Overrides, stage: int) -> tuple[Any, ...]:
        arguments = self._maker.arguments(stage % 2)
        for position, value in overrides.items():
            arguments[position] = value
        return tuple(arguments)

    def _flags(self) -> Iterator[Overrides]:
        """Both values of every boolean: all combinations of a few, else all or none but each one."""
        flags = [i for i in self._positions if self._maker.oids[i] == BOOL]
        if not flags:
            return
        if len(flags) <= _MAX_FLAGS:
            for values in product((False, True), repeat=len(flags)):
                yield dict(zip(flags, values, strict=True))
            return
        for background in (False, True):
            yield dict.fromkeys(flags, background)
            for flag in flags:
                yield {**dict.fromkeys(flags, background), flag: not background}

    def _nulls(self) -> Iterator[Overrides]:
        """NULL for each parameter that is no part of the key, and for all of them together."""
        others = [i for i in self._positions if i not in self._key_parameters]
        for position in others:
            yield {position: None}
        if len(others) > 1:
            yield dict.fromkeys(others)

    def _equals(self) -> Iterator[Overrides]:
        """Equal values: each pair of a small family, else random halves; and the whole family."""
        for members in self._families():
            if len(members) * (len(members) - 1) // 2 <= _MAX_PAIRS:
                groups: list[tuple[int, ...]] = list(combinations(members, 2))
            else:
                groups = [tuple(i for i in members if self._rng.getrandbits(1)) for _ in range(_MAX_PAIRS)]
            if len(members) > 2:
                groups.insert(0, tuple(members))
            for group in groups:
                yield self._same(group)

    def _families(self) -> Iterator[list[int]]:
        families: dict[int, list[int]] = {}
        for position in self._positions:
            oid = self._maker.oids[position]
            if oid != BOOL:
                families.setdefault(family(oid), []).append(position)
        yield from (members for members in families.values() if len(members) > 1)

    def _same(self, group: Sequence[int]) -> Overrides:
        """The same value for a group; for numbers of different types, the same number."""
        oids = {self._maker.oids[i] for i in group}
        if len(oids) > 1 and family(next(iter(oids))) == 20:
            number = self._rng.randint(2, 30_000)
            return {i: type(self._corners[i][0])(number) for i in group}
        value = self._maker.arguments(0)[group[0]] if group else None
        return dict.fromkeys(group, value)

    def _values(self) -> Iterator[Overrides]:
        """Corner values and literals, for all parameters at once and for each parameter alone."""
        for row in zip_longest(*self._corners.values()):
            yield {i: value for i, value in zip(self._corners, row, strict=True) if value is not None}
        for row in zip_longest(*self._literals.values()):
            yield {i: value for i, value in zip(self._literals, row, strict=True) if value is not None}
        if len(self._positions) > 1:
            for position, values in self._literals.items():
                for value in values:
                    yield {position: value}

    def _doubles(self) -> Iterator[Overrides]:
        """What binding treats apart: beyond int64, infinite, subnormal, nearly integral."""
        doubles = [i for i in self._positions if self._maker.oids[i] == FLOAT8]
        if doubles:
            for value in (1e300, -1e300, math.inf, 5e-324, 2.0**53 + 2, -0.75):
                yield dict.fromkeys(doubles, value)

    def _mixes(self) -> Iterator[Overrides]:
        """Several corners at once, at random: conditions that need two of them."""
        mentions = any(self._literals.values())
        pool = {i: (*self._corners[i], *self._literals[i], *self._near(i)) for i in self._positions}
        if not mentions and len(self._positions) < 2:
            return
        for _ in range(_MIXES if mentions else _MIXES // 2):
            yield {i: self._rng.choice(pool[i]) for i in pool if pool[i] and self._rng.getrandbits(1)}

    def _near(self, position: int) -> Iterator[Any]:
        oid = self._maker.oids[position]
        if family(oid) == 20:
            for value in self._literals[position]:
                yield from numbers_near(oid, value)
