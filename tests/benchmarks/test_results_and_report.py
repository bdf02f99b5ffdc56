"""Results as files, and the page that is made of them."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import aims, machine, plans, report, results, tables
from benchmarks.bars import Bar, Panel, svg
from benchmarks.estimates import Interval
from tests.benchmarks import made_up


def test_results_come_back_unchanged(tmp_path: Path) -> None:
    """What was saved is what is read."""
    path = tmp_path / "deep" / "run.json"
    results.save(made_up.run(), path)
    assert results.load_run(path) == made_up.run()
    results.save(made_up.gate(), path)
    assert results.load_gate(path) == made_up.gate()
    results.save(made_up.layers(), path)
    assert results.load_layers(path) == made_up.layers()


def test_the_machine_is_described_without_names() -> None:
    """A result tells about hardware and versions, and neither who nor where."""
    text = repr(machine.describe())
    for secret in (platform.node(), str(Path.home()), str(Path.cwd())):
        assert len(secret) < 3 or secret not in text
    assert platform.python_version() in text


def test_ratios_are_paired_with_the_bare_connection() -> None:
    """A table gives throughput ratios and added CPU within its rounds."""
    table = made_up.table(plans.Situation("uvloop", "read", 1, "own core"))
    ours, pool = table.ratio(plans.OURS_ROUTED), table.ratio(plans.OURS_ROUTED, plans.ASYNCPG_POOL)
    added = table.added_cpu(plans.ASYNCPG_POOL)
    assert ours is not None
    assert pool is not None
    assert added is not None
    assert (ours.middle, pool.middle, added.middle) == (1.0, 2.0, 40.0)
    assert table.ratio("nobody") is None


def test_the_page_is_complete() -> None:
    """Every placeholder is filled, every table is there, and so are those who could not take part."""
    text = report.page(made_up.run(), made_up.gate(), made_up.layers())
    assert "<<" not in text
    assert text.count("| asyncpg connection") == 3
    assert "| psycopg connection |" in text.split("## Threads")[1]
    assert "| psycopg connections, a thread each |" in text.split("## Threads")[1]
    assert "Without hasql: not installed" in text
    assert "Without somebody: no such module" in text
    assert "Some Processor, 2 cores, virtual machine" in text
    assert "| way, by key | 1.25 |" in text
    for program in ("comparison", "gate", "layers"):
        assert re.search(rf"^\| {program} \| \d+-\d\d-\d\d", text, re.MULTILINE), program


def test_the_page_lives_without_gate_and_layers() -> None:
    """What was not run is said, not invented."""
    text = report.page(made_up.run(), None, None)
    assert "The gate was not run." in text
    assert "(not run)" in text


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (made_up.run(disturbed=True), "was not quiet"),
        (made_up.run(sees_foreign=False), "could not be seen"),
        (made_up.run(size="tiny"), "no number of it may be quoted"),
    ],
)
def test_doubtful_results_say_so(run: results.Run, word: str) -> None:
    """A page of a disturbed, blind or tiny run begins with that."""
    assert word in report.page(run, None, None).split("## ")[0]
    assert ("†" in tables.everything(run)) == (word == "was not quiet")


def test_aims_are_judged_by_whole_intervals() -> None:
    """An aim is met or missed when the interval says so; else it stays undecided."""
    assert aims.at_least(Interval(1.0, 0.96, 1.1, 0.96), 0.95) == "met"
    assert aims.at_least(Interval(0.9, 0.8, 0.94, 0.96), 0.95) == "missed"
    assert aims.at_least(Interval(1.0, 0.9, 1.1, 0.96), 0.95) == "undecided"
    assert aims.at_least(Interval(2.0, 1.9, 2.1, 0.75), 0.95) == "undecided"


def test_all_aims_are_on_the_page() -> None:
    """Gate, sequential ratio, both pools at 50 tasks, the tail and threads are each judged."""
    found = [(aim.what.split(",")[0], aim.verdict) for aim in aims.aims(made_up.run(), made_up.gate())]
    assert found == [
        ("client CPU added", "met"),
        ("throughput ≥ 0.95 × a bare asyncpg connection", "met"),
        ("throughput ≥ 2.5 × asyncpg.Pool", "missed"),
        ("throughput ≥ 2 × picopyn 3.2.0", "met"),
        ("p99 ≤ 3 × p50", "met"),
        ("client CPU ≤ 1.1 × a bare psycopg connection's", "met"),
        ("client CPU ≤ 1.1 × a bare psycopg connection's", "met"),
        ("throughput ≥ 1.5 × psycopg_pool", "met"),
    ]


def test_disturbed_numbers_decide_nothing() -> None:
    """What was measured beside other work meets no aim and misses none."""
    assert {aim.verdict for aim in aims.aims(made_up.run(disturbed=True), None)} == {"undecided"}


def test_the_picture_is_well_formed() -> None:
    """Bars become an SVG whose texts are escaped and whose longest bar fits."""
    root = ElementTree.fromstring(svg([Panel("a < b", [Bar("x & y", 2.0), Bar("z", 0.0)])], "<caption>"))
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert {"a < b", "x & y", "<caption>", "2.00"} <= set(texts)
    widths = [float(element.get("width", 0)) for element in root.iter() if element.tag.endswith("rect")]
    assert max(widths) <= 420
    assert ElementTree.fromstring(svg([], "nothing")) is not None


def test_the_picture_shows_the_run() -> None:
    """The page's picture has a panel for each loop that was measured."""
    text = report.picture(made_up.run())
    assert "sequential, uvloop" in text
    assert "50 tasks, uvloop" in text
    assert "asyncio" not in text


def test_page_and_picture_are_written(tmp_path: Path) -> None:
    """The report reads a directory of results and writes two files."""
    results.save(made_up.run(), tmp_path / results.COMPARISON)
    assert report.main(["--results", str(tmp_path), "--docs", str(tmp_path / "docs")]) == 0
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"performance.md", "performance.svg"}


def test_the_saved_results_and_the_page_belong_together(tmp_path: Path) -> None:
    """The page of the manual is what the saved results say."""
    report.write(results.RESULTS, tmp_path)
    for name in ("performance.md", "performance.svg"):
        assert (tmp_path / name).read_text("utf-8") == (report.DOCS / name).read_text("utf-8")
