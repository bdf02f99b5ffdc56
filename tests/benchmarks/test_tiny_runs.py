"""The benchmark itself, on the smallest sizes: it runs, and what it reports is plausible. No number is judged."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from math import isfinite

import pytest

from benchmarks import bulk_load, environment, gate, hot_path, many_texts, plans, yugabyte_key
from benchmarks.comparing import measure, placements
from benchmarks.estimates import Interval
from benchmarks.interleaving import Patience, Series
from benchmarks.plans import BARE, OURS, OURS_ROUTED, SIZES, Situation
from benchmarks.server import BenchServer, bench_server
from benchmarks.workers import Worker, WorkerFailed
from picopyn.testing import PicodataCluster
from tests.benchmarks.made_up import block


@pytest.fixture(scope="module")
def server() -> Iterator[BenchServer]:
    """A server with the benchmark's tables."""
    with bench_server(nodes=1) as started:
        yield started


@pytest.mark.parametrize(("operation", "tasks"), [("read", 1), ("insert", 12)])
def test_a_situation_is_measured(server: BenchServer, operation: str, tasks: int) -> None:
    """Every client of a situation gets its rounds, and the routed pool has routed all its calls by key."""
    situation = Situation("asyncio", operation, tasks, placements(server)[0])
    table = measure(situation, (BARE, OURS, OURS_ROUTED), server, SIZES["tiny"], Patience(0.0))
    assert [measured.client for measured in table.measured] == [BARE, OURS, OURS_ROUTED]
    for measured in table.measured:
        assert measured.median_throughput > 0
        assert 0 < measured.p50 <= measured.p99
        assert measured.median_cpu > 0
        assert "asyncpg" in measured.versions
    routed = table.of(OURS_ROUTED)
    assert routed is not None
    assert routed.counted["keyed"] > 0
    assert not any(count for reason, count in routed.counted.items() if reason != "keyed")


@pytest.mark.parametrize(("threads", "left_out"), [(1, {OURS, plans.OURS_LIMITED, plans.PSYCOPG_POOL}), (12, set())])
def test_threads_are_measured(server: BenchServer, threads: int, left_out: set[str]) -> None:
    """The same for callers that are threads; psycopg takes part where it is installed."""
    names = tuple(name for name in plans.THREADED if name not in environment.left_out().keys() | left_out)
    situation = Situation("threads", "read", threads, placements(server)[0])
    table = measure(situation, names, server, SIZES["tiny"], Patience(0.0))
    assert table.missing == {}
    assert [measured.client for measured in table.measured] == list(names)
    for measured in table.measured:
        assert measured.median_throughput > 0
        assert 0 < measured.p50 <= measured.p99
    for name in {plans.OURS_ROUTED, plans.OURS_LIMITED} - left_out:
        routed = table.of(name)
        assert routed is not None
        assert [reason for reason, count in routed.counted.items() if count] == ["keyed"]


def test_an_error_in_a_thread_ends_the_worker(server: BenchServer) -> None:
    """It is not taken for a slow client."""
    situation = Situation("threads", "insert", 3, "free")
    with Worker([OURS], situation, server, 1, None) as worker:
        worker.wait_open()
        server.ask("ALTER TABLE written RENAME TO hidden")
        try:
            with pytest.raises(WorkerFailed, match="picopyn: attempt 1"):
                worker.block(0, 3, 0.02, ())
        finally:
            server.ask("ALTER TABLE hidden RENAME TO written")


def test_a_client_that_cannot_take_part_is_left_out(server: BenchServer) -> None:
    """A peer that fails to open costs one line, not the run."""
    broken = BenchServer("postgresql://nobody@127.0.0.1:1/x", server.port, server.hosts, server.core, "")
    situation = Situation("asyncio", "read", 1, "free")
    with Worker([BARE], situation, broken, 1, None) as worker, pytest.raises(WorkerFailed, match="Error"):
        worker.wait_open()


def test_the_gate_judges_processes(server: BenchServer) -> None:
    """Each fresh process gives one number for each limit."""
    situation = Situation("asyncio", "read", 1, placements(server)[-1], "kept")
    held = [gate.one_process(situation, server, 2, 0.01, Patience(0.0)) for _ in range(2)]
    lines = gate.judged(situation, held)
    assert [line.limit for line in lines] == [4.0, 4.0, 1.0]
    for line in lines:
        assert len(line.processes) == 2
        assert line.verdict == "undecided"
        assert "50% confidence" in gate.sentence(line)


