"""The gate before a password: a server's question for it is handed on to asyncpg when it is this connection's turn.

asyncpg sends the password as soon as it is asked for it, so the question is kept back. Nothing else is: a node that
does not ask, because it hangs or lets everybody in, neither waits here nor makes others wait. Whose turn it is, is
decided by [`password_turns`][picopyn.routing.password_turns].

One gate serves all connections of a pool, those of event loops and those that are opened in blocking threads.

*Source*: PostgreSQL 18 documentation, section 54.7 (`Authentication…` messages: type `R`, length, kind of question).
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from picopyn.routing.credentials import Address, Credentials
from picopyn.routing.password_turns import Turns

_HEAD: Final = struct.Struct("!cI")
_QUESTION: Final = struct.Struct("!cII")
_AUTHENTICATION: Final = b"R"
#: Kind of an `Authentication…` message that asks for nothing.
_WELCOME: Final = 0


class PasswordGate:
    """The gate of one pool; any thread may use it.

    Attributes:
        credentials: What the servers think of them.
    """

    def __init__(self) -> None:
        self.credentials = Credentials()
        self._turns: Turns[Entry] = Turns()
        self._lock = threading.Lock()

    def entry(self, address: Address, patience: float, *, again: bool) -> Entry:
        """The way of a connection that is about to be opened; only where an event loop runs.

        Args:
            address: The node.
            patience: How long it may wait (seconds).
            again: It tries credentials that were refused once more, which is due.
        """
        return Entry(self, address, patience, again)

    def try_again(self, address: Address, now: float) -> bool:
        """Whether credentials that were refused are sent to a node once more now; then nobody else does so soon."""
        with self._lock:
            if self.credentials.wait(address, now):
                return False
            self.credentials.sent(address, now)
            return True

    def arrive(self, entry: Entry) -> bool | None:
        """Whether the password may be sent: True, False (it must not), None (not yet)."""
        with self._lock:
            if not entry.again and self.credentials.wait(entry.address, entry.now()):
                return False
            return self._turns.arrive(entry, entry.address, entry.now()) or None

    def waits(self, entry: Entry) -> float:
        """How much longer somebody waits until he asks again (seconds); 0: he may go on."""
        with self._lock:
            return self._turns.waits(entry, entry.now())

    def accepted(self, entry: Entry) -> bool:
        """The node lets the connection in.

        Returns:
            True if nothing speaks against the credentials any more, and that is news.
        """
        with self._lock:
            going = self._turns.accepted(entry, entry.now())
            news = self.credentials.accepted(entry.address)
        for other in going:
            other.decide(send=True)
        return news

    def refused(self, entry: Entry, words: str) -> bool:
        """The node refused the credentials.

        Returns:
            True if that is news.
        """
        with self._lock:
            news = self.credentials.refused(entry.address, entry.now(), words)
            away = self._turns.refused(entry)
        for other in away:
            other.decide(send=False)
        return news

    def left(self, entry: Entry) -> None:
        """The connection is made, or given up."""
        with self._lock:
            going = self._turns.left(entry, entry.now())
        for other in going:
            other.decide(send=True)


class Entry:
    """The way of one connection through the gate.

    Args:
        gate: The gate.
        address: The node.
        patience: How long it may wait (seconds).
        again: See `PasswordGate.entry`.

    Attributes:
        address: As given.
        again: As given.
        now: The clock of its event loop.
        sent: The password is on its way, or was.
        turned_away: The password must not be sent; the connection is given up.
    """

    def __init__(self, gate: PasswordGate, address: Address, patience: float, again: bool) -> None:
        self.address = address
        self.again = again
        self.sent = False
        self.turned_away = False
        self._gate = gate
        self._decided = threading.Event()
        self._loop: Any = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time
        self._deadline = self.now() + patience
        self._timer: Any = None
        self._act: Callable[[], None] | None = None

    def ask(self, act: Callable[[], None]) -> None:
        """The server asks for the password.

        Args:
            act: Called once it is decided whether it is sent, see `turned_away`; where nobody else can be waited for
                meanwhile, before this returns. Not at all where that takes too long.
        """
        blocks = not hasattr(self._loop, "call_soon_threadsafe")
        if not blocks:
            self._act = act  # another thread may decide as soon as this one waits
        answer = self._gate.arrive(self)
        if answer is not None:
            self._act = None
            self.turned_away = not answer
            act()
        elif not blocks:
            self._timer = self._loop.call_later(0, self._grow_impatient)
        elif self._is_decided_in_time():
            act()

    def decide(self, *, send: bool) -> None:
        """It is decided; from any thread."""
        self.turned_away = not send
        self._decided.set()
        if self._act is not None:
            with suppress(RuntimeError):  # that loop is closed
                self._loop.call_soon_threadsafe(self._go_on)

    def leave(self) -> None:
        """The connection is made, or given up."""
        if self._timer is not None:
            self._timer.cancel()
        self._act = None
        self._gate.left(self)

    def _is_decided_in_time(self) -> bool:
        while (left := self._deadline - self.now()) > 0:
            if self._decided.is_set() or not (waits := self._gate.waits(self)):
                return True
            self._decided.wait(min(waits, left))
        return False

    def _grow_impatient(self) -> None:
        if self._decided.is_set():
            return
        waits = self._gate.waits(self)
        if waits:
            self._timer = self._loop.call_later(waits, self._grow_impatient)
        else:
            self._go_on()

    def _go_on(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            self._timer.cancel()
            act()


class Doorkeeper(asyncio.Protocol):
    """Stands before asyncpg's protocol until the server has asked for a password, or let the connection in.

    Args:
        behind: The protocol that gets everything.
        entry: Asks whether it is time.
    """

    def __init__(self, behind: Any, entry: Entry) -> None:
        self.behind = behind
        self._entry = entry
        self._transport: Any = None
        self._kept = b""
        self._asked = False
        self.eof_received = behind.eof_received  # type: ignore[method-assign]
        self.connection_lost = behind.connection_lost  # type: ignore[method-assign]
        self.pause_writing = behind.pause_writing  # type: ignore[method-assign]
        self.resume_writing = behind.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: Any) -> None:
        """The connection is there."""
        self._transport = transport
        self.behind.connection_made(transport)

    def stand_before(self, transport: Any) -> None:
        """Take the place of the protocol on a connection that is there already."""
        self._transport = transport
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Hand on what is no question; keep back what is one."""
        self._kept += data
        if self._asked:
            return
        asks = asks_for_password(self._kept)
        if asks is None:
            return
        self._asked = True
        if asks:
            self._entry.ask(self._decided)
        else:
            self._step_aside()

    def _decided(self) -> None:
        if self._entry.turned_away:
            self._give_up()
        else:
            self._entry.sent = True
            self._step_aside()

    def _give_up(self) -> None:
        """Close the connection, and let whoever waits for it know at once: not every transport does."""
        lost, self.connection_lost = self.connection_lost, _told_already  # type: ignore[method-assign, assignment]
        self._transport.abort()
        lost(ConnectionAbortedError("the password was refused elsewhere"))

    def _step_aside(self) -> None:
        kept, self._kept = self._kept, b""
        self._transport.set_protocol(self.behind)
        self.behind.data_received(kept)


def _told_already(_: Exception | None) -> None:
    """It is known that the connection is gone."""


def asks_for_password(data: bytes) -> bool | None:
    """Whether a server's first messages ask for a password; None when that is still open.

    Args:
        data: What it has sent so far. Anything that is no message of the protocol is no question.
    """
    place = 0
    while place + _HEAD.size <= len(data):
        kind, length = _HEAD.unpack_from(data, place)
        if kind == _AUTHENTICATION:
            if place + _QUESTION.size > len(data):
                return None
            return bool(_QUESTION.unpack_from(data, place)[2] != _WELCOME)
        if kind not in (b"N", b"v") or length < 4:  # a notice, a word about the version
            return False
        place += 1 + length
    return None
