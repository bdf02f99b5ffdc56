"""The errors a call ends with: what was attempted, on which node, within what deadline, what to change.

No parameter value and no secret gets into a text here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from picopyn.engine.place import DRAINING
from picopyn.engine.request import Request
from picopyn.errors import (
    AcquireTimeout,
    CallTimeout,
    ConnectionLost,
    Fault,
    NoNodeAvailable,
    OutcomeUnknown,
    TooManyWaiting,
    UsageError,
    WriteLost,
    WriteTimeout,
)
from picopyn.routing.health import Health
from picopyn.routing.plan import Plan
from picopyn.topology import Node, TopologySnapshot

if TYPE_CHECKING:
    from picopyn.engine.loan import Loan

#: The mark of errors that come from code of the caller's own.
_CALLERS: Final = "picopyn_callers_own"
#: The mark of errors that came over a held connection: whose it was, and what the error means.
_ORIGIN: Final = "picopyn_origin"


def in_short(error: BaseException) -> str:
    """What went wrong, for a note: a server's error by its kind only, for its text may contain row values."""
    sqlstate = getattr(error, "sqlstate", None)
    return first_line(error) if sqlstate in (None, "08003") else f"{type(error).__name__} ({sqlstate})"


def how_far(fault: Fault) -> str:
    """How far an attempt came that failed, for a note."""
    return "not sent" if fault is Fault.NOT_SENT else "sent"


def why(fault: Fault, error: BaseException, ended: str | None) -> str:
    """Why an attempt failed, for a note."""
    return f"{fault.value}: {ended or in_short(error)}"


