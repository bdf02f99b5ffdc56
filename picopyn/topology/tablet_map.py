"""Who leads the tablets of hash-sharded tables, and who holds a copy: sorted ranges of hash codes by table, immutable.

This file decides what is believed of tablets that contradict each other. It knows no server, no node and no statement:
a leader is the text by which the cluster names it, `host:port`.

- While a tablet splits, the old one is listed beside the new ones: where ranges overlap, the narrowest counts.
- Two that are equally narrow and name different leaders are not believed.
- A tablet without a leader, and a range that no tablet covers, have no owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from types import MappingProxyType

from picopyn.topology.shard_map import RangeMap


@dataclass(frozen=True, slots=True, order=True)
class Tablet:
    """One tablet of a table.

    Attributes:
        start: First hash code, inclusive.
        end: Where it ends, exclusive; larger than `start`.
        leader: `host:port` of its leader; empty while there is none.
        replicas: `host:port` of everybody who holds a copy, with commas between them; empty where that is not told.
    """

    start: int
    end: int
    leader: str = ""
    replicas: str = ""


@dataclass(frozen=True, slots=True)
class TabletMap:
    """The leaders of all tables that were asked about, at one moment.

    Attributes:
        spaces: Ranges by table.
        leaders: Every leader that is named.
        complete: No tablet is without a leader.
        copies: Ranges by table, each with those who hold a copy, as `Tablet.replicas` has them.
    """

    spaces: Mapping[str, RangeMap] = field(default_factory=dict)
    leaders: frozenset[str] = frozenset()
    complete: bool = True
    copies: Mapping[str, RangeMap] = field(default_factory=dict)

    def owner(self, space: str, code: int) -> str | None:
        """`host:port` of the leader of the tablet that holds this code of this table; None when it is not known."""
        ranges = self.spaces.get(space)
        return ranges.owner(code) if ranges is not None else None

    def holders(self, space: str, code: int) -> str:
        """Who holds a copy of the tablet with this code of this table, as `Tablet.replicas` has it."""
        ranges = self.copies.get(space)
        return (ranges.owner(code) if ranges is not None else None) or ""

    @classmethod
    def of(cls, tables: Mapping[str, Iterable[Tablet]]) -> TabletMap:
        """The map of some tables, by name."""
        listed = {space: list(tablets) for space, tablets in tables.items()}
        complete = all(tablet.leader for tablets in listed.values() for tablet in tablets)
        ranges = {space: list(believed(tablets)) for space, tablets in listed.items()}
        leaders = frozenset(leader for found in ranges.values() for _, _, leader in found)
        copies = {space: list(believed(map(_copies, tablets))) for space, tablets in listed.items()}
        return cls(_maps(ranges), leaders, complete, _maps(copies))


def _copies(tablet: Tablet) -> Tablet:
    """A tablet with those who hold it in place of the one who leads it."""
    return Tablet(tablet.start, tablet.end, tablet.replicas)


def _maps(ranges: Mapping[str, list[tuple[int, int, str]]]) -> Mapping[str, RangeMap]:
    return MappingProxyType({space: RangeMap(space, found) for space, found in ranges.items()})


def believed(tablets: Iterable[Tablet]) -> Iterator[tuple[int, int, str]]:
    """What is believed of tablets in any order: inclusive ranges with a leader, ascending, without overlaps."""
    ordered = sorted(set(tablets))
    overlap = any(after.start < before.end for before, after in pairwise(ordered))
    for start, end, leader in _cut(ordered) if overlap else ((t.start, t.end, t.leader) for t in ordered):
        if leader:
            yield start, end - 1, leader


def _cut(ordered: list[Tablet]) -> Iterator[tuple[int, int, str]]:
    """The pieces between all edges, each with the leader of the narrowest tablet over it."""
    edges = sorted({edge for tablet in ordered for edge in (tablet.start, tablet.end)})
    over: list[tuple[int, Tablet]] = []
    coming = iter([*ordered, None])
    following = next(coming)
    for start, end in pairwise(edges):
        while following is not None and following.start <= start:
            heappush(over, (following.end - following.start, following))
            following = next(coming)
        leader = _narrowest(over, start)
        if leader:
            yield start, end, leader


def _narrowest(over: list[tuple[int, Tablet]], start: int) -> str:
    """The leader that the narrowest tablets over a piece agree on; none where they do not. Those that ended go."""
    equals: list[tuple[int, Tablet]] = []
    while over and (not equals or over[0][0] == equals[0][0]):
        narrow = heappop(over)
        if narrow[1].end > start:
            equals.append(narrow)
    for narrow in equals:
        heappush(over, narrow)
    named = {tablet.leader for _, tablet in equals}
    return named.pop() if len(named) == 1 else ""
