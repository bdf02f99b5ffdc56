"""Which choice of parameters explains the buckets that a server named: the inference, without the dialogue.

A *key* is an ordered choice of parameters and literals of the text, with repetition, and at least one parameter. A key
fits an observation when its hash is among the buckets named. An explanation is a set of keys and constant buckets that
gives, for every observation, exactly the buckets named.

This file asks nothing and knows no types; the hash comes as an argument.

*Source*: key-probe.md rules 7 to 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations, product
from typing import Any, Final

from picopyn.routing.route import KeyPart
from picopyn.routing.sharding import KeyHash

#: An ordered choice of parameters.
Key = tuple[KeyPart, ...]

#: At most this many keys are tried for one statement: a few milliseconds of computing.
MAX_TRIED: Final = 6_000

#: At most so many literals stand in a key whose parameters were found by varying them.
MAX_LITERALS: Final = 2

#: Longest key that is looked for.
MAX_LENGTH: Final = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """Keys and constants that give exactly the buckets of every observation.

    Attributes:
        keys: The keys; empty when only constants take part.
        constants: Buckets named every time and needed to explain the answers.
        evidence: Bits: what the observations would weigh against chance, less what the number of tries takes
            away.
        undecided: Whether two of the keys are the same parameters in different forms.
    """

    keys: tuple[Key, ...]
    constants: frozenset[int]
    evidence: float
    undecided: bool


#: A key inside this file: places in the list of all parts, which are cheaper to hash and to look up than
#: parts.
_Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Observation:
    """One answer: the buckets, what they are worth, and every part already encoded (None: unusable here)."""

    arguments: tuple[Any, ...]
    buckets: frozenset[int]
    bits: float
    encoded: list[bytes | None]

    def encoding(self, choice: _Choice) -> bytes | None:
        """The bytes of a whole key, or None."""
        encoded = [self.encoded[place] for place in choice]
        return None if None in encoded else b"".join(encoded)  # type: ignore[arg-type]


class Candidates:
    """All keys that still fit everything observed; owned by one probe.

    Keys are tried shortest first, those without literals before those of the same length with some, and longer ones
    only when shorter ones explain nothing: fewer tries leave more evidence.
    """

    def __init__(
        self,
        oids: Sequence[int],
        key_hash: KeyHash,
        bucket_count: int,
        named: Sequence[int] = (),
        literals: Sequence[bytes] = (),
    ) -> None:
        """Make the candidates of one statement.

        Args:
            oids: Type OIDs of the parameters.
            key_hash: The dialect's hash.
            bucket_count: Number of buckets of the statement's tier, at least 2.
            named: Positions of the parameters that the server named as the key, in order; they are tried
                first.
            literals: What the literals of the text may be hashed as, each once.
        """
        self._bucket = partial(_bucket, key_hash, bucket_count)
        self._bucket_count = bucket_count
        self._parts = [KeyPart(i, oid, form) for i, oid in enumerate(oids) for form in key_hash.forms(oid)]
        self._places: dict[int, list[int]] = {}
        for place, part in enumerate(self._parts):
            self._places.setdefault(part.parameter, []).append(place)
        self._encoders = [key_hash.encoder(part.oid, part.form) for part in self._parts]
        self._width = len(self._parts)
        self._parts += [KeyPart(-1, 0, literal=literal) for literal in literals]
        self._literals = list(literals)
        self._observations: list[_Observation] = []
        self._fitting: list[_Choice] = []
        self._stages = self._all_stages()
        self._tried = 1
        if named:
            self._try(self._with_forms(named))

    def observe(self, arguments: tuple[Any, ...], buckets: frozenset[int]) -> None:
        """Take in one answer: the buckets named for these arguments."""
        encoded = [
            _encoded(encode, arguments[part.parameter])
            for part, encode in zip(self._parts, self._encoders, strict=False)
        ] + self._literals
        bits = math.log2(self._bucket_count / len(buckets))
        observation = _Observation(arguments, buckets, bits, encoded)
        self._observations.append(observation)
        self._fitting = [choice for choice in self._fitting if self._fits(choice, observation)]

    def explain(self) -> Explanation | None:
        """The explanation with the shortest keys, or None when nothing short enough explains the answers."""
        while True:
            explanation = self._explanation()
            if explanation is not None:
                return explanation
            if not self._try_longer():
                return None

    def try_dependencies(self, groups: Iterable[frozenset[int]]) -> None:
        """Try the keys that use exactly the parameters of a group, each once, in any order.

        Args:
            groups: For each bucket of one answer, the parameters on which it was seen to depend. A few literals may
                stand between them.
        """
        for group in groups:
            for more in range(MAX_LITERALS + 1):
                size = math.factorial(len(group) + more) * len(self._literals) ** more
                if 0 < len(group) <= MAX_LENGTH and 0 < size <= MAX_TRIED:
                    self._try(self._arrangements(sorted(group), more))

    def _arrangements(self, group: Sequence[int], more: int) -> Iterator[_Choice]:
        """The parameters of a group in every order, each form of each, with so many literals between them."""
        places = range(self._width, len(self._parts))
        length = len(group) + more
        for order in permutations(group):
            for chosen in self._with_forms(order):
                for literals, gaps in product(product(places, repeat=more), combinations(range(length), more)):
                    parameters, between = iter(chosen), iter(literals)
                    yield tuple(next(between if at in gaps else parameters) for at in range(length))

    def _with_forms(self, order: Sequence[int]) -> Iterator[_Choice]:
        return product(*(self._places.get(position, ()) for position in order))

    def _try(self, choices: Iterable[_Choice]) -> None:
        known = set(self._fitting)
        for choice in choices:
            self._tried += 1
            if all(self._fits(choice, seen) for seen in self._observations) and choice not in known:
                self._fitting.append(choice)

    def _try_longer(self) -> bool:
        """Try the next sort of keys that is not too many; False when there is none left."""
        for size, choices in self._stages:
            if self._tried + size <= MAX_TRIED:
                self._try(choices)
                return True
        return False

    def _all_stages(self) -> Iterator[tuple[int, Iterable[_Choice]]]:
        """(number of keys, the keys): by length, first of parameters alone, then with literals too."""
        width, all_parts = self._width, len(self._parts)
        for length in range(1, MAX_LENGTH + 1):
            alone = width**length
            if alone:
                yield alone, product(range(width), repeat=length)
            mixed = all_parts**length - alone - (all_parts - width) ** length
            if mixed > 0:
                yield mixed, self._mixed(length)

    def _mixed(self, length: int) -> Iterator[_Choice]:
        width = self._width
        for choice in product(range(len(self._parts)), repeat=length):
            if min(choice) < width <= max(choice):
                yield choice

    def _fits(self, choice: _Choice, observation: _Observation) -> bool:
        return self._bucket(observation.encoding(choice)) in observation.buckets

    def _explanation(self) -> Explanation | None:
        observations = self._observations
        constants = frozenset.intersection(*(seen.buckets for seen in observations))
        if all(seen.buckets == constants for seen in observations):
            return self._weighed((), constants)
        explained = [self._explained(seen) for seen in observations]
        if any(found | constants != seen.buckets for found, seen in zip(explained, observations, strict=True)):
            return None
        needed = frozenset(bucket for bucket in constants if any(bucket not in found for found in explained))
        return self._weighed(tuple(self._fitting), needed)

    def _explained(self, observation: _Observation) -> frozenset[int | None]:
        return frozenset(self._bucket(observation.encoding(choice)) for choice in self._fitting)

    def _weighed(self, choices: tuple[_Choice, ...], constants: frozenset[int]) -> Explanation:
        weights = [self._weight(seen.encoding(choice) for seen in self._observations) for choice in choices]
        if constants or not choices:
            first = self._observations[0].bits
            weights.append(self._weight(seen.arguments for seen in self._observations) - first)
        evidence = min(weights) - math.log2(self._tried)
        keys = tuple(tuple(self._parts[place] for place in choice) for choice in choices)
        return Explanation(keys, constants, max(evidence, 0.0), self._undecided(choices))

    def _undecided(self, choices: tuple[_Choice, ...]) -> bool:
        """Whether two keys differ in forms only, or no observation has told them apart."""
        positions = {tuple(map(self._source, choice)) for choice in choices}
        seen_as = {tuple(seen.encoding(choice) for seen in self._observations) for choice in choices}
        return min(len(positions), len(seen_as)) < len(choices)

    def _source(self, place: int) -> int | bytes:
        """What a part is made of, whatever its form."""
        part = self._parts[place]
        return part.parameter if part.literal is None else part.literal

    def _weight(self, seen_as: Iterable[Any]) -> float:
        """Bits of the observations in which something was seen that had not been seen before."""
        known, weight = set(), 0.0
        for observation, what in zip(self._observations, seen_as, strict=True):
            if what not in known:
                known.add(what)
                weight += observation.bits
        return weight


def _encoded(encode: Callable[[Any], bytes | None], value: Any) -> bytes | None:
    """A part's bytes; None also for what is hashed as NULL, which is never routed by key."""
    encoded = encode(value)
    return None if encoded == encode(None) else encoded


def _bucket(key_hash: KeyHash, bucket_count: int, encoded: bytes | None) -> int | None:
    return None if encoded is None else key_hash.bucket(encoded, bucket_count)
