"""Which buckets a filter leaves: equations of key columns with constants, through AND and OR.

A filter becomes chains: alternatives of equations that hold together. Whatever says nothing about a key
leaves every bucket. *Source*: Picodata's `executor/bucket.rs`, `dnf.rs` and the recorded plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.errors import NotModelled
from picopyn.testing.picodata.planner.statement import Value

#: (relation number, position): a column, wherever it is mentioned.
Place = tuple[int, int]
#: A sharding key: its columns in order.
Key = tuple[Place, ...]

_MOST_CHAINS = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """A set of buckets; `numbers` None is every bucket, `anywhere` means that no sharded table takes part."""

    numbers: frozenset[int] | None = None
    anywhere: bool = False

    @property
    def single(self) -> bool:
        """Whether exactly one bucket is meant."""
        return self.numbers is not None and len(self.numbers) == 1

    def both(self, other: Found) -> Found:
        """Buckets in both sets."""
        if self.anywhere or other.anywhere:
            return other if self.anywhere else self
        if self.numbers is None or other.numbers is None:
            return other if self.numbers is None else self
        return Found(self.numbers & other.numbers)

    def either(self, other: Found) -> Found:
        """Buckets in one of the sets."""
        if any(found.numbers is None and not found.anywhere for found in (self, other)):
            return ALL
        if self.anywhere or other.anywhere:
            return other if self.anywhere else self
        return Found((self.numbers or frozenset()) | (other.numbers or frozenset()))


ALL, ANY, NONE = Found(), Found(anywhere=True), Found(frozenset())


@dataclass(frozen=True, slots=True)
class Equation:
    """`column = constant` or `column = column`; equal constants of different types are different."""

    column: Place
    other: Place | None
    token: str
    value: Value = field(default=None, compare=False)


Chain = frozenset[Equation]


def chains_of(expression: b.Expr) -> list[Chain]:
    """The alternatives of a folded filter; an empty chain leaves everything, no chain leaves nothing."""
    if isinstance(expression, b.Const) and expression.value is False:
        return []
    if isinstance(expression, b.Binary):
        if expression.operator == "or":
            return _absorbed(chain for part in operands(expression) for chain in chains_of(part))
        if expression.operator == "and":
            found: list[Chain] = [frozenset()]
            for part in operands(expression):
                pairs = product(found, chains_of(part))
                found = _absorbed((first | second for first, second in pairs), whole=False)
            return found
        if expression.operator == "=":
            equation = _equation(expression.left, expression.right)
            return [frozenset((equation,))] if equation else [frozenset()]
    return [frozenset()]


def operands(expression: b.Binary) -> list[b.Expr]:
    """What a run of the same AND or OR combines, left to right; without recursion, lists may be long."""
    found: list[b.Expr] = []
    left: b.Expr = expression
    while isinstance(left, b.Binary) and left.operator == expression.operator:
        found.append(left.right)
        left = left.left
    return [left, *reversed(found)]


def _absorbed(chains: Iterable[Chain], whole: bool = True) -> list[Chain]:
    found: dict[Chain, None] = {}
    for chain in chains:
        found[chain] = None
        if not chain and whole:
            return [chain]
        if len(found) > _MOST_CHAINS:
            raise NotModelled("a filter with very many alternatives")
    return list(found)


def _equation(left: b.Expr, right: b.Expr) -> Equation | None:
    if isinstance(left, b.Const):
        left, right = right, left
    if not isinstance(left, b.Column):
        return None
    place = (left.relation, left.position)
    if isinstance(right, b.Const):
        return Equation(place, None, f"{type(right.value).__name__} {right.value!r}", right.value)
    if isinstance(right, b.Column):
        return Equation(place, (right.relation, right.position), "")
    return None


class Classes:
    """The columns a chain makes equal, and the constants they equal."""

    def __init__(self, chain: Chain) -> None:
        self._parent: dict[Place, Place] = {}
        self._constants: dict[Place, dict[str, Value]] = {}
        by_token: dict[str, Place] = {}
        for equation in chain:
            if equation.other is not None:
                self._join(equation.column, equation.other)
                continue
            self._join(equation.column, by_token.setdefault(equation.token, equation.column))
        for equation in chain:
            if equation.other is None:
                self._constants.setdefault(self.root(equation.column), {})[equation.token] = equation.value

    def root(self, place: Place) -> Place:
        """The representative of the column's class."""
        while place in self._parent:
            place = self._parent[place]
        return place

    def _join(self, one: Place, other: Place) -> None:
        first, second = self.root(one), self.root(other)
        if first != second:
            self._parent[first] = second

    def constants(self, place: Place) -> list[Value]:
        """The constants this column must equal."""
        return list(self._constants.get(self.root(place), {}).values())

    def same(self, one: Place, other: Place) -> bool:
        """Whether the chain makes two columns equal."""
        return self.root(one) == self.root(other)


def filter_buckets(
    expression: b.Expr,
    keys: Sequence[Key],
    default: Found,
    bucket_of: Callable[[Sequence[Value]], int],
    by_number: bool = False,
) -> Found:
    """The buckets a folded filter leaves.

    Args:
        expression: The filter after folding.
        keys: The sharding keys visible to it.
        default: What a chain without a key leaves: every bucket, or anywhere if no sharded table takes part.
        bucket_of: The bucket of a key's values.
        by_number: Whether `bucket_id = n` counts as well (recorded from 26.2 on).
    """
    if isinstance(expression, b.Const) and expression.value in (False, None):
        return NONE
    found: Found | None = None
    for chain in chains_of(expression):
        left = _chain_buckets(chain, keys, default, bucket_of)
        if by_number:
            left = _numbered(chain, keys, left)
        found = left if found is None else found.either(left)
    return NONE if found is None else found


def _numbered(chain: Chain, keys: Sequence[Key], found: Found) -> Found:
    classes = Classes(chain)
    for relation in dict.fromkeys(relation for key in keys for relation, _ in key):
        for number in classes.constants((relation, -1)):
            found = found.both(Found(frozenset((number,)) if isinstance(number, int) else frozenset()))
    return found


def _chain_buckets(
    chain: Chain, keys: Sequence[Key], default: Found, bucket_of: Callable[[Sequence[Value]], int]
) -> Found:
    if not chain:
        return default
    classes = Classes(chain)
    found = default
    for key in keys:
        for values in product(*(classes.constants(place) for place in key)):
            found = found.both(Found(frozenset((bucket_of(values),))))
    return found
