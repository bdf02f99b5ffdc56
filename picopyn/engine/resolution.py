"""Finding out what became of a transaction whose COMMIT was not answered, where the server can tell.

Before COMMIT the server is asked for the number of the transaction; when the answer to COMMIT does not come, the same
node is asked what became of that number. What it does not say stays unknown. Texts and their reach are the dialect's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.place import Place
from picopyn.engine.request import make_request
from picopyn.routing.plan import Role
from picopyn.topology import Node

_LOG = logging.getLogger(__name__)

#: How long it is asked for, if the caller has no limit of his own (seconds): a session whose client has gone ends with
#: the next thing that it sends or reads.
PATIENCE: Final = 10.0
#: First pause while the transaction is still in progress, and the longest; it doubles in between (seconds).
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


class Fate(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in progress"
    UNKNOWN = "unknown"


class Resolution:
    """Finds out, for one call of `run_transaction`. Owned by it.

    Args:
        executor: Asks.
        cluster: Time, and news of the cluster.
        questions: The two texts of the dialect.

    Attributes:
        question: To be asked before COMMIT.
        result: What the work returned in the attempt that was noted last.
    """

    def __init__(self, executor: Executor, cluster: Cluster, questions: tuple[str, str]) -> None:
        self.question, self._fate = questions
        self.result: Any = None
        self._mark: Sequence[Any] | None = None
        self._executor = executor
        self._cluster = cluster

    def note(self, mark: Sequence[Any] | None, result: Any) -> None:
        """An attempt is about to be committed; or, without a mark, begins."""
        self._mark = mark
        self.result = result

    async def fate(self, node: Node, deadline: float | None) -> Fate:
        """What became of the attempt that was noted last.

        Args:
            node: Where it ran.
            deadline: How long to ask, on the runtime's clock; None: `PATIENCE`.
        """
        if self._mark is None:
            return Fate.UNKNOWN
        if self._mark[0] is None:
            return Fate.ABORTED  # nothing can be changed there, so it may run again
        now, pause = self._cluster.runtime.now, FIRST_PAUSE
        until = now() + PATIENCE
        until = until if deadline is None else min(until, deadline)
        while (left := until - now()) > 0 and not self._executor.closed:
            fate = await self._ask(node, self._mark, left)
            if fate is not Fate.IN_PROGRESS:
                return fate
            await self._rest(min(now() + pause, until))
            pause = min(2 * pause, LONGEST_PAUSE)
        return Fate.UNKNOWN

    async def _ask(self, node: Node, mark: Sequence[Any], seconds: float) -> Fate:
        request = make_request("fetch", self._fate, tuple(mark), Role.ANY, idempotent=True)
        request.place = Place(node=node.uuid)
        request.limit(seconds, self._cluster.runtime.now())
        try:
            await self._executor.run(request)
            answer = request.answer[0][0]
        except Exception as error:  # whatever it was, the transaction is what the caller wants to hear of
            _LOG.warning("%s could not be asked what became of a transaction: %s", node.address, type(error).__name__)
            return Fate.UNKNOWN
        return Fate(answer) if answer in _TOLD else Fate.UNKNOWN

    async def _rest(self, until: float) -> None:
        changes = self._cluster.changes
        version = changes.version
        with suppress(TimeoutError):
            while not self._executor.closed:
                await changes.wait(until, version)
                version = changes.version


_TOLD: Final = ("committed", "aborted", "in progress")
