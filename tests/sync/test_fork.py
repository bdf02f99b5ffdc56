"""A process that forks with an open connection."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

from picopyn.errors import UsageError
from picopyn.sync import Connection, connect
from picopyn.testing import FaultProxy, PostgresServer, TlsFront
from tests.sync.conftest import Open
from tests.tls.certificates import Authority


def in_child(work: Callable[[], object]) -> int:
    """Run something in a child process; 0 when it went well."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("tls", [False, True])
def test_the_child_does_not_touch_the_parents_connection(
    tls: bool, opened: Open, proxy: Callable[..., FaultProxy], authority: Authority, server: PostgresServer,
    full_size: bool,
) -> None:  # fmt: skip
    """It is refused there, and says so; the parent's session lives, also after the child has ended."""
    front = proxy(TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side())) if tls else None
    connection = opened(front)
    pid = connection.get_server_pid()

    def child() -> None:
        for call in (connection.fetchval, connection.execute):
            with pytest.raises(UsageError, match="belongs to the parent of this process"):
                call("SELECT $1::int", 1)
        assert connection.is_closed()
        connection.terminate()
        own = connect(server.dsn)
        assert own.fetchval("SELECT pg_backend_pid()") != pid
        own.close()
        gc.collect()

    for _ in range(1000 if full_size else 10):
        assert in_child(child) == 0
        assert connection.fetchval("SELECT pg_backend_pid() + $1", 0) == pid


def test_a_child_that_forgets_the_connection(opened: Open) -> None:
    """Collecting it says nothing to the server."""
    held: list[Connection] = [opened()]
    pid = held[0].get_server_pid()

    def child() -> None:
        held.clear()
        gc.collect()

    connection = held[0]
    assert in_child(child) == 0
    assert connection.fetchval("SELECT pg_backend_pid()") == pid
