"""All that is known of a group of hosts: what each said last, who leads, how the replicas stand, how fast they answer.

Its one owner feeds it; planners read it at any time. What they sort hosts by (`freshness`) is an immutable mapping that
is replaced only when something in it changed, so that a look at its identity tells whether anything did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from types import MappingProxyType

from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_roles import Host, Roles, assign
from picopyn.routing.staleness import UNCHECKED, Freshness, Standing, Trail, judge
from picopyn.staleness import StalenessPolicy

#: Answers whose times count for the latency of a host, as hasql has it.
WINDOW = 128
#: How long the facts of a silent host are believed (seconds): until then it keeps its role.
BELIEVED = 30.0


class HostTable:
    """What is known of the hosts. Owned by a topology source.

    Args:
        policy: How far behind a replica may be; None: as far as it likes.

    Attributes:
        policy: See above.
        roles: Who leads.
        standings: How every replica stands, by uuid.
        freshness: What every replica is good for, by uuid; replaced when anything in it changes.
    """

    def __init__(self, policy: StalenessPolicy | None = None) -> None:
        self.roles = Roles()
        self.standings: Mapping[str, Standing] = MappingProxyType({})
        self.freshness: Mapping[str, Freshness] = MappingProxyType({})
        self.policy = policy
        self._order: tuple[str, ...] = ()
        self._facts: dict[str, HostFacts] = {}
        self._failed: dict[str, str] = {}
        self._fresh_at: dict[str, float] = {}
        self._times: dict[str, deque[float]] = {}
        self._trail = Trail()

    @property
    def facts(self) -> dict[str, HostFacts]:
        """What each host said last, as far as it is believed, in the order in which the hosts are named."""
        return {uuid: self._facts[uuid] for uuid in self._order if uuid in self._facts}

    @property
    def limits_nobody(self) -> bool:
        """Whether there is a limit for replicas, and none of the hosts is one, all of which have answered."""
        facts = self.facts
        return self.policy is not None and len(facts) == len(self._order) and all(map(_writable, facts.values()))

    @property
    def led(self) -> bool:
        """Whether the hosts are equals, or have a leader that answers."""
        return self.roles.equals or (self.roles.leader is not None and self.roles.leader not in self._failed)

    def latency(self, uuid: str) -> float | None:
        """The median time of a host's last answers (seconds); None: it has not answered yet."""
        times = self._times.get(uuid)
        return median(tuple(times)) if times else None

    def trouble(self, uuid: str) -> str | None:
        """Why a host did not answer when it was asked last; None when it did, or was not asked yet."""
        return self._failed.get(uuid)

    def name(self, hosts: Iterable[Host]) -> None:
        """These are the hosts; what is known of others is forgotten."""
        self._order = tuple(host.uuid for host in hosts)
        for known in (self._facts, self._failed, self._fresh_at, self._times):
            for gone in known.keys() - set(self._order):
                known.pop(gone)
        self._assign()

    def answered(self, uuid: str, facts: HostFacts, seconds: float) -> None:
        """A host answered.

        Args:
            uuid: The host.
            facts: What it said, and when.
            seconds: How long its answer took.
        """
        if uuid not in self._order:
            return
        before = self._facts.get(uuid)
        if before is not None and before.writable is not facts.writable:
            self._fresh_at.pop(uuid, None)
        self._facts[uuid] = facts
        self._failed.pop(uuid, None)
        self._times.setdefault(uuid, deque(maxlen=WINDOW)).append(seconds)
        self._assign()
        if uuid == self.roles.leader and facts.written is not None:
            self._trail = self._trail.with_point(facts.observed_at, facts.written)
        self._judge(facts.observed_at)

    def failed(self, uuid: str, reason: str, now: float) -> None:
        """A host could not be asked, or its answer made no sense."""
        if uuid not in self._order:
            return
        self._failed[uuid] = reason
        self._fresh_at.pop(uuid, None)
        known = self._facts.get(uuid)
        if known is not None and now - known.observed_at > BELIEVED:
            del self._facts[uuid]
        self._assign()
        self._judge(now)

    def _assign(self) -> None:
        before = self.roles.leader
        facts = self.facts
        self.roles = assign(facts, facts.keys() - self._failed.keys(), self.roles)
        if self.roles.leader != before and self.roles.leader is not None:
            self._trail = Trail()

    def _judge(self, now: float) -> None:
        leader = self.roles.leader
        standings = {uuid: self._standing(uuid, facts, now) for uuid, facts in self.facts.items() if uuid != leader}
        self.standings = MappingProxyType(standings)
        freshness = {uuid: standing.freshness for uuid, standing in standings.items()}
        if freshness != self.freshness:
            self.freshness = MappingProxyType(freshness)

    def _standing(self, uuid: str, facts: HostFacts, now: float) -> Standing:
        if self.policy is not None and uuid in self._failed:
            return UNCHECKED
        standing = judge(self.policy, facts, self._trail, now, self._fresh_at.get(uuid))
        if standing.freshness is Freshness.FRESH and not standing.spared:
            self._fresh_at[uuid] = now
        return standing


def _writable(facts: HostFacts) -> bool:
    return facts.writable
