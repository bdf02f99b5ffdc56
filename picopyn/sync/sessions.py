"""The sessions of connections that block: opened, set up by the user's hook, and cleared, in a worker thread.

What is said to a server, and what a hook may leave behind, is decided where it is for asynchronous ones.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from picopyn.asynchronous.sessions import Sessions, as_exception, check_set_up, too_slow
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Purpose
from picopyn.engine.node_pool import HookFailed
from picopyn.errors import ConfigError, UsageError
from picopyn.settings import PoolSettings
from picopyn.sync.caller_loop import CallerLoop
from picopyn.sync.connection import Connection
from picopyn.sync.link import Link
from picopyn.sync.wire import Wire
from picopyn.topology import Node

_LOG = logging.getLogger(__name__)

#: Calls something after so many seconds, in whatever thread, unless what it gives is called before.
Alarm = Callable[[float, Callable[[], None]], Callable[[], None]]


def refuse_coroutines(settings: PoolSettings) -> None:
    """Refuse hooks that have to be awaited: here is nobody to do so.

    Raises:
        ConfigError: There are such; it names them.
    """
    hooks = {"after_connect": settings.after_connect, "reset": settings.reset}
    wrong = [name for name, hook in hooks.items() if _is_awaited(hook)]
    if wrong:
        raise ConfigError([f"{name} must be a plain function here, not a coroutine function" for name in wrong])


class BlockingSessions:
    """Opens connections for callers and looks after their sessions. Owned by a pool.

    Args:
        settings: The hooks.
        dialer: Opens connections of the kind `Wire`.
        sessions: Knows what clears a session.
        alarm: Ends hooks that take too long.
    """

    def __init__(self, settings: PoolSettings, dialer: Dialer, sessions: Sessions, alarm: Alarm) -> None:
        self._dialer = dialer
        self._sessions = sessions
        self._alarm = alarm
        self._hook: Callable[[Connection], None] | None = settings.after_connect  # type: ignore[assignment]
        self._hook_timeout = settings.after_connect_timeout
        self._reset: Any = settings.reset

    def open(self, node: Node, purpose: Purpose) -> Link:
        """Open a connection to a node and let the hook set it up.

        Raises:
            HookFailed: The hook failed; the connection is closed.
        """
        wire: Any = CallerLoop().run(self._dialer.dial((node.host, node.port), purpose))
        try:
            self._set_up(wire)
        except BaseException:
            wire.terminate()
            raise
        return Link(wire)

    def restore(self, link: Link, deadline: float) -> bool:
        """Bring a session back to the state in which callers find it first; False when it cannot be."""
        wire = link.wire
        still = self._alarm(max(deadline - time.monotonic(), 0.001), wire.abort)
        try:
            wire.forget_callbacks()
            if callable(self._reset):
                _plainly(self._reset, wire)
            else:
                wire.run(self._sessions.clear(wire))
                self._set_up(wire)
        except BaseException as error:  # this thread is ours: there is nobody to be ended or interrupted
            _LOG.info("a connection could not be reset and is closed: %s", type(error).__name__)
            return False
        finally:
            still()
            if wire.was_closed():  # perhaps by another thread, just as a request ended: that has told nobody
                wire.terminate()
        return wire.is_idle()

    def _set_up(self, wire: Wire) -> None:
        if self._hook is None:
            return
        expired = threading.Event()
        still = self._alarm(self._hook_timeout, partial(_expire, expired, wire))
        try:
            _plainly(self._hook, wire)
        except BaseException as error:
            raise HookFailed from (too_slow(self._hook_timeout) if expired.is_set() else as_exception(error))
        finally:
            still()
        if expired.is_set():  # it was late without asking the server
            raise HookFailed from too_slow(self._hook_timeout)
        check_set_up(wire)


def _is_awaited(hook: Any) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None))  # noqa: B004


def _plainly(hook: Callable[[Connection], object], wire: Wire) -> None:
    """Call a hook; what it made and nobody awaits is an error."""
    made = hook(Connection(wire))
    if inspect.iscoroutine(made):
        made.close()
        raise UsageError("the hook gave a coroutine; a hook of a pool of threads is a plain function")


def _expire(expired: threading.Event, wire: Wire) -> None:
    expired.set()
    wire.abort()
