"""What a connection that blocks can do: what asyncpg's can, without `await`."""

from __future__ import annotations

import gc
import inspect
import io
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from picopyn.errors import ConfigError, NoNodeAvailable, UsageError
from picopyn.sync import Connection, connect
from picopyn.testing import PostgresServer
from tests.sync.conftest import Open, until

#: What asyncpg's connection has and ours does not have, or has otherwise, and why.
OTHERWISE = {
    "copy_from_table": "the options of COPY are passed on as they are",
    "copy_from_query": "the options of COPY are passed on as they are",
    "copy_to_table": "the options of COPY are passed on as they are",
}


def public(kind: type) -> dict[str, Any]:
    """The public methods of a class."""
    return {name: value for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_asyncpgs_names_and_parameters() -> None:
    """Whoever knows asyncpg's connection knows this one; it has `listen` besides."""
    theirs, ours = public(asyncpg.Connection), public(Connection)
    assert ours.keys() - theirs.keys() == {"listen"}
    assert theirs.keys() - ours.keys() == set()
    for name in theirs.keys() - OTHERWISE.keys():
        expected, found = (inspect.signature(methods[name]).parameters.values() for methods in (theirs, ours))
        assert [(each.name, each.kind) for each in found] == [(each.name, each.kind) for each in expected], name


def test_statements_with_and_without_parameters(connection: Connection) -> None:
    """Every form of a statement, the first time and prepared."""
    assert connection.execute("CREATE TEMP TABLE t (id int8 PRIMARY KEY, v text); SELECT 1") == "SELECT 1"
    for key in range(3):
        assert connection.execute("INSERT INTO t VALUES ($1, $2)", key, f"v{key}") == "INSERT 0 1"
    for _ in range(2):
        assert connection.fetchrow("SELECT * FROM t WHERE id = $1", 1) == (1, "v1")
        assert connection.fetchrow("SELECT * FROM t WHERE id = $1", 9) is None
        assert [row["v"] for row in connection.fetch("SELECT * FROM t WHERE id > $1 ORDER BY id", 0)] == ["v1", "v2"]
        assert connection.fetchval("SELECT id, v FROM t WHERE id = $1", 2, column=1) == "v2"
        assert connection.fetchval("SELECT id, v FROM t WHERE id = $1", 2, column="v") == "v2"
        assert connection.fetchval("SELECT id FROM t WHERE id = $1", 9) is None
        assert connection.fetchval("SELECT $1::int8[]", [1, 2]) == [1, 2]
    connection.executemany("INSERT INTO t VALUES ($1, $2)", ((key, "more") for key in range(10, 20)))
    assert connection.fetchval("SELECT count(*) FROM t") == 13
    assert connection.fetchmany("SELECT id FROM t WHERE id = $1", [(1,), (2,)]) == [(1,), (2,)]


def test_rows_of_a_class_of_ones_own(connection: Connection, opened: Open) -> None:
    """For a call, or for the connection."""

    class Dotted(asyncpg.Record):
        def __getattr__(self, name: str) -> Any:
            return self[name]

    for _ in range(2):
        assert connection.fetchrow("SELECT $1::int AS n", 5, record_class=Dotted).n == 5
        assert type(connection.fetchrow("SELECT $1::int AS n", 5)) is asyncpg.Record
    assert opened(record_class=Dotted).fetch("SELECT 1 AS n")[0].n == 1


def test_errors_are_asyncpgs_own(connection: Connection) -> None:
    """With their code and text; the connection goes on."""
    for _ in range(2):
        with pytest.raises(asyncpg.DivisionByZeroError) as caught:
            connection.fetchval("SELECT 1 / $1::int", 0)
        assert caught.value.sqlstate == "22012"
        with pytest.raises(asyncpg.DataError, match="invalid input for query argument"):
            connection.fetchval("SELECT $1::int", "five")
        with pytest.raises(asyncpg.InterfaceError, match="expects 1 argument"):
            connection.fetchval("SELECT $1::int")
        with pytest.raises(asyncpg.PostgresSyntaxError):
            connection.execute("SELEKT")
    with pytest.raises(asyncpg.UniqueViolationError):
        connection.executemany("SELECT 1 FROM (SELECT 1) x WHERE $1::int > 0", [(1,), (2,)])
        connection.execute("CREATE TEMP TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1), (1)")
    assert connection.fetchval("SELECT $1::int", 7) == 7


def test_a_statement_is_prepared_again_after_the_schema_has_changed(connection: Connection) -> None:
    """Once and unseen, as asyncpg does; not inside a transaction, where nothing else can follow."""
    connection.execute("CREATE TEMP TABLE t (id int); INSERT INTO t VALUES (1)")
    assert connection.fetchrow("SELECT * FROM t WHERE id = $1", 1) == (1,)
    connection.execute("ALTER TABLE t ADD COLUMN more text DEFAULT 'here'")
    assert connection.fetchrow("SELECT * FROM t WHERE id = $1", 1) == (1, "here")
    connection.execute("ALTER TABLE t ADD COLUMN again int")
    with pytest.raises(asyncpg.InvalidCachedStatementError), connection.transaction():
        connection.fetchrow("SELECT * FROM t WHERE id = $1", 1)


def test_without_a_statement_cache_nothing_is_kept(opened: Open) -> None:
    """For poolers that give every transaction another session."""
    connection = opened(statement_cache_size=0)
    for _ in range(2):
        assert connection.fetchval("SELECT $1::int", 3) == 3
    assert connection.fetch("SELECT name FROM pg_prepared_statements") == []


def test_prepared_statements(connection: Connection) -> None:
    """All of asyncpg's methods."""
    prepared = connection.prepare("SELECT $1::int AS n, 'x' AS v")
    assert prepared.fetch(1) == [(1, "x")]
    assert prepared.get_statusmsg() == "SELECT 1"
    assert prepared.fetchrow(2) == (2, "x")
    assert (prepared.fetchval(3), prepared.fetchval(3, column="v")) == (3, "x")
    assert prepared.fetchmany([(1,), (2,)]) == [(1, "x"), (2, "x")]
    prepared.executemany([(1,), (2,)])
    assert prepared.explain(1)[0]["Plan"]
    assert prepared.get_query() == "SELECT $1::int AS n, 'x' AS v"
    assert [each.name for each in prepared.get_parameters()] == ["int4"]
    assert [each.name for each in prepared.get_attributes()] == ["n", "v"]
    assert connection.prepare("SELECT 1", name="mine").get_name() == "mine"
    with connection.transaction():
        assert [row["n"] for row in prepared.cursor(4)] == [4]


def test_cursors(connection: Connection) -> None:
    """By iteration and by request; only inside a transaction."""
    query = "SELECT generate_series(1, $1::int) AS n"
    with connection.transaction():
        assert [row["n"] for row in connection.cursor(query, 7, prefetch=3)] == [*range(1, 8)]
        cursor = connection.cursor(query, 10)
        assert cursor.fetch(2) == [(1,), (2,)]
        assert cursor.forward(3) == 3
        assert cursor.fetchrow() == (6,)
        assert cursor.fetch(100) == [(7,), (8,), (9,), (10,)]
        assert cursor.fetchrow() is None
    with pytest.raises(asyncpg.NoActiveSQLTransactionError):
        connection.cursor(query, 1).fetchrow()
    with pytest.raises(asyncpg.NoActiveSQLTransactionError):
        list(connection.cursor(query, 1))


def test_transactions_and_savepoints(connection: Connection) -> None:
    """A block that ends well stays, one that ends with an error is undone."""
    connection.execute("CREATE TEMP TABLE t (id int)")
    with connection.transaction():
        assert connection.is_in_transaction()
        connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(ZeroDivisionError), connection.transaction():
            connection.execute("INSERT INTO t VALUES (2)")
            raise ZeroDivisionError
        with pytest.raises(asyncpg.DivisionByZeroError), connection.transaction():
            connection.execute("SELECT 1/0")
    assert not connection.is_in_transaction()
    transaction = connection.transaction(isolation="serializable", readonly=True)
    transaction.start()
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        connection.execute("INSERT INTO pg_class SELECT * FROM pg_class")
    transaction.rollback()
    assert connection.fetch("SELECT id FROM t") == [(1,)]


def test_a_transaction_that_failed_unseen_does_not_end_as_if_all_were_well(connection: Connection) -> None:
    """COMMIT would roll back, and answer as if nothing had happened."""
    connection.execute("CREATE TEMP TABLE t (id int)")
    with pytest.raises(asyncpg.InFailedSQLTransactionError), connection.transaction():
        connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            connection.execute("SELECT 1/0")
    assert connection.fetch("SELECT id FROM t") == []
    with pytest.raises(UsageError, match="inside of `with`"), connection.transaction() as transaction:
        transaction.commit()


def test_copy_out_and_in(connection: Connection, tmp_path: Path) -> None:
    """To and from paths, files, functions, buffers and iterables."""
    connection.execute("CREATE TEMP TABLE t (id int, v text); INSERT INTO t SELECT g, 'v' FROM generate_series(1, 3) g")
    whole = b"1\tv\n2\tv\n3\tv\n"
    file, path, chunks = io.BytesIO(), tmp_path / "t", list[bytes]()
    assert connection.copy_from_table("t", output=file) == "COPY 3"
    assert connection.copy_from_table("t", output=path) == "COPY 3"
    assert connection.copy_from_query("SELECT * FROM t WHERE id >= $1", 1, output=chunks.append) == "COPY 3"
    assert file.getvalue() == path.read_bytes() == b"".join(chunks) == whole
    file.seek(0)
    for source in (file, path, bytearray(whole), [b"1\tv\n2", b"\tv\n3\tv\n"], iter([whole])):
        assert connection.copy_to_table("t", source=source) == "COPY 3"
    assert connection.copy_records_to_table("t", records=((n, "r") for n in range(5)), columns=["id", "v"]) == "COPY 5"
    assert connection.fetchval("SELECT count(*) FROM t") == 23
    with pytest.raises(ZeroDivisionError):
        connection.copy_from_table("t", output=lambda chunk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        connection.copy_records_to_table("t", records=((1 // n, "r") for n in range(1, -1, -1)))
    with pytest.raises(asyncpg.BadCopyFileFormatError):
        connection.copy_to_table("t", source=[b"1\n"])
    assert connection.fetchval("SELECT count(*) FROM t") == 23


def test_nothing_is_copied_to_what_nobody_would_await(connection: Connection) -> None:
    """A coroutine function is what the asynchronous connection takes."""

    async def sink(chunk: bytes) -> None:
        """Never called."""

    with pytest.raises(TypeError, match="function that gets bytes"):
        connection.copy_from_query("SELECT 1", output=sink)
    assert connection.fetchval("SELECT 1") == 1


def test_notifications_and_notices(connection: Connection, admin: Connection) -> None:
    """They arrive with the next answer, or when somebody waits for them; callbacks get this connection."""
    heard: list[Any] = []
    connection.add_listener("news", lambda *told: heard.append(told))
    admin.execute("NOTIFY news, 'one'")
    assert connection.listen()
    assert heard == [(connection, admin.get_server_pid(), "news", "one")]
    connection.execute("NOTIFY news, 'two'")
    assert [told[3] for told in heard] == ["one", "two"]
    assert not connection.listen(0)
    connection.remove_listener("news", heard.append)

    notices: list[str] = []
    connection.add_log_listener(lambda _, message: notices.append(message.message))
    connection.execute("DO $$ BEGIN RAISE NOTICE 'so it is'; END $$")
    assert notices == ["so it is"]
    with pytest.raises(UsageError, match="ordinary function"):
        connection.add_listener("news", _coroutine_function)


async def _coroutine_function(*_: Any) -> None: ...


def test_who_waits_for_news_learns_of_the_end(connection: Connection, admin: Connection) -> None:
    """A listener on a dead link does not wait for ever."""
    ended: list[Any] = []
    connection.add_termination_listener(ended.append)
    connection.add_listener("news", lambda *_: None)
    admin.execute(f"SELECT pg_terminate_backend({connection.get_server_pid()})")
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        connection.listen()
    assert ended == [connection]


def test_codecs(connection: Connection) -> None:
    """A type converted one's own way, and back."""
    connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    assert connection.fetchval("SELECT $1::json", {"a": 1}) == {"a": 1}
    connection.reset_type_codec("json", schema="pg_catalog")
    assert connection.fetchval("SELECT $1::json", '{"a": 1}') == '{"a": 1}'


def test_query_loggers(connection: Connection) -> None:
    """Called after each query, also after one whose statement is prepared."""
    logged: list[str] = []
    connection.fetchval("SELECT $1::int", 1)
    with connection.query_logger(lambda record: logged.append(record.query)):
        connection.fetchval("SELECT $1::int", 1)
        connection.execute("SELECT 2")
    connection.fetchval("SELECT $1::int", 1)
    assert logged == ["SELECT $1::int", "SELECT 2"]


def test_the_session(connection: Connection) -> None:
    """What is known of it, and how it is cleared."""
    assert connection.get_server_pid() == connection.fetchval("SELECT pg_backend_pid()")
    assert connection.get_server_version().major >= 14
    assert connection.get_settings().server_encoding == "UTF8"
    connection.execute("SET work_mem = '1234kB'")
    connection.reset()
    assert connection.fetchval("SHOW work_mem") != "1234kB"
    connection.reload_schema_state()
    assert connection.fetchval("SELECT $1::int", 1) == 1


def test_closing(opened: Open, admin: Connection) -> None:
    """Politely or at once; then everything refuses, in asyncpg's words."""
    for way in ("closed", "terminated", "left"):
        connection = opened(application_name="left")
        if way == "closed":
            connection.close()
            connection.close()
        elif way == "terminated":
            connection.terminate()
        else:
            with connection:
                pass
        assert connection.is_closed()
        assert not connection.is_in_transaction()
        for call in (connection.fetchval, connection.execute, connection.prepare):
            with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
                call("SELECT 1")
        until(lambda: not admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'left'"))


def test_that_the_server_has_closed_it_is_seen_without_asking(connection: Connection, admin: Connection) -> None:
    """So nothing is sent that might be lost."""
    assert not connection.is_closed()
    connection.fetchval("SELECT $1::int", 1)
    admin.execute(f"SELECT pg_terminate_backend({connection.get_server_pid()})")
    until(connection.is_closed)
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        connection.fetchval("SELECT $1::int", 1)


def test_a_call_whose_session_ends_tells_why(connection: Connection, admin: Connection) -> None:
    """The server's last words are not lost."""
    pid = connection.get_server_pid()
    for query, args in (("SELECT pg_terminate_backend($1)", (pid,)),):
        with pytest.raises(asyncpg.PostgresError, match=r"terminating connection|closed in the middle"):
            connection.fetchval(query, *args)
    assert connection.is_closed()


def test_a_forgotten_connection_says_so_once(opened: Open, server: PostgresServer) -> None:
    """And its session ends."""
    connection = connect(server.dsn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del connection
        gc.collect()
    assert [each.category for each in caught] == [ResourceWarning]


def test_connecting_in_vain() -> None:
    """Every host is named with its reason; nonsense is refused before anything is dialled."""
    with pytest.raises(NoNodeAvailable, match=r"127\.0\.0\.1:1: .*refused") as caught:
        connect("postgresql://x@127.0.0.1:1,[::1]:1/x")
    assert list(caught.value.reasons) == ["127.0.0.1:1", "::1:1"]
    with pytest.raises(NoNodeAvailable, match=r"no\.such\.host\.invalid"):
        connect("postgresql://x@no.such.host.invalid/x")
    with pytest.raises(ConfigError):
        connect("postgresql://x@h/x", connect_timeout=-1)


def test_of_several_hosts_the_first_that_can_be_reached(server: PostgresServer) -> None:
    """By a Unix socket as well, where there is one."""
    with connect(f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{server.port}/postgres") as connection:
        assert connection.fetchval("SELECT inet_server_port()") == server.port


async def test_inside_a_running_event_loop_it_works(server: PostgresServer) -> None:
    """It blocks the loop, as any call that blocks; the loop and its task are as before afterwards."""
    import asyncio

    task = asyncio.current_task()
    with connect(server.dsn) as connection:
        assert connection.fetchval("SELECT $1::int", 1) == 1
        with connection.transaction():
            connection.executemany("SELECT $1::int", [(1,), (2,)])
    assert asyncio.current_task() is task
    await asyncio.sleep(0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers that send signals")
def test_signals_do_not_put_off_a_deadline(connection: Connection) -> None:
    """Not even those that come more often than the wait is long."""
    connection.fetchval("SELECT pg_sleep($1)", 0)
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(TimeoutError):
            connection.fetchval("SELECT pg_sleep($1)", 60, timeout=0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard
    assert connection.fetchval("SELECT $1::int", 1) == 1


def test_deadlines_of_other_threads(connection: Connection, measured: Callable[[str, object], None]) -> None:
    """There the system itself ends the wait; long ones and short ones in turn, and what comes in time is no matter."""
    connection.fetchval("SELECT pg_sleep($1)", 0)
    ended: list[str] = []

    def work() -> None:
        for turn, timeout in enumerate((0.2, 30.0, 0.05, 0.3)):
            began = time.monotonic()
            try:
                connection.fetchval("SELECT pg_sleep($1)", 60 if timeout < 1 else 0, timeout=timeout)
                ended.append(f"{turn} answered")
            except TimeoutError:
                ended.append(f"{turn} ended")
                measured(f"timeout of {timeout} s", time.monotonic() - began)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == ["0 ended", "1 answered", "2 ended", "3 ended"]


def test_a_parameter_whose_type_was_changed(connection: Connection, admin: Connection) -> None:
    """The kept statement refuses the new values, so it is prepared anew; what is refused then is wrong.

    asyncpg goes on refusing them for as long as it keeps the statement.
    """
    insert = "INSERT INTO changing VALUES ($1)"
    kept = "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1"
    admin.execute("CREATE TABLE changing (v int)")
    try:
        connection.execute(insert, 1)
        admin.execute("ALTER TABLE changing ALTER v TYPE text")
        assert connection.execute(insert, "x") == "INSERT 0 1"
        with connection.transaction():
            connection.execute(insert, "y")
        for _ in range(3):
            with pytest.raises(asyncpg.DataError, match="expected str, got int"):
                connection.execute(insert, 2)
        assert connection.execute(insert, "z") == "INSERT 0 1"
        assert connection.fetchval(kept, insert) == 1
        assert [row["v"] for row in admin.fetch("SELECT v FROM changing")] == ["1", "x", "y", "z"]
    finally:
        admin.execute("DROP TABLE changing")
