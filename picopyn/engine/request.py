"""One call on its way: what was asked, what is left of its time, what was tried so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from picopyn.engine.place import Destination
from picopyn.engine.route_table import CompiledRoute
from picopyn.engine.row_acks import RowAcks
from picopyn.engine.runtime import Link
from picopyn.errors import UsageError
from picopyn.routing.plan import Plan, Role
from picopyn.topology import Node

E = TypeVar("E", bound=BaseException)

#: Methods that take rows of arguments as one argument; the second for servers that execute each row by itself.
EXECUTEMANY: Final = "executemany"
EXECUTEMANY_FRESHLY: Final = "executemany_freshly"
MANY: Final = frozenset({EXECUTEMANY, EXECUTEMANY_FRESHLY})


class Request:
    """One routed call, made by [`make_request`][picopyn.engine.request.make_request].

    It is owned by the executor's loop that runs it.

    Attributes:
        method: Name of the connection's method: `fetch`, `execute`, …
        query: Statement text.
        args: Its arguments; never part of any message.
        role: Which member of a replicaset may answer.
        idempotent: The caller's word on whether it may be sent twice; None when he did not say.
        word: What the caller called, where that is another method.
        timeout: The caller's limit for the whole call in seconds, or None.
        deadline: End of the call on the runtime's clock, or None.
        patience: Until when it may wait to be sent; the deadline where the caller named a timeout, else set at its
            first wait.
        sent: Attempts that reached a server.
        asked: The server was asked about the text while a leader was missing.
        losses: Attempts whose connection broke.
        deaths: Those among them at whose end the server said nothing.
        sent_after: Number of the last death of a node when the attempt was sent; None while none has died since.
        refusals: Attempts that a node refused because it would have had to send the statement on.
        broke: An attempt lost its connection after it was sent, whoever ended it.
        ended: The attempt in flight was ended by us, because it may hang for ever.
        overdue: The attempt in flight was ended by us, because its time was over.
        end_reason: Why the connection of the attempt in flight was dropped by us; None while it was not.
        prepared_again: Its prepared statement was renewed.
        refused_since: When it was first refused because its leader changes, on the runtime's clock; None: it was not.
        waited: It waited for a leader before it could be sent.
        place: Where the caller said it goes; None: as the route of its statement says.
        plan: The plan of the attempt in flight.
        route: What the plan was made from, where the text is known; on the short way, once an attempt has failed.
        node: The node it was sent to last.
        link: The connection it was sent on last; it is with a server while it holds that.
        elsewhere: Where it waits for a connection, another node can serve it as well.
        answer: The driver's, once there is one.
        attempts: What was tried, one line each, for the notes of the final error.
        not_again: Why it was not sent again although it could be.
    """

    # What few calls need stands on the class, so that it costs the others nothing.
    word: str = ""
    timeout: float | None = None
    patience: float | None = None
    plan: Plan | None = None
    route: CompiledRoute | None = None
    node: Node | None = None
    link: Link | None = None
    elsewhere: bool = False
    sent: int = 0
    asked: bool = False
    losses: int = 0
    deaths: int = 0
    sent_after: int | None = None
    refusals: int = 0
    broke: bool = False
    ended: bool = False
    overdue: bool = False
    end_reason: str | None = None
    prepared_again: bool = False
    refused_since: float | None = None
    answer: Any = None
    attempts: tuple[str, ...] = ()
    not_again: str = ""

    # What every call is asked for, `make_request` sets.
    method: str
    query: str
    args: Sequence[Any]
    role: Role
    idempotent: bool | None
    place: Destination | None
    deadline: float | None
    waited: bool

    def limit(self, timeout: float, now: float, own: bool = True) -> None:
        """Set the limit for the whole call.

        Args:
            timeout: The limit (seconds).
            now: The runtime's clock.
            own: The caller named it for this call, so it also is how long the call may wait to be sent.
        """
        self.timeout = timeout
        self.deadline = now + timeout
        if own:
            self.patience = self.deadline

    @property
    def called(self) -> str:
        """The method as the caller knows it."""
        return self.word or (EXECUTEMANY if self.method in MANY else self.method)

    @property
    def node_name(self) -> str | None:
        """Name of the node it was sent to last."""
        return None if self.node is None else self.node.name

    @property
    def acks(self) -> RowAcks | None:
        """What counts its acknowledged rows, for rows that take effect one by one."""
        return self.args[1] if self.method == EXECUTEMANY_FRESHLY else None

    @property
    def progress(self) -> int:
        """How many of its rows the server has acknowledged, where that is counted."""
        acks = self.acks
        return 0 if acks is None else acks.total

    def go_on(self) -> None:
        """An attempt failed: rows that are acknowledged are not sent again."""
        acks = self.acks
        if acks is not None:
            self.args = (self.args[0][acks.begin_again() :], acks)

    def tried(self, node: Node, phase: str, why: str) -> None:
        """Remember one failed attempt: how far it came, and why it failed."""
        self.attempts += (f"attempt {len(self.attempts) + 1} at {node.name} ({node.address}), {phase}: {why}",)

    def annotate(self, error: E) -> E:
        """Add what was tried to an error that is about to reach the caller."""
        for attempt in self.attempts[-10:]:
            error.add_note(f"picopyn: {attempt}")
        if self.not_again:
            error.add_note(f"picopyn: {self.not_again}")
        return error


def make_request(method: str, query: str, args: Sequence[Any], role: Role, idempotent: bool | None = None) -> Request:
    """A call, as it begins; parameters as the attributes. A class with `__init__` would cost each call more."""
    request = Request()
    request.method = method
    request.query = query
    request.args = args
    request.role = role
    request.idempotent = idempotent
    request.place = None
    request.deadline = None
    request.waited = False
    return request


def check_text(query: object, method: str) -> None:
    """Refuse what is no statement, before it goes where no caller hears of it.

    A server reads a text up to its first NUL, so it would see another statement than the caller wrote.

    Raises:
        UsageError: It is no text, or one that cannot be sent.
    """
    if not isinstance(query, str):
        raise UsageError(f"{method}() takes the text of a statement, not {type(query).__name__}")
    if "\0" in query:
        raise UsageError(f"{method}() takes a text without NUL; there is one at position {query.index(chr(0))}")
    if not query.isascii():
        try:
            query.encode()
        except UnicodeEncodeError as error:
            told = (
                f"{method}() takes a text that UTF-8 can tell; there is half a surrogate pair at position {error.start}"
            )
            raise UsageError(told) from None
