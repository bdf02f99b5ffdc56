"""Which nodes of a YugabyteDB are wanted: groups of equals, the best first.

Rules of this file (`load_balance`, `topology_keys`, `fallback_to_topology_keys_only`):

1. Off, or no server listed yet: the hosts of the connection string one by one, in the order written; nobody where a
   mode or the keys forbid something, for nobody knows what those hosts are.
2. Nodes of the type that the mode wants, by the levels of the keys; then all others of that type, unless only keys
   count.
3. A mode that prefers a type goes on with nodes of the other type, wherever they lie; it ignores "only keys".
4. At last the hosts of the connection string that no server listed (an address of a load balancer), in the order
   written; never where a mode or the keys forbid something.

*Source*: `yugabyte-smart-drivers.md` section 3.2; `hasql-eysql.md` B.5. Who is reachable is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from picopyn.placement_settings import BalanceMode, balance_mode
from picopyn.settings import PoolSettings
from picopyn.topology import Node
from picopyn.topology_keys import TopologyKey, read_topology_keys

#: Types of nodes, as `Node.tier`.
PRIMARY: Final = "primary"
READ_REPLICA: Final = "read_replica"

Groups = tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where calls are wanted.

    Attributes:
        mode: Which types of nodes.
        keys: Which places, in levels; none: all.
        only_keys: Nowhere else, as far as the mode allows to say that.
    """

    mode: BalanceMode = BalanceMode.OFF
    keys: tuple[TopologyKey, ...] = ()
    only_keys: bool = False

    @classmethod
    def of(cls, settings: PoolSettings) -> Placement:
        """What the settings want."""
        mode, keys = balance_mode(settings.load_balance), read_topology_keys(settings.topology_keys)[0]
        assert mode is not None  # the settings were checked
        return cls(mode, keys, settings.fallback_to_topology_keys_only)

    @property
    def forbids(self) -> bool:
        """Whether there may be living nodes that calls must not go to."""
        return self.mode.excludes or self._only_keys

    @property
    def words(self) -> str:
        """The settings behind it, for people."""
        keys = f", topology_keys={','.join(map(str, self.keys))}" if self.keys else ""
        only = ", fallback_to_topology_keys_only" if self._only_keys else ""
        return f"load_balance={self.mode.value}{keys}{only}"

    @property
    def _only_keys(self) -> bool:
        return self.only_keys and bool(self.keys) and self.mode is not BalanceMode.OFF and not self.mode.prefers

    def groups(self, servers: Iterable[Node], seeds: Sequence[Node]) -> Groups:
        """Sort nodes into groups; each node is in one group at most, and no group is empty.

        Args:
            servers: The nodes that servers listed.
            seeds: The nodes behind the hosts of the connection string, in the order written.
        """
        listed = tuple(servers)
        if self.mode is BalanceMode.OFF or not listed:
            return () if self.forbids else tuple((seed,) for seed in dict.fromkeys(seeds))
        seen: set[str] = set()
        groups = (tuple(self._new(group, seen)) for group in self._ordered(listed, seeds))
        return tuple(group for group in groups if group)

    def named(self, servers: Iterable[Node]) -> tuple[frozenset[str], ...]:
        """Uuids of the nodes that these wishes name: by the keys, whatever their level; then by the type of the mode.

        Args:
            servers: The nodes that servers listed.
        """
        wanted = [node for node in servers if self._is_wanted(node)]
        named: list[Iterable[Node]] = []
        if self.keys and self.mode is not BalanceMode.OFF:
            named.append(node for node in wanted if any(_lies_in(node, key) for key in self.keys))
        if (self.mode.excludes or self.mode.prefers) and not self._only_keys:
            named.append(wanted)
        return tuple(frozenset(node.uuid for node in nodes) for nodes in named)

    def unmatched(self, servers: Iterable[Node]) -> list[TopologyKey]:
        """Keys that mean no server at all."""
        listed = tuple(servers)
        return [key for key in self.keys if not any(_lies_in(node, key) for node in listed)]

    def _ordered(self, servers: Sequence[Node], seeds: Sequence[Node]) -> Iterator[Sequence[Node]]:
        wanted = [node for node in servers if self._is_wanted(node)]
        for level in sorted({key.level for key in self.keys}):
            keys = [key for key in self.keys if key.level == level]
            yield [node for node in wanted if any(_lies_in(node, key) for key in keys)]
        if not self._only_keys:
            yield wanted
        if self.mode.prefers:
            yield servers
        if not self.forbids:
            for seed in seeds:
                yield (seed,)

    def _is_wanted(self, node: Node) -> bool:
        if self.mode in (BalanceMode.ANY, BalanceMode.OFF):
            return True
        is_replica = node.tier == READ_REPLICA
        return is_replica is (self.mode in (BalanceMode.ONLY_RR, BalanceMode.PREFER_RR))

    @staticmethod
    def _new(group: Iterable[Node], seen: set[str]) -> Iterator[Node]:
        for node in group:
            if node.uuid not in seen:
                seen.add(node.uuid)
                yield node


def _lies_in(node: Node, key: TopologyKey) -> bool:
    place = node.failure_domain
    return key.matches(place.get("cloud", ""), place.get("region", ""), place.get("zone", ""))
