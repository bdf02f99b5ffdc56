"""A connection on loan: one borrower, one call at a time, and what becomes of it afterwards.

It decides what an error on a held connection means, whether the connection may be used again, and whether it is brought
back to the state of a new one first. What that takes is the transport's affair.

Rules of this file:

1. A call at a time. A second one is refused before anything is sent; the first is never damaged.
2. A connection whose last call was cancelled, timed out or broke is dropped at the latest when it comes back.
3. Given back in a transaction, it is dropped: the server rolls back, and no lock outlives the borrower.
4. Given back during a call, it goes back when that call ends.
5. What the pool began as a transaction only the pool ends. A statement of the borrower's that would is refused; one
   that did all the same is told at once, and nothing is sent after it.
6. Where sessions have a state (`Capability.TRANSACTIONS`), that of a used connection is cleared in the background
   before somebody else gets it. Elsewhere nothing is sent; a borrower who left something behind costs the connection.
"""

from __future__ import annotations

from picopyn.dialects.base import Capability, Dialect
from picopyn.engine import failures
from picopyn.engine.cluster import Cluster
from picopyn.engine.interruptions import is_interruption
from picopyn.engine.journal import Journal
from picopyn.engine.node_pool import NodePool
from picopyn.engine.refused_arguments import hide_value
from picopyn.engine.runtime import Leftovers, Link
from picopyn.errors import Fault, UsageError
from picopyn.routing import transactions
from picopyn.settings import check_timeout

#: How long clearing a session may take (seconds).
RESTORE_TIMEOUT = 5.0


class Lender:
    """What all loans of a pool share. Owned by the executor.

    Args:
        cluster: Where the connections come from.
        dialect: The kind of server.
        journal: Where outcomes are counted and told.

    Attributes:
        choosing: Held while somebody chooses a node, until he is counted there, so that the next one sees it.
        restores: Whether sessions are cleared between borrowers.
    """

    __slots__ = ("_selects_repeatable", "choosing", "cluster", "dialect", "journal", "restores")

    def __init__(self, cluster: Cluster, dialect: Dialect, journal: Journal) -> None:
        self.choosing = cluster.runtime.lock()
        self.cluster = cluster
        self.dialect = dialect
        self.journal = journal
        reset = cluster.settings.reset
        self.restores = callable(reset) or (reset and Capability.TRANSACTIONS in dialect.capabilities)
        self._selects_repeatable = Capability.SELECTS_HAVE_NO_EFFECT in dialect.capabilities

    def may_change(self, query: str) -> bool:
        """Whether a text may change something at the server."""
        return not (self._selects_repeatable and self.dialect.is_read(query))

    def leaves_open(self, error: Exception, *, commit: bool) -> bool:
        """Whether a server's error leaves open if what it answers took effect."""
        return self.dialect.leaves_open(getattr(error, "sqlstate", None), str(error), commit=commit)


class Block:
    """The transaction that is open on a loan, as far as it is known. Owned by the loan.

    Attributes:
        ours: The pool began it, and nobody else may end it.
        erred: The server refused a statement in it.
    """

    __slots__ = ("erred", "ours")

    def __init__(self) -> None:
        self.ours = False
        self.erred = False

    def check(self, name: str, query: str | None, *, in_transaction: bool) -> bool:
        """A call of the borrower's is about to be sent, or a savepoint of his.

        Returns:
            Whether the call may end the transaction all the same.

        Raises:
            UsageError: It would end a transaction of the pool's, or a call before it did.
        """
        self.erred = self.erred and in_transaction
        if not self.ours:
            return False
        if not in_transaction:
            raise failures.transaction_ended(f"{name}() was not sent: a call before it has ended")
        if not isinstance(query, str):
            return False
        if transactions.ends(query):
            raise failures.transaction_ended(f"{name}() was not sent: it would end")
        return transactions.may_end(query)


