"""Whatever happens to the servers, no acknowledged write is lost or doubled, and no fresh read is stale.

Laws are asserted, times are not. A test that fails tells its seed, every step and every broken law; the same steps come
again with `--chaos-seed`, though not the same moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.cli.chaos.field import Field
from picopyn.cli.chaos.postgres_field import PostgresField
from picopyn.cli.chaos.run import run
from picopyn.cli.chaos.schedule import Act, Step, schedule
from picopyn.testing import PostgresCluster
from tests.threads import FACADES


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("field", ["picodata", "postgres"], indirect=True)
async def test_no_law_is_broken_while_servers_are_disturbed(
    field: Field, pool: Any, full_size: bool, seed: int, measured: Callable[[str, object], None]
) -> None:
    """Killed, stopped, frozen, cut off, switched, added, expelled, rebalanced: every law is kept."""
    steps = schedule(seed, field.menu, 25 if full_size else 6, tempo=1.5 if full_size else 0.4)
    report = await run(field, pool, seed, steps, tell=print)
    assert not report.broken, report
    measured("calls", sum(report.counts.values()))
    measured("unknown", report.unknown)
    measured("given up", report.given_up)


class _Unfaithful(PostgresField):
    """Servers that lose, double and invent instead of taking steps."""

    def sabotage(self, servers: PostgresCluster) -> None:
        servers.execute(
            "INSERT INTO chaos_rows SELECT min(id) FROM chaos_rows; INSERT INTO chaos_rows VALUES (-1);"
            "DELETE FROM chaos_rows WHERE id = (SELECT max(id) FROM chaos_rows);"
            "UPDATE chaos_counters SET n = -7"
        )

    def take(self, step: Step) -> str:
        self.sabotage(self._servers)
        return "everything"


async def test_servers_that_lose_and_invent_are_found_out() -> None:
    """The whole run can fail, not its parts only: somebody tampers with the tables, and the report says so."""
    field = await asyncio.to_thread(_Unfaithful)
    try:
        async with Pool(field.dsn, **field.options) as pool:
            await pool.wait_ready(timeout=60)
            report = await run(field, pool, 1, [Step(Act.CUT)])
    finally:
        await asyncio.to_thread(field.close)
    assert {"lost", "doubled", "stale", "invented"} <= {breach.law for breach in report.broken}
    assert "cut every connection to everything" in str(report)
    assert "seed 1" in str(report)
