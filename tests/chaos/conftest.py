"""Fields of chaos, pools that are closed at the end, and the seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from picopyn.cli.chaos.field import Field
from picopyn.cli.chaos.picodata_field import PicodataField
from picopyn.cli.chaos.postgres_field import PostgresField
from tests.postgres.conftest import OpenPool, nothing_left_behind, open_pool

__all__ = ["OpenPool", "nothing_left_behind", "open_pool"]

FIELDS: dict[str, Any] = {"picodata": PicodataField, "postgres": PostgresField}


#: Of the short run; the long one goes on from here.
SEED = 2026
_LONG = 5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed: the one that `--chaos-seed` names, or the first one, or with `--full` the first few."""
    if "seed" in metafunc.fixturenames:
        named, full = metafunc.config.getoption("--chaos-seed"), metafunc.config.getoption("--full")
        seeds = range(SEED, SEED + (_LONG if full else 1)) if named is None else [int(named)]
        metafunc.parametrize("seed", seeds, ids=lambda seed: f"seed {seed}")


@pytest.fixture
def field(request: pytest.FixtureRequest) -> Iterator[Field]:
    """The servers, by their kind."""
    servers: Field = FIELDS[request.param]()
    yield servers
    servers.close()


@pytest.fixture
async def pool(field: Field, open_pool: OpenPool) -> Any:
    """A pool of the facade under test on them."""
    return await open_pool(field.dsn, **field.options)