class Loan:
    """One connection in the hands of one borrower.

    Args:
        lender: What all loans share.
        pool: Where it goes back to.
        link: The connection.
        owner: On whose behalf it was taken.

    Attributes:
        back: It went back to its pool, or is gone.
        link: The connection.
        pool: Its node pool.
        released: The borrower gave it back.
        sound: No call on it ended in a way that leaves its state open.
        block: The transaction that is open.
        undecided: COMMIT was sent, and no answer tells what became of it.
    """

    __slots__ = (
        "_lender",
        "_owner",
        "_running",
        "_uncertain",
        "_used",
        "back",
        "block",
        "link",
        "pool",
        "released",
        "sound",
        "undecided",
    )

    def __init__(self, lender: Lender, pool: NodePool, link: Link, owner: object = None) -> None:
        self.back = False
        self.link = link
        self.pool = pool
        self.released = False
        self.sound = True
        self.block = Block()
        self.undecided = False
        self._lender = lender
        self._owner = owner
        self._running = ""
        self._uncertain = False
        self._used = False
        link.lend()

    def can(self, capability: Capability) -> bool:
        """Whether the server behind it can do something."""
        return capability in self._lender.dialect.capabilities

    @property
    def running(self) -> str:
        """Name of the call that runs now, or nothing."""
        return self._running

    def begin(self, name: str, query: str | None = None, *, decides: bool = False) -> None:
        """A call begins.

        Args:
            name: Name of the method.
            query: The statement that it executes, where it executes one; `""`: not known.
            decides: It ends a transaction, so what it says is the outcome of everything in it.

        Raises:
            UsageError: The connection was given back, another call runs on it, or it would end the pool's transaction.
        """
        self.check()
        if self._running:
            raise UsageError(
                f"{self._running}() runs on this connection; {name}() has to wait for it, or needs one of its own"
            )
        in_transaction = self.link.is_in_transaction()
        decides = self.block.check(name, query, in_transaction=in_transaction or self.link.is_closed()) or decides
        self._running = name
        self._used = True
        changes = query is not None and not in_transaction and self._lender.may_change(query)
        self._uncertain = decides or changes
        self.undecided = self.undecided or decides

    def use(self, name: str, query: str | None = None, *, decides: bool = False, timeout: float | None = None) -> Use:
        """A call, for a `with` statement around it; see `begin`.

        Args:
            name: Name of the method.
            query: See `begin`.
            decides: See `begin`.
            timeout: The caller's own limit (seconds), or None.

        Raises:
            ValueError: The limit is not above 0, or no number.
            UsageError: See `begin`.
        """
        if timeout is not None:
            self.check()
            check_timeout(timeout)
        self.begin(name, query, decides=decides)
        return Use(self, timeout)

    def check(self) -> None:
        """Refuse what comes after the release.

        Raises:
            UsageError: The connection was given back.
        """
        if self.released:
            raise UsageError("this connection was given back to its pool; acquire another one")

    def check_alive(self, name: str) -> None:
        """Refuse what a closed connection cannot do, for methods that send nothing.

        Raises:
            ConnectionLost: It is closed.
        """
        if self.link.is_closed():
            raise failures.held_lost(name, self.pool.node, ConnectionError("it is closed"), uncertain=False)

    def end(self, error: BaseException | None, limit: float | None = None) -> Exception | None:
        """The call ended.

        Args:
            error: What it raised, or None.
            limit: The caller's own limit (seconds), or None.

        Returns:
            The error to raise instead of the one given, or None.
        """
        name, self._running = self._running, ""
        if error is None:
            self.undecided = False
            told = self._ended(name)
        else:
            told = self._judge(name, error, limit)
        if self.released:
            self._go_back()
        return told

    def began(self) -> None:
        """A transaction of the pool's was begun: only `ending` may come before its end."""
        self.block.ours = True

    def ending(self) -> bool:
        """The pool is about to end its transaction.

        Returns:
            Whether it is still open, as far as is known.
        """
        ours, self.block.ours = self.block.ours, False
        return not (ours and self._is_over())

    def _ended(self, name: str) -> Exception | None:
        return failures.transaction_ended(f"{name}() has ended") if self.block.ours and self._is_over() else None

    def _is_over(self) -> bool:
        return not (self.link.is_in_transaction() or self.link.is_closed())

    def release(self) -> None:
        """The borrower gives it back; a call that runs is not disturbed.

        Raises:
            UsageError: It was given back before.
        """
        self.check()
        self.released = True
        if not self._running:
            self._go_back()

    def forget(self) -> None:
        """Nobody has it any more: give it back, in whatever state its borrower left it."""
        if self.back:
            return
        if self.released or self._running:
            self._lender.cluster.forfeit(self._owner)
        else:
            self.release()

    def interrupt(self) -> None:
        """Its time is over: drop the connection, whatever runs on it, unless it went back. From anywhere."""
        self.pool.interrupt(self.link, self._owner)

    def leave(self) -> None:
        """The borrower is about to close it: that says nothing about its node."""
        self.sound = False
        self.pool.expect_close(self.link, "terminated")

    def _judge(self, name: str, error: BaseException, limit: float | None) -> Exception | None:
        cluster, node = self._lender.cluster, self.pool.node
        if not isinstance(error, Exception) or is_interruption(error):
            self.sound = False
            return None
        hide_value(error)
        if failures.is_callers(error):
            self.sound = self.sound and self.link.is_settled() and not self.link.is_closed()
            if self.link.is_closed():
                self.pool.was_closed(self.link, "state_unknown")
            return None
        if isinstance(error, TimeoutError) and error.errno is None:
            self.sound = False
            cluster.suspect(node, "a call timed out")
            self._note_outcome("timeout", uncertain=self._uncertain)
            limit = limit or cluster.settings.command_timeout
            return failures.held_timed_out(name, node, limit, uncertain=self._uncertain)
        error = self.link.explained(error)
        fault = cluster.runtime.fault(error)
        if fault is not None and self.link.is_closed():
            return self._lost(name, error, fault)
        self.sound = self.sound and self.link.is_settled()
        if getattr(error, "sqlstate", None) is None:
            return None
        fault = cluster.fault(error)
        if fault is Fault.LOST and self.undecided:  # the session was ended from outside: before COMMIT, or after it
            return self._lost(name, error, fault)
        if self._uncertain and self._lender.leaves_open(error, commit=self.undecided):
            self._note_outcome("internal error", uncertain=True)
            return failures.left_open(name, node)
        if fault is Fault.NOT_LEADER:
            cluster.ask_refresh()
        self.undecided = False
        self.block.erred = self.link.is_in_transaction()
        failures.mark_origin(error, self, fault)
        error.add_note(f"picopyn: {name}() on a connection to {node.name} ({node.address})")
        return None

    def _lost(self, name: str, error: Exception, fault: Fault) -> Exception:
        node = self.pool.node
        self.sound = False
        self.undecided = self.undecided and fault is not Fault.NOT_SENT
        uncertain = self._uncertain and fault is not Fault.NOT_SENT
        self._note_outcome("connection lost", uncertain=uncertain)
        why = self._lender.cluster.why_down(node)
        told = failures.held_lost(name, node, error, uncertain=uncertain, why=why)
        failures.mark_origin(told, self, fault)
        return told

    def _note_outcome(self, reason: str, *, uncertain: bool) -> None:
        if uncertain:
            self._lender.journal.outcome_lost(self.pool.node, reason)

    def _go_back(self) -> None:
        lender, link = self._lender, self.link
        left = link.take_back()
        if not self.sound or left is Leftovers.CODECS:
            self.pool.drop(link, "state_unknown")
        elif link.is_closed() or link.is_in_transaction() or self.pool.retired:
            self.pool.give(link)
        elif self._used and lender.restores and not lender.cluster.jobs.closed:
            lender.cluster.spawn(self._restore(), "picopyn reset")
        elif left is Leftovers.SESSION:
            self.pool.drop(link, "state_unknown")
        else:
            self.pool.give(link)
        self.back = True

    async def _restore(self) -> None:
        runtime = self._lender.cluster.runtime
        try:
            restored = await runtime.restore_link(self.link, runtime.now() + RESTORE_TIMEOUT)
        except BaseException:
            self.pool.drop(self.link, "state_unknown")
            raise
        if restored:
            self.pool.give(self.link)
        else:
            self.pool.drop(self.link, "state_unknown")


class Use:
    """One call on a held connection, for a `with` statement.

    Args:
        loan: The loan of the connection.
        limit: The caller's own limit (seconds), or None.
    """

    __slots__ = ("_limit", "_loan")

    def __init__(self, loan: Loan, limit: float | None = None) -> None:
        self._loan = loan
        self._limit = limit

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        told = self._loan.end(None if isinstance(error, StopAsyncIteration) else error, self._limit)
        if told is not None:
            raise told from error


def no_transactions(name: str) -> str:
    """Why something that needs transactions is refused."""
    return (
        f"{name}() needs transactions, and this server has none: it answers BEGIN and COMMIT, but every statement "
        "takes effect by itself, and nothing can be rolled back"
    )
