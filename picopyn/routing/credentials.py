"""When credentials may be sent again that a server has refused.

A password that was changed at the server is wrong at every node, and a server that counts refusals blocks the account
after a few (Picodata: four in a row on one instance). So after a refusal one attempt is made per `PAUSE`, by the whole
pool, at whichever node is needed first; the first one that is accepted ends that. A node that refuses what others
accept is held back alone: it must not cost the others their connections.

It sends nothing and has no clock.
"""

from __future__ import annotations

#: Time from one attempt with refused credentials to the next (seconds); longer than the longest pause of a probe.
PAUSE = 30.0

#: Host and port.
Address = tuple[str, int]


class Credentials:
    """What the servers think of the credentials of one pool. Owned by who opens its connections.

    Attributes:
        refusal: What a server said when it refused them last; empty when nothing speaks against them.
    """

    __slots__ = ("_common", "_own", "_refusers", "refusal")

    def __init__(self) -> None:
        self.refusal = ""
        self._common: float | None = None
        self._refusers: set[Address] = set()
        self._own: dict[Address, float] = {}

    def wait(self, address: Address, now: float) -> float | None:
        """Seconds until they may be sent to a node again; None when nothing speaks against sending them there."""
        held = [moment for moment in (self._common, self._own.get(address)) if moment is not None]
        return max(0.0, max(held) - now) if held else None

    def sent(self, address: Address, now: float) -> None:
        """They are being sent to a node; where they were refused, that begins a new pause for everybody else."""
        if self._common is not None:
            self._common = now + PAUSE
        if address in self._own:
            self._own[address] = now + PAUSE

    def refused(self, address: Address, now: float, words: str) -> bool:
        """A node refused them.

        Returns:
            True if that is news.
        """
        news = not self.refusal
        self.refusal = words
        if address in self._own:
            self._own[address] = now + PAUSE
        else:
            self._common = now + PAUSE
            self._refusers.add(address)
        return news

    def accepted(self, address: Address) -> bool:
        """A node accepted them: they are right, and nodes that refused them are odd.

        Returns:
            True if that is news, and nothing speaks against them any more.
        """
        if not self.refusal:
            return False
        if self._common is not None:
            self._own.update(dict.fromkeys(self._refusers, self._common))
            self._common = None
            self._refusers.clear()
        self._own.pop(address, None)
        if self._own:
            return False
        self.refusal = ""
        return True

    def forgive(self) -> None:
        """They are said to be right again: nobody has to wait."""
        self.refusal, self._common = "", None
        self._refusers.clear()
        self._own.clear()
