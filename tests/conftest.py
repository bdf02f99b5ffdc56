"""What every test may use: the full sizes, and a place to report measured numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from picopyn import asynchronous
from tests import threads

# Time is never what a property is about, and a busy machine must not make one fail.
settings.register_profile("picopyn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("picopyn")

_MEASURED = "measured: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the large counts and the long timeouts in full size")
    parser.addoption("--chaos-seed", type=int, help="the seed of the chaos runs: one that a report named")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="only with --full"))


def pytest_collection_finish() -> None:
    """Thousands of tests are 700 000 objects: a test that collects garbage must not look through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def full_size(request: pytest.FixtureRequest) -> bool:
    """Whether large counts and long timeouts are wanted."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def facade(request: pytest.FixtureRequest) -> str:
    """Which pool a test runs over: the asynchronous one, unless it is parametrized with `FACADES`."""
    return str(getattr(request, "param", "asynchronous"))


@pytest.fixture
def pool_class(facade: str) -> Any:
    """`Pool` of that facade; of threads, behind the names of the asynchronous one."""
    return asynchronous.Pool if facade == "asynchronous" else threads.Pool


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """Report a number: it is shown at the end of the run and stands in the JUnit file. It is never asserted."""

    def note(name: str, value: object) -> None:
        record_property(_MEASURED + name, f"{value:.4g}" if isinstance(value, float) else str(value))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        f"{report.nodeid.partition('::')[2]}: {name.removeprefix(_MEASURED)} = {value}"
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        for name, value in getattr(report, "user_properties", ())
        if name.startswith(_MEASURED)
    ]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
