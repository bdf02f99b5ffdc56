"""What happens to the servers, and when: made from a seed, so that it can happen again. Pure.

This file decides the order of disturbances. It must not know servers: who "the leader of group 1" is, is found out when
the step is taken.

Every schedule keeps these rules, and `problems` finds where one does not:

- At most one server at a time is dead, frozen or read-only, and the way to at most one is disturbed: a majority lives.
- Every trouble ends within the schedule: the node comes back, or another one takes its place and it follows.
- Servers are added, taken out, and switched, and buckets moved, only while no server is in trouble.
- What was added is taken out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random


class Act(Enum):
    """One kind of step."""

    KILL = "kill"
    STOP = "stop"
    FREEZE = "freeze"
    READ_ONLY = "make read-only"
    MUTE = "lose everything on the way to"
    HOLD = "hold everything on the way to"
    SLOW = "slow the way to"
    REFUSE = "refuse new connections to"
    CUT = "cut every connection to"
    MEND = "mend"
    SUCCEED = "promote another, and let follow"
    SWITCH = "change the leader"
    MOVE = "move buckets"
    GROW = "add a node"
    SHRINK = "take out what was added"


#: Troubles of a server.
SERVER = frozenset({Act.KILL, Act.STOP, Act.FREEZE, Act.READ_ONLY})
#: Troubles of the way to a server.
LINK = frozenset({Act.MUTE, Act.HOLD, Act.SLOW, Act.REFUSE})
#: What ends a trouble.
ENDS = frozenset({Act.MEND, Act.SUCCEED})


@dataclass(frozen=True, slots=True)
class Menu:
    """What can happen to one kind of cluster.

    Attributes:
        acts: Which acts, ends left out.
        groups: How many groups of servers there are, each with one leader and others that can take its place.
        promotes: Whether somebody has to promote a successor of a lost leader; otherwise the cluster does so itself.
    """

    acts: tuple[Act, ...]
    groups: int
    promotes: bool


PICODATA = Menu(tuple(a for a in Act if a not in ENDS and a is not Act.READ_ONLY), groups=2, promotes=False)
POSTGRES = Menu(tuple(a for a in Act if a not in ENDS | {Act.MOVE, Act.GROW, Act.SHRINK}), groups=1, promotes=True)


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        act: What is done.
        number: Of the trouble that begins or ends here; 0 for others.
        group: In which group.
        leader: Whether to its leader; otherwise to another member.
        luck: In [0, 1), for what else there is to choose.
        pause: How long nothing is done afterwards (seconds).
    """

    act: Act
    number: int = 0
    group: int = 0
    leader: bool = True
    luck: float = 0.0
    pause: float = 0.0


@dataclass(slots=True)
class _State:
    """What is going on at some place of a schedule."""

    server: Step | None = None
    link: Step | None = None
    grown: bool = False

    def take(self, step: Step) -> None:
        if step.act in SERVER:
            self.server = step
        elif step.act in LINK:
            self.link = step
        elif step.act in ENDS and self.server is not None and self.server.number == step.number:
            self.server = None
        elif step.act in ENDS:
            self.link = None
        elif step.act in (Act.GROW, Act.SHRINK):
            self.grown = step.act is Act.GROW

    def allows(self, act: Act) -> bool:
        if act in SERVER:
            return self.server is None
        if act in LINK or act is Act.CUT:
            return self.link is None
        if act in (Act.GROW, Act.SHRINK) and self.grown is (act is Act.GROW):
            return False
        return self.server is None

    def troubles(self) -> list[Step]:
        return [step for step in (self.server, self.link) if step is not None]


def schedule(seed: int, menu: Menu, length: int, tempo: float = 1.0) -> list[Step]:
    """Make a schedule.

    Args:
        seed: The same seed, menu and length give the same steps.
        menu: What can happen.
        length: How many steps, without those that end what is left at the end.
        tempo: Longest pause between two steps (seconds).
    """
    return list(_walk(Random(seed), menu, length, tempo))


def _walk(rng: Random, menu: Menu, length: int, tempo: float) -> Iterator[Step]:
    state = _State()
    used: list[Act] = []
    for number in range(1, length + 1):
        begun = state.troubles()
        possible = [act for act in menu.acts if state.allows(act)]
        if begun and (not possible or rng.random() < 0.4 * len(begun)):
            step = _end(rng, menu, rng.choice(begun), tempo)
        else:
            step = _begin(rng, menu, _choice(rng, possible, used), number, tempo)
        state.take(step)
        yield step
    for left in state.troubles():
        yield _end(rng, menu, left, tempo)
    if state.grown:
        yield _begin(rng, menu, Act.SHRINK, 0, tempo)


def _choice(rng: Random, possible: Sequence[Act], used: list[Act]) -> Act:
    """What happened least often so far is the likeliest."""
    act = min(possible, key=lambda act: used.count(act) + rng.random() * 1.5)
    used.append(act)
    return act


def _begin(rng: Random, menu: Menu, act: Act, number: int, tempo: float) -> Step:
    trouble = act in SERVER | LINK
    return Step(
        act,
        number if trouble else 0,
        rng.randrange(menu.groups),
        act is Act.READ_ONLY or rng.random() < 0.75,
        rng.random(),
        rng.uniform(0.1, 1.0) * tempo,
    )


def _end(rng: Random, menu: Menu, trouble: Step, tempo: float) -> Step:
    lost = trouble.leader and trouble.act in SERVER - {Act.READ_ONLY}
    act = Act.SUCCEED if menu.promotes and lost and rng.random() < 0.6 else Act.MEND
    return Step(act, trouble.number, trouble.group, trouble.leader, rng.random(), rng.uniform(0.1, 1.0) * tempo)


def problems(steps: Iterable[Step], menu: Menu) -> list[str]:
    """Where a list of steps breaks the rules of this file; empty when nowhere."""
    state, found = _State(), []
    for place, step in enumerate(steps):
        if step.act in ENDS:
            wrong = _wrong_end(step, state, menu)
        else:
            wrong = None if step.act in menu.acts and state.allows(step.act) else "not now"
            wrong = "there is no such group" if not 0 <= step.group < menu.groups else wrong
        if wrong:
            found.append(f"step {place}, {step.act.name}: {wrong}")
        state.take(step)
    found += [f"{left.act.name} of number {left.number} never ends" for left in state.troubles()]
    return [*found, *(["what was added stays"] if state.grown else [])]


def _wrong_end(step: Step, state: _State, menu: Menu) -> str | None:
    begun = next((trouble for trouble in state.troubles() if trouble.number == step.number), None)
    if begun is None:
        return "nothing like that goes on"
    if step.act is Act.SUCCEED and not (menu.promotes and begun is state.server and begun.leader):
        return "nobody has to be promoted"
    return None