def may_write(name: str) -> UsageError:
    """A replica is asked for, where only a leader can do it."""
    return UsageError(
        f"role='replica' asks for a replica, but {name}() was given a statement that may write; "
        "leave role= out, or use 'prefer_replica': then writes go to the leader"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class."""
    return str(error).partition("\n")[0] or type(error).__name__


def timed_out(request: Request, node: Node, *, repeatable: bool) -> CallTimeout:
    """The deadline ended while a node had the statement; or something else says so, and nobody has set any."""
    text = _no_answer(request.called, node, request.timeout)
    if repeatable:
        return request.annotate(CallTimeout(text))
    return request.annotate(WriteTimeout(f"{text}. It may still take effect"))


def _no_answer(name: str, node: Node, limit: float | None) -> str:
    text = f"{name}() got no answer from {node.name} ({node.address})"
    if limit is None:
        return f"{text}; look at the node"
    return f"{text} within {limit:g} s; give it a longer timeout, or look at the node"


def load_too_slow(timeout: float) -> CallTimeout:
    """The limit of a load has passed; this is about what was not sent."""
    return CallTimeout(
        f"executemany() was not done within {timeout:g} s; give it a longer timeout, or go on with resume="
    )


def held_timed_out(name: str, node: Node, limit: float | None, *, uncertain: bool) -> CallTimeout:
    """A call on a held connection ran into its limit (seconds), if it had one."""
    text = _no_answer(name, node, limit)
    return WriteTimeout(f"{text}. It may still take effect") if uncertain else CallTimeout(text)


def held_lost(name: str, node: Node, error: Exception, *, uncertain: bool, why: str | None = None) -> ConnectionLost:
    """A held connection broke under a call, or was closed before it; perhaps we know why."""
    cause = first_line(error) if why is None else why
    text = f"the connection to {node.name} ({node.address}) is lost, {name}() failed: {cause}"
    if uncertain:
        return WriteLost(f"{text}; it may have taken effect. Look before you repeat it")
    return ConnectionLost(text)


def left_open(name: str, node: Node) -> OutcomeUnknown:
    """A held connection got an error that leaves open whether the call took effect."""
    text = f"{name}() at {node.name} ({node.address}) failed on its way to another node; it may have taken effect"
    return OutcomeUnknown(f"{text}. Look before you repeat it")


def outcome_unknown(
    request: Request, node: Node, error: Exception, broke: Fault | None, ended: str | None = None
) -> OutcomeUnknown:
    """A statement that must not be repeated, or not again, failed in a way that leaves open whether it happened.

    Args:
        request: The call.
        node: Where it was sent.
        error: What happened.
        broke: What that means for the connection; None when it is the server who said so.
        ended: Why we dropped the connection ourselves, in words that follow "since"; None when we did not.
    """
    advice = "Look before you repeat it" + ("" if request.idempotent else ", or declare the call idempotent=True")
    if broke is not None:
        what = "broke" if ended is None else "was dropped"
        text = f"the connection to {node.name} ({node.address}) {what} after {request.called}() had sent its statement"
        text += "" if ended is None else f", since {ended}"
        return request.annotate(WriteLost(f"{text}; it may have taken effect. {advice}"))
    text = f"{request.called}() at {node.name} ({node.address}) failed on its way to another node"
    return request.annotate(OutcomeUnknown(f"{text}; it may have taken effect, or a part of it. {advice}"))


def mark_as_callers(error: BaseException) -> None:
    """Note that an error comes from code of the caller's own: it says nothing about a connection, whatever its type."""
    error.__dict__[_CALLERS] = True


def is_callers(error: BaseException) -> bool:
    """Whether an error comes from code of the caller's own, as far as that was noted."""
    return _CALLERS in error.__dict__


def mark_origin(error: BaseException, loan: object, fault: Fault) -> None:
    """Note on which loan an error came, and what it means."""
    error.__dict__[_ORIGIN] = _Origin(loan, fault)


def meaning(error: BaseException, loan: object) -> Fault | None:
    """What an error means that came on this loan; None when it came from elsewhere."""
    origin: _Origin = error.__dict__.get(_ORIGIN, _NOWHERE)
    return origin.fault if origin.loan is loan else None


class _Origin:
    """On which loan an error came, and what it means. A copy of the error, made from a pickle, came on none."""

    __slots__ = ("fault", "loan")

    def __init__(self, loan: object, fault: Fault | None) -> None:
        self.loan = loan
        self.fault = fault

    def __reduce__(self) -> tuple[type[_Origin], tuple[None, None]]:
        return _Origin, (None, None)


_NOWHERE: Final = _Origin(None, None)


def not_copied(what: str) -> UsageError:
    """Something that belongs to one connection is copied or pickled."""
    return UsageError(f"{what} can be neither copied nor sent to another process; make one on a connection there")


def transaction_ended(what: str) -> UsageError:
    """A statement of the borrower's ends the pool's transaction, or would.

    Args:
        what: Which one does, and with what verb.
    """
    return UsageError(
        f"{what} the transaction that the pool began. What a statement has ended stands or is undone as it said; leave "
        "the block to commit, raise an error in it to roll back"
    )


def rolled_back(loan: Loan) -> ConnectionLost:
    """COMMIT was not answered, and the server says that it was rolled back: nothing is unknown any more."""
    loan.undecided = False
    node = loan.pool.node
    what = "COMMIT was not answered; the server says that the transaction was rolled back"
    told = ConnectionLost(f"the connection to {node.name} ({node.address}) is lost, {what}")
    mark_origin(told, loan, Fault.LOST)
    return told


def transaction_timed_out(timeout: float, node: Node | None, *, undecided: bool) -> CallTimeout:
    """A transaction with all its attempts ran into its limit.

    Args:
        timeout: The limit (seconds).
        node: Where the last attempt was; None: it had no connection.
        undecided: COMMIT was sent and not answered.
    """
    where = "" if node is None else f"; the last attempt was at {node.name} ({node.address})"
    text = f"run_transaction() was not done within {timeout:g} s{where}"
    if undecided:
        return WriteTimeout(f"{text}. COMMIT was sent and not answered, so it may have taken effect. Look first")
    return CallTimeout(f"{text}. Nothing took effect. Allow more time, or look at the node")


def not_acquired(
    request: Request, awaited: str, limit: float, snapshot: TopologySnapshot, health: Health
) -> AcquireTimeout | NoNodeAvailable | WriteLost:
    """No connection became available in time; after a loss, that is not all there is to tell.

    Args:
        request: The call.
        awaited: What it waited for.
        limit: How long it could wait (seconds); 0: nobody has set any limit.
        snapshot: What is known of the cluster.
        health: Of its nodes.
    """
    reasons = {node.address: health.of(node.uuid).reason for node in snapshot.nodes()}
    reasons |= {node.address: DRAINING for node in snapshot.all_nodes() if node.draining}
    if all(reasons.values()) and not request.losses:
        return request.annotate(NoNodeAvailable(f"{request.called}() found no reachable node{_in(limit)}", reasons))
    down = "; ".join(f"{address}: {reason}" for address, reason in reasons.items() if reason)
    waited = f"waited {limit:g} s" if limit else "waited"
    text = f"{request.called}() {waited} for {awaited}" + (f" ({down})" if down else "")
    if request.losses and request.idempotent:
        sent = "it had been sent before and lost its connection, so it may have taken effect"
        return request.annotate(WriteLost(f"{text}; {sent}. Repeat it, or look"))
    sent = "it had been sent before and lost its connection" if request.losses else "nothing was sent"
    return request.annotate(AcquireTimeout(f"{text}; {sent}. Allow more time, or look at the cluster"))


def forbidden(request: Request, mode: str, limit: float, snapshot: TopologySnapshot, health: Health) -> NoNodeAvailable:
    """No node that may be used could be reached in time, and the settings forbid the others."""
    reasons = {node.address: health.of(node.uuid).reason or _place(node) for node in snapshot.nodes()}
    text = f"{request.called}() found no reachable node{_in(limit)} that {mode} allows; nothing was sent"
    return request.annotate(NoNodeAvailable(text, reasons, mode))


def _in(limit: float) -> str:
    """How long it took, where there is a limit."""
    return f" in {limit:g} s" if limit else ""


def _place(node: Node) -> str:
    place = ".".join(node.failure_domain.get(part, "") for part in ("cloud", "region", "zone"))
    return f"is not allowed: a {node.tier or 'seed'} in {place}" if node.tier else "is in no list of servers"


def too_many_waiting(request: Request, node: Node, state: str) -> TooManyWaiting:
    """As many calls wait for a node as may."""
    text = f"{request.called}() was refused: at {node.name} ({node.address}) {state}, and no more may"
    return request.annotate(TooManyWaiting(f"{text}; nothing was sent. Raise max_waiting or max_size, or send less"))


def awaited(plan: Plan, snapshot: TopologySnapshot) -> str:
    """What a waiting plan waits for, in words."""
    replicasets = [snapshot.replicaset(uuid) for uuid in plan.missing]
    names = ", ".join(replicaset.name or replicaset.uuid for replicaset in replicasets if replicaset is not None)
    why = plan.wait.value if plan.wait is not None else ""
    return f"a change of the cluster, since {why}" + (f" [{names}]" if names else "")
