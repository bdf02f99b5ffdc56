"""What `picopyn.sync` leans on in asyncpg, and which releases of it are known to have that."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from asyncpg import connect_utils, cursor, prepared_stmt
from asyncpg.protocol import NO_TIMEOUT, Protocol

from picopyn.errors import NotSupported
from picopyn.sync import Connection, supported
from picopyn.sync.caller_loop import Permission
from picopyn.sync.wire import Wire

PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def test_the_project_declares_the_releases_that_are_accepted() -> None:
    """One that was not tried is refused, with the words that install the right one."""
    wanted = f"asyncpg>={supported.FIRST[0]}.{supported.FIRST[1]},<{supported.BEFORE[0]}.{supported.BEFORE[1]}"
    assert wanted in tomllib.loads(PROJECT.read_text("utf-8"))["project"]["dependencies"]
    for accepted in ("0.32.0", "0.32.7", asyncpg.__version__):
        supported.check(accepted)
    for refused in ("0.31.0", "0.33.0", "0.33.0b1", "1.0.0"):
        with pytest.raises(NotSupported, match=refused.replace(".", r"\.")):
            supported.check(refused)


def parameters(function: Any) -> list[str]:
    """The names of a function's parameters, without `self`."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_names_and_parameters() -> None:
    """Everything that is called or overridden by name."""
    assert parameters(asyncpg.Connection._execute) == [
        "query", "args", "limit", "timeout", "return_status", "ignore_custom_codec", "record_class",
    ]  # fmt: skip
    assert parameters(asyncpg.Connection._cancel_current_command) == ["waiter", "cancel_waiter"]
    assert parameters(asyncpg.Connection._process_log_message) == ["fields", "last_query"]
    assert parameters(asyncpg.Connection._process_notification) == ["pid", "channel", "payload"]
    assert parameters(asyncpg.Connection._cleanup) == parameters(asyncpg.Connection._check_open) == []
    assert parameters(asyncpg.Connection._maybe_gc_stmt) == ["stmt"]
    assert parameters(connect_utils._cancel) == ["loop", "addr", "params", "backend_pid", "backend_secret"]
    slots = {name for kind in asyncpg.Connection.__mro__ for name in getattr(kind, "__slots__", ())}
    assert {
        "_aborted", "_addr", "_config", "_loop", "_params", "_protocol", "_query_loggers", "_stmt_cache", "_transport",
    } <= slots  # fmt: skip
    for name in ("_get_timeout", "_is_cancelling", "bind_execute", "get_record_class", "is_connected", "query"):
        assert callable(getattr(Protocol, name))
    assert "_buffer" in cursor.CursorIterator.__slots__
    assert {"_last_status", "_state"} <= set(prepared_stmt.PreparedStatement.__slots__)
    ours = {name for name in vars(Wire) if name.startswith("_") and not name.startswith("__")}
    theirs = {name for kind in Wire.__mro__[1:] for name in vars(kind)}
    overridden = {"_cancel_current_command", "_check_open", "_cleanup", "_process_log_message", "_process_notification"}
    assert ours & theirs == overridden, "a name of ours hides one of asyncpg's"


def test_a_prepared_statement_is_executed_with_one_message_and_one_wait(connection: Connection) -> None:
    """So it can be driven without a task: it waits for its own future only, and writes before it waits."""
    connection.fetchval("SELECT $1::int", 1)
    wire = connection._wire
    protocol: Any = wire._protocol
    statement = wire._stmt_cache.get(("SELECT $1::int", asyncpg.Record, False))
    coroutine = protocol.bind_execute(statement, (7,), "", 1, True, NO_TIMEOUT)
    future = coroutine.send(None)
    assert future.get_loop() is wire.caller
    assert len(wire.stream._unsent) == 1
    wire.stream.exchange(future, None)
    with pytest.raises(StopIteration) as finished:
        coroutine.send(None)
    assert finished.value.value == ([(7,)], None, False)
    wire.caller.run_ready()


def test_the_end_of_a_cancelled_wait_is_told_to_the_connection(connection: Connection) -> None:
    """A future that is cancelled makes asyncpg give the request up."""
    connection.fetchval("SELECT pg_sleep($1)", 0)
    with pytest.raises(TimeoutError):
        connection.fetchval("SELECT pg_sleep($1)", 60, timeout=0.01)
    protocol: Any = connection._wire._protocol
    assert protocol._is_cancelling()
    assert connection.fetchval("SELECT pg_sleep($1)::text", 0) == ""
    assert not protocol._is_cancelling()


def test_who_writes_asks_for_permission_first(connection: Connection) -> None:
    """Many rows are written in pieces, each of which waits until the one before was sent."""
    sizes: list[int] = []
    stream = connection._wire.stream
    gather = stream._gathered

    def measured(data: Any) -> Any:
        piece = gather(data)
        sizes.append(len(piece))
        return piece

    stream._gathered = measured  # type: ignore[method-assign]
    connection.executemany("SELECT $1::text", (("x" * 1000,) for _ in range(10_000)))
    connection.execute("CREATE TEMP TABLE t (v text)")
    connection.copy_to_table("t", source=(b"x" * 100_000 for _ in range(20)))
    connection.copy_records_to_table("t", records=(("x" * 1000,) for _ in range(10_000)))
    assert max(sizes) < 2_000_000
    protocol: Any = connection._wire._protocol
    assert isinstance(protocol.writing_allowed.wait(), Permission)
