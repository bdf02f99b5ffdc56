"""The question whether one node is alive, on connections of its own.

The connection is opened when the first question is asked, kept while questions come, and is not part of the node
pools: it works when all of theirs are taken, and no call waits behind it. A question that is late is not given up when
the next one is asked, on a second connection: an overloaded node that answers late is alive, and a connection that some
device between us has silently forgotten proves nothing.

Whether an answer came in time is not decided here, see [`watch`][picopyn.routing.watch].
"""

from __future__ import annotations

from typing import Any, Protocol

from picopyn.dialects.base import Purpose
from picopyn.engine.jobs import Jobs
from picopyn.engine.runtime import Job, Link, Runtime
from picopyn.topology import Node

#: How long the connection is kept after the last question (seconds).
KEPT = 30.0


class ProbeListener(Protocol):
    """Who hears what became of a question."""

    def probe_answered(self, node: Node) -> None:
        """The node answered."""
        ...

    def probe_refused(self, node: Node, error: Exception) -> None:
        """No connection could be made, or the server would not have us; a mere lack of time is not told."""
        ...


class _Question:
    """One question on its way."""

    __slots__ = ("given_up", "job", "link")

    def __init__(self, link: Link | None) -> None:
        self.link = link
        self.job: Job | None = None
        self.given_up = False

    def give_up(self) -> None:
        """Nobody wants the answer any more."""
        self.given_up = True
        if self.job is not None:
            self.job.cancel()
        self.drop()

    def drop(self) -> None:
        if self.link is not None:
            self.link.terminate()


class NodeProbe:
    """Asks one node. Owned by the engine's probes.

    Args:
        runtime: The world.
        jobs: Where questions run.
        node: Whom to ask.
        text: What to ask: a statement that any living server answers at once.
        listener: Who is told the answer.
    """

    __slots__ = ("_asked_at", "_jobs", "_kept", "_late", "_listener", "_now_asked", "_runtime", "_text", "node")

    def __init__(self, runtime: Runtime, jobs: Jobs, node: Node, text: str, listener: ProbeListener) -> None:
        self.node = node
        self._runtime = runtime
        self._jobs = jobs
        self._text = text
        self._listener = listener
        self._kept: Link | None = None
        self._now_asked: _Question | None = None
        self._late: _Question | None = None
        self._asked_at = runtime.now()

    def ask(self) -> None:
        """Ask now. An earlier question may still be answered; of two that are late, the older one may."""
        if self._now_asked is not None:
            if self._late is None:
                self._late = self._now_asked
            else:
                self._now_asked.give_up()
        link, self._kept = self._kept, None
        self._asked_at = self._runtime.now()
        self._now_asked = question = _Question(link)
        question.job = self._jobs.spawn(self._ask(question), f"picopyn probe {self.node.name or self.node.address}")

    def rest(self) -> Link | None:
        """A connection that has not been needed for long, for the caller to close."""
        if self._kept is None or self._runtime.now() - self._asked_at < KEPT:
            return None
        return self._lay_down()

    def end(self) -> Link | None:
        """Ask no more; the connection that was kept is for the caller to close."""
        for question in (self._now_asked, self._late):
            if question is not None:
                question.give_up()
        self._now_asked = self._late = None
        return self._lay_down()

    def _lay_down(self) -> Link | None:
        link, self._kept = self._kept, None
        return link

    async def _ask(self, question: _Question) -> None:
        try:
            await self._converse(question)
        except Exception as error:
            question.drop()
            self._failed(question, error)
        except BaseException:
            question.drop()
            raise
        else:
            self._succeeded(question)

    async def _converse(self, question: _Question) -> None:
        """Ask on the connection that was kept; where that turns out to be no more, on a new one."""
        if question.link is not None:
            try:
                return await self._put(question.link)
            except Exception:
                question.drop()
        question.link = await self._runtime.open_link(self.node, Purpose.PROBE, self._lost)
        return await self._put(question.link)

    async def _put(self, link: Any) -> None:
        """Any word of the server will do, an error too, as long as the connection lives."""
        try:
            await link.fetch(self._text)
        except Exception as error:
            if self._runtime.fault(error) is not None or link.is_closed():
                raise

    def _succeeded(self, question: _Question) -> None:
        if question.given_up:
            return question.drop()
        for other in (self._now_asked, self._late):
            if other is not None and other is not question:
                other.give_up()
        self._now_asked = self._late = None
        self._kept = question.link
        return self._listener.probe_answered(self.node)

    def _failed(self, question: _Question, error: Exception) -> None:
        if question is self._late:
            self._late = None
        elif question is self._now_asked:
            self._now_asked = None
        if not (question.given_up or isinstance(error, TimeoutError)):
            self._listener.probe_refused(self.node, error)

    def _lost(self, link: Any) -> None:
        if link is self._kept:
            self._kept = None
