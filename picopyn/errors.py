"""The error tree of the driver, and what an error means to it.

Server errors reach the caller as asyncpg's own classes; the classes here are the driver's own statements. They never
carry a parameter value or a password: texts name the attempt, the node, the deadline and what to change.

```
PicopynError
├── ConfigError (ValueError)        every problem of a configuration, in one error
├── UsageError (RuntimeError)       the API was used wrongly; nothing was sent
├── PoolClosed                      the pool was closed before or while the call waited
├── NotSupported                    the server cannot do that
├── AuthenticationFailed            the server refused the credentials; asked once, at one node
├── AcquireTimeout (TimeoutError)   no connection became free within the deadline; nothing was sent
│   └── TooManyWaiting              as many calls as may wait already wait for that node; it was refused at once
├── CallTimeout (TimeoutError)      the deadline ended while the server had the statement
├── ConnectionLost (ConnectionError)
├── NoNodeAvailable                 a reason for every node that was tried
├── BulkError                       a load of many rows stopped; its report says what became of each
└── OutcomeUnknown                  a write that may or may not have happened
```

A write that timed out is a `CallTimeout` **and** an `OutcomeUnknown` ([`WriteTimeout`][picopyn.errors.WriteTimeout]), a
write whose connection broke is a `ConnectionLost` and an `OutcomeUnknown` ([`WriteLost`][picopyn.errors.WriteLost]).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from picopyn.bulk_report import BulkReport


class PicopynError(Exception):
    """Base of everything the driver itself raises."""


class ConfigError(PicopynError, ValueError):
    """A configuration that cannot work, found before any socket is opened.

    Attributes:
        problems: Every problem found, one sentence each, in the order of the settings.
    """

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class UsageError(PicopynError, RuntimeError):
    """The API was used wrongly; nothing was sent to a server."""


class PoolClosed(PicopynError):  # noqa: N818 - the promised name
    """The pool is closed, or was closed while the call waited."""


class NotSupported(PicopynError):  # noqa: N818 - the promised name
    """The database behind this pool cannot do what was asked."""


class AuthenticationFailed(PicopynError):  # noqa: N818 - names the event
    """A node refused the credentials.

    It is raised after one attempt at one node: Picodata blocks a user on an instance after four failures in a row, so a
    wrong password is never tried at a second one, and in an open pool only once in a while.
    """


class AcquireTimeout(PicopynError, TimeoutError):  # noqa: N818 - the promised name
    """No connection became available within the deadline; nothing was sent."""


class TooManyWaiting(AcquireTimeout):
    """As many calls as `max_waiting` allows wait already; the call was refused at once, and nothing was sent.

    It is an `AcquireTimeout` because whoever handles that one wants to handle this one: the database cannot keep up.
    """


class CallTimeout(PicopynError, TimeoutError):  # noqa: N818 - the promised name
    """The deadline ended while the server had the statement."""


class ConnectionLost(PicopynError, ConnectionError):  # noqa: N818 - the promised name
    """The connection broke while it was in use."""


class OutcomeUnknown(PicopynError):  # noqa: N818 - the promised name
    """A statement that may or may not have taken effect; the server did not say."""


class WriteTimeout(CallTimeout, OutcomeUnknown):
    """A statement that is not known to be repeatable ran into its deadline: it may still happen."""


class WriteLost(ConnectionLost, OutcomeUnknown):
    """The connection broke after a statement was sent that is not repeated, or not again: it may have happened."""


class BulkError(PicopynError):
    """A load of many rows stopped. What stopped it first is its `__cause__`.

    Attributes:
        report: What became of the rows; `executemany(…, resume=report)` goes on from there.
    """

    def __init__(self, message: str, report: BulkReport) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[BulkError], tuple[str, BulkReport]]:
        return type(self), (str(self), self.report)


class BulkOutcomeUnknown(BulkError, OutcomeUnknown):  # noqa: N818 - as the other unknown outcomes
    """The same, and of some rows nobody knows whether they took effect."""


class FetchIncomplete(PicopynError):  # noqa: N818 - names what the caller got
    """`fetch_by_keys` got rows for some of the keys only. What failed first is its `__cause__`.

    Attributes:
        rows: The rows of the keys that could be asked for.
        failed: Positions, in what was given, of the keys without an answer → why.
    """

    def __init__(self, message: str, rows: Sequence[Any], failed: Mapping[int, Exception]) -> None:
        super().__init__(message)
        self.rows = list(rows)
        self.failed = dict(failed)

    def __reduce__(self) -> tuple[type[FetchIncomplete], tuple[str, list[Any], dict[int, Exception]]]:
        return type(self), (str(self), self.rows, self.failed)


class NoNodeAvailable(PicopynError):  # noqa: N818 - the promised name
    """No node can serve the call.

    Args:
        message: What was attempted.
        reasons: See below.
        mode: See below.

    Attributes:
        reasons: For each address (`host:port`) or node name that was considered, why it was not used.
        mode: The settings that forbid the nodes that could be reached, like `load_balance=only-rr`; empty when none do.
    """

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None, mode: str = "") -> None:
        self.reasons: dict[str, str] = dict(reasons or {})
        self.mode = mode
        self.message = message
        details = "; ".join(f"{node}: {reason}" for node, reason in self.reasons.items())
        super().__init__(f"{message} ({details})" if details else message)

    def __reduce__(self) -> tuple[type[NoNodeAvailable], tuple[str, dict[str, str], str]]:
        return type(self), (self.message, self.reasons, self.mode)


def led_to(
    error: BaseException, is_apart: Callable[[BaseException], bool] = lambda _: False
) -> Iterator[BaseException]:
    """An error, and those that led to it (`__cause__`, `__context__`), each once.

    Args:
        error: The error.
        is_apart: Of which others nothing is to be told, nor of what led to them.
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        here = rest.pop()
        if here is None or id(here) in seen:
            continue
        seen.add(id(here))
        if not is_apart(here):
            yield here
            rest += (here.__context__, here.__cause__)


class Fault(Enum):
    """What an error *means*: the input of every decision about retrying.

    A dialect maps SQLSTATE and text of a server error to one of these; the engine adds those of the connection itself.
    """

    NOT_SENT = "the statement never left this process"
    REFUSED = "the server guarantees that it did nothing"
    NOT_LEADER = "the node is not the leader, or its leader is just changing; nothing was done"
    STALE_MAP = "the node's or our map of the cluster is outdated; nothing was done"
    MISROUTED = "the node would have to send the statement on, which is forbidden; nothing was done"
    STALE_PLAN = "the prepared statement is outdated; nothing was done"
    OVERLOADED = "the node has no capacity now; nothing was done"
    CONFLICT = "the transaction lost against another one and was rolled back; only all of it can be run again"
    AUTH = "the node refused the credentials"
    LOST = "the connection broke after the statement was sent"
    STATEMENT = "the statement itself failed; it is the caller's affair"
