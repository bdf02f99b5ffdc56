"""Who leads a replicaset, found by asking its instances: for users who may not read the tables that say so.

A keyed SELECT on a connection that may execute one operation only fails either as "limit reached" (it
executed here: this instance leads the owner of the key) or wrapped as an error of another replicaset (it
was forwarded). Nothing is read or changed. This file decides whom to ask, for how long, and when an
answer counts; the statement comes from the metadata service, the meaning of an error from the dialect.

*Source:* Picodata 26.1.6 and 26.2.1-rc2, recorded with a user that had READ on one table; 25.6 executes
nothing locally and so tells nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from picopyn.asynchronous.service_connection import (
    ServiceConnection,
    cause,
    costs_the_connection,
    drop,
    say_goodbye,
    stray_cancellations_are_errors,
)
from picopyn.dialects.picodata.leader_question import LeaderAnswer, read_leader_reply
from picopyn.dialects.picodata.versions import LOCAL_EXECUTION, may_be_at_least
from picopyn.topology import EventInstance, Node

_LOG = logging.getLogger(__name__)

#: Seconds one instance has for its answer, connecting included.
QUESTION_SECONDS = 1.0
#: Seconds after which a leader that was found is asked about again, although nothing we can see has
#: changed: a planned switch changes no row that a bare user may read.
RECHECK_SECONDS = 30.0
#: Seconds an instance that answered has to close the connection; the answer waits for it.
_GOODBYE_SECONDS = 0.25

#: A keyed SELECT and arguments whose key the given replicaset owns; None while no such statement is known.
KeySelect = Callable[[str], tuple[str, Sequence[Any]] | None]
#: Opens a connection to this node with the purpose `LEADER_QUESTION`; None when it cannot be reached.
ConnectTo = Callable[[Node], Awaitable[ServiceConnection | None]]


class FindsLeaders(Protocol):
    """What the polling source needs of a leader finder."""

    async def find(self, replicaset_uuid: str, nodes: Sequence[Node]) -> str | None:
        """Uuid of the instance that leads, or None when nobody said so."""
        ...


class LeaderFinder:
    """Asks all instances of a replicaset at once which of them leads.

    Args:
        connect_to: Opens a connection for the question.
        key_select: Gives the statement to ask with.
        seconds: What each instance has for its answer.
    """

    def __init__(
        self,
        connect_to: ConnectTo,
        key_select: KeySelect,
        *,
        seconds: float = QUESTION_SECONDS,
    ) -> None:
        self._connect_to = connect_to
        self._key_select = key_select
        self._seconds = seconds
        self._asking: dict[str, asyncio.Task[str | None]] = {}

    async def find(self, replicaset_uuid: str, nodes: Sequence[Node]) -> str | None:
        """The leader of a replicaset.

        A second call for the same replicaset while the first is under way shares its answer.

        Args:
            replicaset_uuid: The replicaset.
            nodes: Its instances worth asking.

        Returns:
            Uuid of the instance that executed the question itself; None when none did, when more than one
            claims to, or when there is no statement to ask with.
        """
        task = self._asking.get(replicaset_uuid)
        if task is None:
            question = self._key_select(replicaset_uuid)
            if question is None or not nodes:
                return None
            task = asyncio.create_task(self._ask_all(question, nodes), name="picopyn.leader.find")
            self._asking[replicaset_uuid] = task
            task.add_done_callback(lambda _: self._asking.pop(replicaset_uuid, None))
        await asyncio.wait({task})  # not awaited itself: a cancelled caller must not cancel the others' answer
        return None if task.cancelled() else task.result()

    async def close(self) -> None:
        """End the questions under way."""
        tasks = list(self._asking.values())
        self.terminate()
        if tasks:
            await asyncio.wait(tasks)

    def terminate(self) -> None:
        """The same without waiting."""
        for task in self._asking.values():
            task.cancel()

    async def _ask_all(self, question: tuple[str, Sequence[Any]], nodes: Sequence[Node]) -> str | None:
        asked = {asyncio.create_task(self._ask(node, question), name="picopyn.leader.ask"): node for node in nodes}
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                leaders = [asked[task].uuid for task in done if task.result() is LeaderAnswer.LEADER]
                if leaders:
                    return leaders[0] if len(leaders) == 1 else None
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
        return None

    async def _ask(self, node: Node, question: tuple[str, Sequence[Any]]) -> LeaderAnswer:
        connection: ServiceConnection | None = None
        try:
            with stray_cancellations_are_errors():
                async with asyncio.timeout(self._seconds):
                    connection = await self._connect_to(node)
                    if connection is None:
                        return LeaderAnswer.NO_ANSWER
                    await connection.fetch(question[0], *question[1])
        except Exception as error:
            answer = read_leader_reply(str(error)).answer
            _LOG.debug("asked %s who leads: %s (%s)", node.name or node.uuid, answer.name, cause(error))
            await _let_go(connection, error)
            return answer
        except BaseException:
            drop(connection)
            raise
        await _let_go(connection)
        return LeaderAnswer.NO_ANSWER  # it succeeded within one step: that says nothing


async def _let_go(connection: ServiceConnection | None, error: Exception | None = None) -> None:
    if connection is None or (error is not None and costs_the_connection(error, connection)):
        drop(connection)
    else:
        await say_goodbye(connection, _GOODBYE_SECONDS)


class LeaderMemory:
    """Which replicasets to ask about now, and what was found.

    Pure; its owner is a polling source.

    Args:
        recheck: Seconds after which a known leader is asked about again.
    """

    def __init__(self, recheck: float = RECHECK_SECONDS) -> None:
        self._recheck = recheck
        self._seen: dict[str, frozenset[tuple[Any, ...]]] = {}
        self._leaders: dict[str, str] = {}
        self._asked_at: dict[str, float] = {}

    @property
    def leaders(self) -> Mapping[str, str]:
        """Instance uuid by replicaset uuid, as far as found."""
        return self._leaders

    @property
    def replicasets(self) -> tuple[str, ...]:
        """Uuids of the replicasets seen at the last look."""
        return tuple(self._seen)

    def observe(self, instances: Sequence[EventInstance], now: float) -> dict[str, list[Node]]:
        """Take the instances as they are now.

        Returns:
            The replicasets to ask about, each with its instances worth asking: those whose instances
            changed, whose leader is not known, or who were asked long ago.
        """
        groups: dict[str, list[EventInstance]] = {}
        for instance in instances:
            groups.setdefault(instance.replicaset_uuid, []).append(instance)
        for gone in set(self._seen) - set(groups):
            self.forget(gone)
        due: dict[str, list[Node]] = {}
        for uuid, members in groups.items():
            if self._is_due(uuid, members, now):
                due[uuid] = [_node(member) for member in members if _can_tell(member)]
        return due

    def answered(self, replicaset_uuid: str, leader_uuid: str | None, now: float) -> None:
        """Take an answer; None (nobody said) keeps a leader that is still there."""
        self._asked_at[replicaset_uuid] = now
        if leader_uuid is not None:
            self._leaders[replicaset_uuid] = leader_uuid

    def forget(self, replicaset_uuid: str | None = None) -> None:
        """Forget one replicaset, or all: they are asked about again."""
        for known in (self._seen, self._leaders, self._asked_at):
            if replicaset_uuid is None:
                known.clear()
            else:
                known.pop(replicaset_uuid, None)

    def _is_due(self, uuid: str, members: Sequence[EventInstance], now: float) -> bool:
        seen = frozenset((m.uuid, m.host, m.port, m.online, m.incarnation) for m in members)
        before = self._seen.get(uuid)
        self._seen[uuid] = seen
        leader = self._leaders.get(uuid)
        if before != seen and leader not in {fact[0] for fact in seen & (before or frozenset()) if fact[3]}:
            self._leaders.pop(uuid, None)  # the leader itself changed or went: what was found means nothing
        return before != seen or uuid not in self._leaders or now - self._asked_at[uuid] >= self._recheck


def _can_tell(event: EventInstance) -> bool:
    """Whether the instance can be asked; a server that executes nothing locally always says no."""
    return event.online and bool(event.host) and may_be_at_least(event.version, LOCAL_EXECUTION)


def _node(event: EventInstance) -> Node:
    return Node(
        uuid=event.uuid,
        name=event.name,
        host=event.host,
        port=event.port,
        tier=event.tier,
        replicaset_uuid=event.replicaset_uuid,
        online=event.online,
        version=event.version,
    )
