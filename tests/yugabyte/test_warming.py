"""`warm_up`: a hook that has new connections load what some statements need, before a caller waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from picopyn import asynchronous, sync
from picopyn.errors import UsageError
from picopyn.observe import ConnectionOpened
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES
from tests.yugabyte.conftest import LONG, Cluster, of_type, until

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

#: A function that is called while it is planned, and counts that.
COUNTED = """
CREATE SEQUENCE picopyn_plans;
CREATE FUNCTION picopyn_planned(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM nextval('picopyn_plans'); RETURN i; END $$;
CREATE TABLE picopyn_warm (id int PRIMARY KEY, v text NOT NULL);
"""
GONE = """
DROP TABLE IF EXISTS picopyn_warm;
DROP FUNCTION IF EXISTS picopyn_planned;
DROP SEQUENCE IF EXISTS picopyn_plans;
"""


def warm_up(facade: str, *texts: str) -> Any:
    """That of the facade."""
    return {"asynchronous": asynchronous.warm_up, "sync": sync.warm_up}[facade](*texts)


def note(opened: list[Any]) -> Callable[[Any], None]:
    """Keeps the events of connections for callers."""

    def on_event(event: Any) -> None:
        if isinstance(event, ConnectionOpened) and event.purpose == "plain":
            opened.append(event)

    return on_event


@both
async def test_statements_are_planned_once_per_connection_and_never_executed(
    target: Cluster, open_pool: OpenPool, facade: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset warms nothing up again; a text that the server refuses costs one line, and no connection."""
    target.execute(GONE + COUNTED)
    texts = (
        "SELECT picopyn_planned(1) + id FROM picopyn_warm WHERE id = $1 AND v = $2",
        "INSERT INTO picopyn_warm VALUES ($1, $2)",
        "DELETE FROM picopyn_warm",
        "SELECT * FROM picopyn_nowhere WHERE secret = $1",
    )
    try:
        opened: list[Any] = []
        count = 2 * len(of_type(target, "primary"))

        def all_warm() -> bool:
            planned = target.execute("SELECT last_value::text FROM picopyn_plans")
            return len(opened) >= count and planned == [(str(len(opened)),)]

        options: dict[str, Any] = {"after_connect": warm_up(facade, *texts), "on_event": note(opened)}
        pool = await open_pool(target.dsn, load_balance="only-primary", min_size=2, max_size=2, **options)
        await pool.wait_ready(timeout=LONG)
        await until(all_warm)
        for _ in range(count):
            async with pool.acquire() as connection:
                assert await connection.fetchval("SHOW work_mem") != "77MB"
                await connection.execute("SET work_mem = '77MB'")
        await until(all_warm)
        assert await pool.fetchval("SELECT count(*) FROM picopyn_warm") == 0
        told = [record.message for record in caplog.records if "not warmed up" in record.message]
        assert told == ["a text was not warmed up (42P01): SELECT * FROM picopyn_nowhere WHERE secret = $1"]
    finally:
        target.execute(GONE)


@both
async def test_a_connection_that_is_lost_meanwhile_is_no_warm_one(
    target: Cluster, open_pool: OpenPool, facade: str
) -> None:
    """That is no refusal: the hook fails, and another connection is made."""
    hook = warm_up(facade, "SELECT 1")
    connection = await asyncpg.connect(target.dsn_of("n1"))
    await connection.close()
    with pytest.raises((asyncpg.InterfaceError, ConnectionError)):
        if facade == "asynchronous":
            await hook(connection)
        else:
            blocking = sync.connect(target.dsn_of("n1"))
            blocking.close()
            hook(blocking)


@both
def test_texts_are_needed(facade: str) -> None:
    """At least one, and nothing else."""
    for nonsense in ((), ("",), ("  ",), (5,), ("SELECT 1", None)):
        with pytest.raises(UsageError, match="at least one"):
            warm_up(facade, *nonsense)  # type: ignore[arg-type]
