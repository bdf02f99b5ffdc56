"""The order of nodes that are equally good for a call: least loaded first, ties at random.

It knows nothing of roles, owners or health; whoever calls has already chosen the equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

N = TypeVar("N")

#: Load of a node without any connection: it comes after all that have one, for it may be hanging.
UNCONNECTED = 1_000_000
#: Above this many equals, two are drawn at random and the less loaded one goes first, instead of looking at all.
MANY = 8


def order(equals: Sequence[N], load: Callable[[N], int], rng: Random) -> tuple[N, ...]:
    """Order nodes by load.

    Args:
        equals: The nodes to order; not changed.
        load: Calls a node serves now (in flight and waiting).
        rng: Source of randomness for ties and draws.

    Returns:
        All of `equals`, the one to try first in front. Ties are in random order, so that many processes that start at
        the same moment do not all begin with the same node.
    """
    if len(equals) == 1:
        return tuple(equals)
    shuffled = list(equals)
    rng.shuffle(shuffled)
    if len(shuffled) <= MANY:
        shuffled.sort(key=load)
    elif load(shuffled[1]) < load(shuffled[0]):
        shuffled[0], shuffled[1] = shuffled[1], shuffled[0]
    return tuple(shuffled)


def lightest(equals: Sequence[N], load: Callable[[N], int], rng: Random) -> int:
    """Position of the node that `order` would put in front, without ordering the others."""
    count = len(equals)
    if count == 1:
        return 0
    position = int(rng.random() * count)
    if count > MANY:
        other = int(rng.random() * count)
        return other if load(equals[other]) < load(equals[position]) else position
    best, least = position, load(equals[position])
    for number in range(position + 1, position + count):
        place = number % count
        now = load(equals[place])
        if now < least:
            best, least = place, now
    return best
