"""What happened to connections and nodes: counted for statistics, told to the observer.

It decides nothing. The rooms that own the facts report them here, in the order in which they happen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from picopyn.engine.runtime import Link
from picopyn.errors import Fault
from picopyn.observe import (
    CloseReason,
    ConnectFailed,
    ConnectionClosed,
    ConnectionOpened,
    NodeState,
    NodeStateChanged,
    OutcomeLost,
    Publisher,
    StatementRetried,
)
from picopyn.stats import Counters
from picopyn.topology import Node

_LOG = logging.getLogger(__name__)


class Journal:
    """Counts and tells. Owned by a pool.

    Args:
        counters: Where events are counted.
        publisher: Whom they are told.
        now: The engine's clock.
    """

    __slots__ = ("_births", "_now", "_number", "counters", "publisher")

    def __init__(self, counters: Counters, publisher: Publisher, now: Callable[[], float]) -> None:
        self.counters = counters
        self.publisher = publisher
        self._now = now
        self._number = 0
        self._births: dict[Link, tuple[int, float]] = {}

    def opened(self, node: Node, purpose: str, link: Link, seconds: float) -> None:
        """A connection was made."""
        self.counters.connects += 1
        self._number += 1
        if self.publisher.active:
            self._births[link] = (self._number, self._now())
            self.publisher.notify(
                ConnectionOpened(
                    connection=self._number, node=node.uuid, address=node.address, purpose=purpose, seconds=seconds
                )
            )

    def open_failed(self, node: Node, purpose: str, error: BaseException, seconds: float) -> None:
        """A connection could not be made."""
        self.counters.connect_failures += 1
        self._number += 1
        if self.publisher.active:
            self.publisher.notify(
                ConnectFailed(
                    connection=self._number,
                    node=node.uuid,
                    address=node.address,
                    purpose=purpose,
                    error=f"{type(error).__name__}: {error}",
                    seconds=seconds,
                )
            )

    def closed(self, node: Node, purpose: str, link: Link, reason: CloseReason) -> None:
        """A connection is no more."""
        self.counters.closes[reason] += 1
        number, born = self._births.pop(link, (0, 0.0))
        if self.publisher.active:
            self.publisher.notify(
                ConnectionClosed(
                    connection=number,
                    node=node.uuid,
                    address=node.address,
                    purpose=purpose,
                    reason=reason,
                    seconds=self._now() - born,
                )
            )

    def node_changed(self, node: Node, old: NodeState | None, new: NodeState, reason: str) -> None:
        """The driver thinks differently of a node."""
        _LOG.log(
            logging.DEBUG if "suspect" in (old, new) and new != "down" else logging.INFO,
            "node %s (%s) is %s: %s",
            node.name or node.uuid,
            node.address,
            new,
            reason,
        )
        if self.publisher.active:
            self.publisher.notify(
                NodeStateChanged(node=node.uuid, address=node.address, old=old, new=new, reason=reason)
            )

    def retried(self, node: Node, fault: Fault, attempt: int) -> None:
        """A call is sent again after an attempt at a node."""
        self.counters.retried(fault)
        if self.publisher.active:
            self.publisher.notify(StatementRetried(node=node.uuid, address=node.address, fault=fault, attempt=attempt))

    def outcome_lost(self, node: Node, reason: str) -> None:
        """Nobody can tell whether a statement that a node had took effect."""
        self.counters.outcome_unknown += 1
        if self.publisher.active:
            self.publisher.notify(OutcomeLost(node=node.uuid, address=node.address, reason=reason))
