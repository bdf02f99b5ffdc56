"""Every test over a world runs twice: with texts whose first call is planned, and with all on the short way already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that make no world need not run twice."""
    if hasattr(metafunc.module, "World"):
        metafunc.fixturenames.append("way")
        metafunc.parametrize("way", ["planned", "short"], indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether `World.warm` opens the short way."""
    World.opens_the_short_way = request.param == "short"
    yield
    World.opens_the_short_way = False
