"""Which choice of parameters explains the buckets that a server named: the inference, without the dialogue.

A *key* is an ordered choice of parameters, with repetition. A key fits an observation when its hash is among
the buckets named. An explanation is a set of keys and constant buckets that gives, for every observation,
exactly the buckets named.

This file asks nothing and knows no types; the hash comes as an argument.

*Source*: key-probe.md rules 7 to 10.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Final

from picopyn.routing.route import KeyPart
from picopyn.routing.sharding import KeyHash

#: An ordered choice of parameters.
Key = tuple[KeyPart, ...]

#: At most this many keys are tried for one statement: a few milliseconds of computing.
MAX_TRIED: Final = 6_000

#: Longest key that is looked for.
MAX_LENGTH: Final = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """Keys and constants that give exactly the buckets of every observation.

    Attributes:
        keys: The keys; empty when only constants take part.
        constants: Buckets named every time and needed to explain the answers.
        evidence: Bits: what the observations would weigh against chance, less what the number of tries takes
        away. undecided: Whether two of the keys are the same parameters in different forms.
    """

    keys: tuple[Key, ...]
    constants: frozenset[int]
    evidence: float
    undecided: bool


class _Observation:
    """One answer: the buckets, and every usable part of a key already encoded."""

    __slots__ = ("arguments", "bits", "buckets", "encoded")

    def __init__(
        self,
        arguments: tuple[Any, ...],
        buckets: frozenset[int],
        bits: float,
        encoded: Mapping[KeyPart, bytes],
    ) -> None:
        self.arguments = arguments
        self.buckets = buckets
        self.bits = bits
        self.encoded = encoded

    def encoding(self, key: Key) -> bytes | None:
        encoded = self.encoded
        try:
            return b"".join([encoded[part] for part in key])
        except KeyError:
            return None


class Candidates:
    """All keys that still fit everything observed; owned by one probe.

    Keys are tried shortest first, and longer ones only when shorter ones explain nothing: fewer tries leave
    more evidence.
    """

    def __init__(
        self, oids: Sequence[int], key_hash: KeyHash, bucket_count: int, named: Sequence[int] = ()
    ) -> None:
        """Make the candidates of one statement.

        Args:
            oids: Type OIDs of the parameters.
            key_hash: The dialect's hash.
            bucket_count: Number of buckets of the statement's tier, at least 2.
            named: Positions of the parameters that the server named as the key, in order; they are tried
            first.
        """
        self._hash = key_hash
        self._bucket_count = bucket_count
        self._options = [
            [KeyPart(i, oid, form) for form in key_hash.forms(oid)] for i, oid in enumerate(oids)
        ]
        self._encoders = {
            part: key_hash.encoder(part.oid, part.form) for parts in self._options for part in parts
        }
        self._null = {part: encode(None) for part, encode in self._encoders.items()}
        self._observations: list[_Observation] = []
        self._fitting: list[Key] = []
        self._length = 0
        self._tried = 1
        self._try(self._with_forms(named) if named else ())

    def observe(self, arguments: tuple[Any, ...], buckets: frozenset[int]) -> None:
        """Take in one answer: the buckets named for these arguments."""
        encoded = {}
        for part, encode in self._encoders.items():
            value = encode(arguments[part.parameter])
            if value is not None and value != self._null[part]:
                encoded[part] = value
        bits = math.log2(self._bucket_count / len(buckets))
        observation = _Observation(arguments, buckets, bits, encoded)
        self._observations.append(observation)
        self._fitting = [key for key in self._fitting if self._fits(key, observation)]

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
            groups: For each bucket of one answer, the parameters on which it was seen to depend.
        """
        for group in groups:
            if 0 < len(group) <= MAX_LENGTH and math.factorial(len(group)) <= MAX_TRIED:
                self._try(key for order in permutations(sorted(group)) for key in self._with_forms(order))

    def _with_forms(self, order: Sequence[int]) -> Iterator[Key]:
        return product(*(self._options[position] for position in order))

    def _try(self, keys: Iterable[Key]) -> None:
        known = set(self._fitting)
        for key in keys:
            self._tried += 1
            if key not in known and all(self._fits(key, seen) for seen in self._observations):
                self._fitting.append(key)

    def _try_longer(self) -> bool:
        parts = list(self._encoders)
        length = self._length + 1
        if not parts or length > MAX_LENGTH or self._tried + len(parts) ** length > MAX_TRIED:
            return False
        self._length = length
        self._try(product(parts, repeat=length))
        return True

    def _fits(self, key: Key, observation: _Observation) -> bool:
        encoded = observation.encoding(key)
        return encoded is not None and self._hash.bucket(encoded, self._bucket_count) in observation.buckets

    def _explanation(self) -> Explanation | None:
        if not self._observations:
            return None
        constants = frozenset.intersection(*(seen.buckets for seen in self._observations))
        if all(seen.buckets == constants for seen in self._observations):
            return self._weighed((), constants)
        keys = tuple(self._fitting)
        explained = [self._buckets(keys, seen) for seen in self._observations]
        if any(
            found | constants != seen.buckets
            for found, seen in zip(explained, self._observations, strict=True)
        ):
            return None
        return self._weighed(keys, self._needed(constants, explained))

    def _needed(self, constants: frozenset[int], explained: Sequence[frozenset[int]]) -> frozenset[int]:
        """The constants that no key explains every time."""
        return frozenset(bucket for bucket in constants if any(bucket not in found for found in explained))

    def _buckets(self, keys: Iterable[Key], observation: _Observation) -> frozenset[int]:
        found = set()
        for key in keys:
            encoded = observation.encoding(key)
            if encoded is not None:
                found.add(self._hash.bucket(encoded, self._bucket_count))
        return frozenset(found)

    def _weighed(self, keys: tuple[Key, ...], constants: frozenset[int]) -> Explanation:
        weights = [self._weight(seen.encoding(key) for seen in self._observations) for key in keys]
        if constants or not keys:
            first = self._observations[0].bits
            weights.append(self._weight(seen.arguments for seen in self._observations) - first)
        evidence = min(weights) - math.log2(self._tried)
        choices = [tuple(part.parameter for part in key) for key in keys]
        return Explanation(keys, constants, max(evidence, 0.0), len(set(choices)) < len(choices))

    def _weight(self, seen_as: Iterable[Any]) -> float:
        """Bits of the observations in which something was seen that had not been seen before."""
        known, weight = set(), 0.0
        for observation, what in zip(self._observations, seen_as, strict=True):
            if what not in known:
                known.add(what)
                weight += observation.bits
        return weight
