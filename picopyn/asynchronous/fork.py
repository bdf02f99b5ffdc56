"""What a child process does with the pools and connections it has inherited: it lets go of them, and says so.

A forked child shares the parent's sockets. A single byte sent or read there would mix the answers of two processes, and
a polite goodbye would end the parent's session. So right after a fork, before any code of the child runs, every
connection is cut off from its socket and every pool refuses. Nothing of this costs a call anything.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something that has sockets."""

    def disown(self) -> None:
        """This process is a child: let go, touching nothing of the parent's."""
        ...


_watched: WeakSet[Inherited] = WeakSet()


def watch(owner: Inherited) -> None:
    """Have `disown` called in every child that is forked while this object is alive."""
    _watched.add(owner)


def _in_child() -> None:
    for owner in list(_watched):
        owner.disown()
    _watched.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
