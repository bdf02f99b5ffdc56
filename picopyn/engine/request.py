"""One call on its way: what was asked, what is left of its time, what was tried so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from picopyn.routing.plan import Plan, Role
from picopyn.topology import Node

E = TypeVar("E", bound=BaseException)

#: Methods that take rows of arguments as one argument; the second for servers that execute each row by itself.
EXECUTEMANY: Final = "executemany"
EXECUTEMANY_FRESHLY: Final = "executemany_freshly"
MANY: Final = frozenset({EXECUTEMANY, EXECUTEMANY_FRESHLY})


class Request:
    """One routed call. It is owned by the executor's loop that runs it.

    Attributes:
        method: Name of the connection's method: `fetch`, `execute`, …
        query: Statement text.
        args: Its arguments; never part of any message.
        role: Which member of a replicaset may answer.
        idempotent: The caller's word on whether it may be sent twice; None when he did not say.
        timeout: The caller's limit for the whole call in seconds, or None.
        deadline: End of the call on the runtime's clock, or None.
        patience: Until when it may wait to be sent; the deadline where the caller named a timeout, else set at its
            first wait.
        sent: Attempts that reached a server.
        asked: The server was asked about the text while a leader was missing.
        losses: Attempts whose connection broke.
        ended: The attempt in flight was ended by us, because it may hang for ever.
        prepared_again: Its prepared statement was renewed.
        waited: It waited for a leader before it could be sent.
        plan: The plan of the attempt in flight.
        node: The node it was sent to last.
        attempts: What was tried, one line each, for the notes of the final error.
    """

    __slots__ = (
        "args",
        "asked",
        "attempts",
        "deadline",
        "ended",
        "idempotent",
        "losses",
        "method",
        "node",
        "patience",
        "plan",
        "prepared_again",
        "query",
        "role",
        "sent",
        "timeout",
        "waited",
    )

    def __init__(
        self,
        method: str,
        query: str,
        args: Sequence[Any],
        role: Role,
        timeout: float | None,
        deadline: float | None,
        idempotent: bool | None,
    ) -> None:
        self.method = method
        self.query = query
        self.args = args
        self.role = role
        self.timeout = timeout
        self.deadline = deadline
        self.patience = deadline
        self.idempotent = idempotent
        self.sent = 0
        self.asked = False
        self.losses = 0
        self.ended = False
        self.prepared_again = False
        self.waited = False
        self.plan: Plan | None = None
        self.node: Node | None = None
        self.attempts: list[str] = []

    @property
    def called(self) -> str:
        """The method as the caller knows it."""
        return EXECUTEMANY if self.method in MANY else self.method

    @property
    def row_by_row(self) -> bool:
        """Whether a part of it may have taken effect when it fails."""
        return self.method == EXECUTEMANY_FRESHLY

    def tried(self, node: Node, what: str) -> None:
        """Remember one failed attempt."""
        self.attempts.append(f"attempt {len(self.attempts) + 1} at {node.name} ({node.address}): {what}")

    def annotate(self, error: E) -> E:
        """Add what was tried to an error that is about to reach the caller."""
        for attempt in self.attempts[-10:]:
            error.add_note(f"picopyn: {attempt}")
        return error
