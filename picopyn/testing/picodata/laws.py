"""Where a statement executes, and what it waits for: the laws of a Picodata as one decision table. Pure.

Decides from the roles and the life of the instances alone. Must not know sockets, clocks, rows or SQL.

*Source* of every rule: `picodata-recorded.md` sections 1, 3, 4 (26.1.6 and 25.6) and 7 (26.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Life(Enum):
    """What a process does, as its peers and clients see it.

    DEAD: refuses connections; its peers have lost theirs. SILENT: just started, accepts connections and says
    nothing, its peers are not connected. FROZEN: its connections live, nothing is read or answered.
    """

    ALIVE = "alive"
    DEAD = "dead"
    SILENT = "silent"
    FROZEN = "frozen"

    @property
    def connected(self) -> bool:
        """Whether its peers hold a living connection to it."""
        return self in (Life.ALIVE, Life.FROZEN)


class Kind(Enum):
    """What a statement touches."""

    ANYWHERE = "anywhere"
    """No sharded table: constants, system and global tables (reads and writes), functions."""

    SHARDED = "sharded"
    """Rows of a sharded table."""

    SCHEMA = "schema"
    """Schema, users, privileges: goes to every replicaset."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one execution of a statement touches.

    Attributes:
        kind: See `Kind`.
        tier: Tier of the sharded tables; None when there is none.
        replicasets: Names of the replicasets whose buckets take part.
        reads: Whether it only reads.
        read_preference: `"leader"`, `"replica"` or `"any"`, from the text or the connection.
        forward: `"on"`, `"ro_to_rw"` or `"off"`, from the text or the connection; always `"on"` before 26.2.
    """

    kind: Kind
    tier: str | None = None
    replicasets: frozenset[str] = frozenset()
    reads: bool = False
    read_preference: str = "leader"
    forward: str = "on"


@dataclass(frozen=True, slots=True)
class Scene:
    """Who is who at one moment, as far as one statement is concerned.

    Attributes:
        at: Name of the instance that received the statement.
        replicaset: Its replicaset.
        tier: Its tier.
        masters: Replicaset to the name of its current master, for the replicasets of the statement's tier
            (of all tiers for SCHEMA).
        life: Life of every instance named in `masters`.
        executes_locally: Whether an instance executes by itself what concerns only its own rows; 25.6 never does.
    """

    at: str
    replicaset: str
    tier: str
    masters: Mapping[str, str]
    life: Mapping[str, Life]
    executes_locally: bool = True


class Place(Enum):
    """Where a statement executes."""

    HERE = "here"
    """At the receiving instance, without touching sharded data (or locally for global data)."""

    OWNER = "owner"
    """At the receiving instance, which is the master of the one replicaset concerned: the direct path."""

    REPLICA = "replica"
    """At the receiving instance, a replica of the one replicaset concerned, because the reader allowed it."""

    FORWARDED = "forwarded"
    """Through the masters of the replicasets concerned."""

    EVERYWHERE = "everywhere"
    """At every replicaset: schema changes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to one statement.

    Attributes:
        place: Where it executes.
        waits_connected: Masters that must be connected before anything is sent. **These very instances**: a
            statement that waits is not helped by a promotion.
        waits_answer: Frozen masters the statement has been sent to: it happens when they thaw.
        no_replica: Whether the read is refused once sent (`read_preference = replica` where no replica is
            taken).
        refused: What `forward` forbids: `"elsewhere"`, the rows are at another instance; `"spread"`, they are at
            several; `""`, nothing. It is refused at once, whoever is dead.
    """

    place: Place
    waits_connected: frozenset[str] = frozenset()
    waits_answer: frozenset[str] = frozenset()
    no_replica: bool = False
    refused: str = ""

    @property
    def hangs(self) -> bool:
        """Whether it does not run at once."""
        return bool(self.waits_connected or self.waits_answer)


def decide(scene: Scene, need: Need) -> Verdict:
    """Apply the laws to one statement at one moment."""
    if need.kind is Kind.ANYWHERE:
        return Verdict(Place.HERE)
    if need.kind is Kind.SCHEMA:
        return Verdict(Place.EVERYWHERE, *_waits(scene, frozenset(scene.masters)))
    local = need.replicasets == {scene.replicaset} and need.tier == scene.tier and scene.executes_locally
    leader = scene.masters.get(scene.replicaset) == scene.at
    if local and leader and not (need.reads and need.read_preference == "replica"):
        return Verdict(Place.OWNER)
    spread = len(need.replicasets) > 1
    if need.forward == "off" or (need.forward == "ro_to_rw" and spread):
        return Verdict(Place.FORWARDED, refused="spread" if spread else "elsewhere")
    if local and not leader and need.reads and need.read_preference != "leader":
        return Verdict(Place.REPLICA)
    no_replica = need.reads and need.read_preference == "replica"
    return Verdict(Place.FORWARDED, *_waits(scene, need.replicasets), no_replica=no_replica)


def _waits(scene: Scene, targets: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """All masters of the tier must be connected; those concerned must also answer."""
    others = {name: master for name, master in scene.masters.items() if master != scene.at}
    dead = frozenset(master for master in others.values() if not scene.life[master].connected)
    frozen = frozenset(others[name] for name in targets & others.keys() if scene.life[others[name]] is Life.FROZEN)
    return dead, frozen
