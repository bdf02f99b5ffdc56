"""Who leads, from what all hosts say: one primary, many equals, or nobody.

Rules of this file:

1. A host that takes writes may lead. Of several, the one of the newest timeline does: the others were primary before
   it was promoted, and nobody has stopped them. It stays the leader while it is silent, until its facts are forgotten.
2. On the same timeline: one that answers, the one that led before, the one with the longest log, the one named first.
3. Where every host takes writes, and nothing was ever seen to tell one from another, they are equals: a fixed list of
   servers (poolers, nodes of something else) that nobody leads.
4. A host that has not answered yet has no role: it is a node, but in no replicaset, and gets no calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import NAMESPACE_URL, uuid5

from picopyn.routing.host_facts import HostFacts
from picopyn.topology import Event, EventInstance, EventReplicaset

#: Identity of the one replicaset that all hosts of a connection string make.
GROUP = str(uuid5(NAMESPACE_URL, "picopyn:hosts"))
GROUP_NAME = "hosts"


@dataclass(frozen=True, slots=True)
class Host:
    """One host that is watched.

    Attributes:
        uuid: Identity, computed from the address.
        name: For people.
        host: Host to dial.
        port: Port to dial.
    """

    uuid: str
    name: str
    host: str
    port: int

    @staticmethod
    def at(host: str, port: int, address: str) -> Host:
        """The host with this address; the same in every process and after every start."""
        return Host(str(uuid5(NAMESPACE_URL, f"postgresql://{address}")), address, host, port)


@dataclass(frozen=True, slots=True)
class Roles:
    """Who leads.

    Attributes:
        leader: Uuid of the leader; None: there is none now, or the hosts are equals.
        rivals: Hosts that take writes besides the leader, and answer.
        differ: Something was seen that tells one host from another.
        equals: All known hosts take writes, and nobody leads.
    """

    leader: str | None = None
    rivals: tuple[str, ...] = ()
    differ: bool = False
    equals: bool = False


def assign(facts: Mapping[str, HostFacts], answering: Collection[str], before: Roles) -> Roles:
    """Decide who leads now.

    Args:
        facts: What each host said last, in the order in which the hosts are named.
        answering: Those that answered when they were asked last.
        before: What was decided before.
    """
    writable = {uuid: host for uuid, host in facts.items() if host.writable}
    timelines = {host.timeline for host in writable.values()}
    ordered_by_timeline = None not in timelines
    differ = before.differ or len(writable) < len(facts) or (ordered_by_timeline and len(timelines) > 1)
    if not differ and len(writable) > 1:
        return Roles(equals=True)
    names = list(writable)

    def rank(uuid: str) -> tuple[int, bool, bool, int, int]:
        host = writable[uuid]
        timeline = (host.timeline or 0) if ordered_by_timeline else 0
        return timeline, uuid in answering, uuid == before.leader, host.written or 0, -names.index(uuid)

    leader = max(names, key=rank, default=None)
    rivals = tuple(uuid for uuid in names if uuid != leader and uuid in answering)
    return Roles(leader, rivals, differ)


def events(hosts: Iterable[Host], facts: Mapping[str, HostFacts], roles: Roles) -> list[Event]:
    """The hosts and their roles as facts of a topology: one replicaset with a leader, or without one.

    Args:
        hosts: All hosts.
        facts: What each said last.
        roles: Who leads.
    """
    made: list[Event] = [
        EventReplicaset(GROUP, GROUP_NAME, leader_uuid=roles.leader, leader_known=bool(facts) and not roles.equals)
    ]
    for host in hosts:
        said = facts.get(host.uuid)
        made.append(
            EventInstance(
                uuid=host.uuid,
                name=host.name,
                replicaset_uuid="" if said is None else GROUP,
                host=host.host,
                port=host.port,
                online=True,
                current_state="unknown" if said is None else said.word,
            )
        )
    return made


def warning(roles: Roles, hosts: Mapping[str, Host], facts: Mapping[str, HostFacts]) -> str | None:
    """What to tell people about several hosts that take writes; None where at most one does, or all are equals."""
    if roles.leader is None or not roles.rivals:
        return None
    others = ", ".join(_with_timeline(uuid, hosts, facts) for uuid in roles.rivals)
    return (
        f"several hosts take writes: {_with_timeline(roles.leader, hosts, facts)} is used as the primary, "
        f"nothing is written to {others}; stop what is not the primary"
    )


def _with_timeline(uuid: str, hosts: Mapping[str, Host], facts: Mapping[str, HostFacts]) -> str:
    timeline = facts[uuid].timeline
    return f"{hosts[uuid].name} (timeline {'unknown' if timeline is None else timeline})"
