"""Whatever happens to the servers, no acknowledged write is lost or doubled, and no fresh read is stale.

Laws are asserted, times are not. A test that fails tells its seed, every step and every broken law; the same steps come
again with `--chaos-seed`, though not the same moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from picopyn.cli.chaos.field import Field
from picopyn.cli.chaos.run import run
from picopyn.cli.chaos.schedule import schedule
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