def test_beside_other_work_nothing_fails() -> None:
    """Foreign load only adds, so a disturbed gate may say that a limit holds, but not that it fails."""
    too_much = Interval(9.0, 8.0, 10.0, 0.97)
    for foreign, expected in ((0.0, "fails"), (0.09, "undecided")):
        series = Series(BARE)
        series.run(lambda foreign=foreign: block(foreign=foreign), 0.06, 1, Patience(0.0))  # type: ignore[misc]
        assert gate.verdict(too_much, 4.0, [[series]]) == expected
        assert gate.verdict(too_much, 11.0, [[series]]) == "holds"


async def test_the_hot_path_comes_apart(server: BenchServer) -> None:
    """Every layer of a call can still be run alone."""
    found = await hot_path.layers(server, calls=20, repeats=2)
    found |= await hot_path.beside_a_server(server, calls=20)
    assert set(found) >= {"request", "way, by key", "take and give", "whole, by key", "rest, by key"}
    assert all(isfinite(value) for value in found.values())


def test_all_situations_of_a_run_differ() -> None:
    """A run measures no situation twice, and both loops, operations and placements occur."""
    found = list(plans.situations(SIZES["standard"], ("own core", "same core"), ("uvloop", "asyncio")))
    assert len(found) == len(set(found))
    for name in ("loop", "operation", "placement"):
        assert len({getattr(situation, name) for situation in found}) == 2
    assert {situation.tasks for situation in found} == {1, 50, 200}


def test_threads_have_situations_of_their_own() -> None:
    """One thread where the client has a core and where it shares one, many where it has one; psycopg is the base."""
    found = list(plans.thread_situations(SIZES["standard"], ("own core", "same core")))
    assert [(one.tasks, one.placement) for one in found] == [
        (1, "own core"),
        (1, "same core"),
        (8, "own core"),
        (32, "own core"),
    ]
    assert found[2].title == "fetchrow by key, 8 threads, own core"
    assert {one.base for one in found} == {plans.PSYCOPG}
    assert plans.clients(found[0], plans.EVERYBODY) == plans.THREADED


def test_the_published_picopyn_routes_inserts_only() -> None:
    """Where it cannot route it is not shown as if it did."""
    read, insert = (Situation("asyncio", operation, 1, "free") for operation in ("read", "insert"))
    assert plans.PUBLISHED_ROUTED not in plans.clients(read, plans.ALL)
    assert plans.PUBLISHED_ROUTED in plans.clients(insert, plans.ALL)
    assert plans.clients(insert, (BARE,)) == (BARE,)


def test_a_failed_installation_is_told_in_a_line() -> None:
    """An environment that cannot be made is an error with the installer's last line."""
    with pytest.raises(environment.NotInstalled, match=r"^no such thing$"):
        environment._run([sys.executable, "-c", "print('first'); print('no such thing'); raise SystemExit(1)"])
    with pytest.raises(environment.NotInstalled, match="FileNotFoundError"):
        environment._run(["/no/such/program"])


def test_a_load_takes_bounded_memory(server: BenchServer, full_size: bool) -> None:
    """Of 200 000 rows of a generator only a few thousand exist at a time, and none afterwards."""
    count = 10_000_000 if full_size else 200_000
    found = asyncio.run(bulk_load.measure(server, 2000, 50, count, 1))
    assert found["rows of the generator"] == count
    assert found["most rows held at a time"] < 10_000
    assert found["rows left over"] == 0
    assert all(map(isfinite, found.values()))
    server.empty()


@pytest.mark.cluster
def test_texts_that_come_once_are_measured(picopyn_cluster: PicodataCluster) -> None:
    """With both pools; discovery is never further behind than it may be."""
    many_texts.fill(picopyn_cluster)
    try:
        for facade in ("asynchronous", "sync"):
            found = many_texts.run(picopyn_cluster.dsn, facade, 40, 0.2, 5)
            assert found["most discoveries pending"] <= found["of at most"] == 5
            assert all(map(isfinite, found.values()))
    finally:
        picopyn_cluster.execute("DROP TABLE many")


def test_the_keys_of_yugabytedb_are_measured() -> None:
    """Every kind of key has a price."""
    found = yugabyte_key.measure(calls=20, repeats=2)
    assert set(found) == {"memory", *yugabyte_key.KEYS}
    assert all(isfinite(microseconds) for microseconds in found.values())
