"""What the metadata service promises: requests, memory, the connection, its end, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import asyncpg
import pytest

from picopyn.asynchronous.metadata_desk import CROWD, Check, Desk, Job
from picopyn.asynchronous.metadata_service import QueryMetadataService
from picopyn.asynchronous.question_clock import BACKGROUND_SHARE, CROWD_SHARE, SAVED_SECONDS, QuestionClock
from picopyn.dialects.picodata import PicodataDialect
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.route import KeyPart, RouteKind
from picopyn.testing.scripted_connection import Hang, ScriptedConnections
from tests.asynchronous.catalog import ServerError, denied
from tests.asynchronous.explaining import BUCKETS, Explainer, bucket_of, notice, plan
from tests.asynchronous.jump_loop import jumping, settle

SELECT = "SELECT * FROM t WHERE id = $1"
INSERT = "INSERT INTO t VALUES ($1, $2)"
GLOBAL = "SELECT * FROM g WHERE id = $1"


class UnfitArgumentError(asyncpg.InterfaceError, ValueError):
    """What asyncpg raises, without a public name, for an argument that does not fit its type."""


class Rig:
    """A service over scripted connections."""

    def __init__(self, *connections, size=100, counts=None, **options) -> None:
        self.connections = connections or (Explainer().keyed_by_first(SELECT),)
        self.connect = ScriptedConnections(*self.connections)
        self.counts = {"default": BUCKETS} if counts is None else counts
        self.service = QueryMetadataService(
            self.connect,
            size,
            dialect=PicodataDialect(),
            bucket_counts=lambda: self.counts,
            now=lambda: asyncio.get_running_loop().time(),
            rng=random.Random(7),
            **options,
        )

    @property
    def first(self) -> Explainer:
        """The first connection."""
        return self.connections[0]

    async def learned(self, query: str) -> PreparedStatementMetadata | None:
        """Ask in the background and let it happen."""
        self.service.request_if_missing(query)
        await asyncio.sleep(60)
        return self.service.request_if_missing(query)


@contextlib.asynccontextmanager
async def serving(*connections, **options):
    """A rig that is stopped at the end."""
    rig = Rig(*connections, **options)
    try:
        yield rig
    finally:
        await rig.service.stop()


# Requests


@jumping
async def test_a_miss_answers_at_once_and_asks_in_the_background():
    """The statement that missed runs now, unrouted; the next one finds its route."""
    async with serving() as rig:
        assert rig.service.request_if_missing(SELECT) is None
        assert rig.connect.calls == 0
        await asyncio.sleep(60)
        found = rig.service.request_if_missing(SELECT)
        assert found.query == SELECT
        assert found.tier == "default"
        assert found.parameter_oids == (20,)
        assert found.route.kind is RouteKind.KEYED
        assert found.route.keys == ((KeyPart(0, 20),),)
        assert (rig.service.stats().hits, rig.service.stats().misses) == (1, 1)


@jumping
async def test_a_hit_costs_no_question():
    """What is known is answered from the cache."""
    async with serving() as rig:
        await rig.learned(SELECT)
        asked = len(rig.first.asked)
        for _ in range(100):
            assert rig.service.request_if_missing(SELECT) is not None
        await settle()
        assert len(rig.first.asked) == asked


@jumping
async def test_one_discovery_per_text_however_often_it_is_requested():
    """Single-flight: a text that is being asked about is not asked about again."""
    async with serving() as rig:
        for _ in range(50):
            rig.service.request_if_missing(SELECT)
            await asyncio.sleep(0)
        await asyncio.gather(*(rig.service.get_query_metadata(SELECT) for _ in range(50)))
        assert rig.first.prepared() == [SELECT]


@jumping
async def test_only_the_question_is_prepared_and_unnamed():
    """One Parse of EXPLAIN <text>; nothing stays in the server's statement store."""
    async with serving() as rig:
        await rig.learned(SELECT)
        prepares = [asked for asked in rig.first.asked if asked.verb == "prepare"]
        assert [(asked.text, asked.name) for asked in prepares] == [(f"EXPLAIN {SELECT}", "")]
        assert {asked.text for asked in rig.first.asked} == {f"EXPLAIN {SELECT}"}


@pytest.mark.parametrize(
    "query",
    [
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "DO $$ BEGIN END $$",
        "CALL p($1)",
        "EXPLAIN SELECT * FROM t WHERE id = $1",
        "SELECT * FROM t WHERE id = $1 -- comment",
        "SET a = $1",
        "SELECT * FROM t WHERE id IN (" + ", ".join(f"${n}" for n in range(1, 66)) + ")",
    ],
)
@jumping
async def test_texts_that_tell_nothing_or_are_dangerous_are_not_asked(query):
    """No query, with a comment, or more than 64 parameters: no question at all."""
    async with serving() as rig:
        assert rig.service.request_if_missing(query) is None
        assert await rig.service.get_query_metadata(query) is None
        assert rig.connect.calls == 0


@jumping
async def test_at_most_cache_size_discoveries_are_pending(caplog):
    """More are skipped with a debug line, and may be asked for again later."""
    caplog.set_level(logging.DEBUG, "picopyn")
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(10)]
    async with serving(Explainer().keyed_by_first(*queries), size=4) as rig:
        for query in queries:
            rig.service.request_if_missing(query)
        assert rig.service.stats().pending == 4
        assert rig.service.stats().skipped == 6
        await asyncio.sleep(300)
        assert rig.first.prepared() == queries[:4]
        assert {record.levelno for record in caplog.records} == {logging.DEBUG}
        await rig.learned(queries[9])
        assert queries[9] in rig.first.prepared()


@jumping
async def test_a_text_that_comes_again_is_asked_about_before_those_that_came_once():
    """Among thousands of texts that come once, those that are used are learned first, even when too many wait."""
    once = [f"SELECT {n} FROM t WHERE id = $1" for n in range(40)]
    used = [f"SELECT v{n} FROM t WHERE id = $1" for n in range(2)]
    async with serving(Explainer().keyed_by_first(*once, *used), size=10) as rig:
        for query in [*once[:8], used[0], *once[8:], used[1], used[1], used[0]]:
            rig.service.request_if_missing(query)
            assert rig.service.stats().pending <= 10
        await asyncio.sleep(300)
        assert set(rig.first.prepared()[:2]) == set(used)
        assert rig.service.request_if_missing(used[1]).route.kind is RouteKind.KEYED


@jumping
async def test_texts_the_server_gives_nothing_for_are_remembered():
    """No notice and a plan that names no buckets: asked once, then never until the text is evicted."""
    mute = Explainer().knows(SELECT, (20,), "??", silent=True)
    async with serving(mute) as rig:
        assert await rig.learned(SELECT) is None
        assert await rig.service.get_query_metadata(SELECT) is None
        await rig.learned(SELECT)
        assert rig.first.prepared() == [SELECT]
        rig.service.evict(SELECT)
        await rig.learned(SELECT)
        assert rig.first.prepared() == [SELECT, SELECT]


@jumping
async def test_get_query_metadata_waits_for_the_answer():
    """The caller gets what is learned, without pauses."""
    async with serving() as rig:
        begun = asyncio.get_running_loop().time()
        found = await rig.service.get_query_metadata(SELECT)
        assert found.route.kind is RouteKind.KEYED
        assert asyncio.get_running_loop().time() == begun
        assert await rig.service.get_query_metadata(SELECT) is found


@jumping
async def test_get_query_metadata_is_none_when_no_node_answers():
    """No connection, no answer, and nothing is remembered."""
    async with serving(None) as rig:
        assert await rig.service.get_query_metadata(SELECT) is None
        assert await rig.service.get_query_metadata(SELECT) is None
        assert rig.connect.calls == 2


@jumping
async def test_a_cancelled_waiter_does_not_cost_the_others_their_answer():
    """The discovery belongs to the text, not to who asked first."""
    hang = Hang()
    async with serving(Explainer().keyed_by_first(SELECT)) as rig:
        rig.first._script["prepare", f"EXPLAIN {SELECT}"] = [hang]
        first = asyncio.create_task(rig.service.get_query_metadata(SELECT))
        await hang.entered.wait()
        second = asyncio.create_task(rig.service.get_query_metadata(SELECT))
        await settle()
        first.cancel()
        await settle()
        hang.release()
        assert (await second).route.kind is RouteKind.KEYED


@jumping
async def test_texts_without_parameters_are_learned_too():
    """Their bucket may be constant, or any node may do."""
    constant, anywhere, scan = "SELECT * FROM t WHERE id = 7", "SELECT 1", "SELECT count(*) FROM t"
    explainer = Explainer().knows(constant, (), 1934).knows(anywhere, (), "any", tier=None)
    explainer.knows(scan, (), f"[1-{BUCKETS}]")
    async with serving(explainer) as rig:
        ask = rig.service.get_query_metadata
        assert (await ask(constant)).route.buckets == (1934,)
        assert (await ask(constant)).route.kind is RouteKind.CONSTANT
        assert (await ask(anywhere)).route.kind is RouteKind.ANY_NODE
        assert (await ask(scan)).route.kind is RouteKind.NOT_KEYED


@jumping
async def test_texts_without_parameters_are_asked_about_when_they_come_again():
    """A text with its values written into it may be another one at every call: one question each would be wasted."""
    texts = [f"SELECT * FROM t WHERE id = {number}" for number in range(50)]
    explainer = Explainer()
    for number, text in enumerate(texts):
        explainer.knows(text, (), bucket_of((20, number)))
    async with serving(explainer) as rig:
        for text in texts:
            assert rig.service.request_if_missing(text) is None
        await asyncio.sleep(60)
        assert explainer.prepared() == []
        assert (await rig.learned(texts[3])).route.buckets == (bucket_of((20, 3)),)
        assert explainer.prepared() == [texts[3]]


@jumping
async def test_texts_without_parameters_do_not_crowd_out_the_others():
    """They get a quarter of the cache, the newest of them."""
    texts = [f"SELECT * FROM t WHERE id = {number}" for number in range(20)]
    explainer = Explainer().keyed_by_first(SELECT)
    for number, text in enumerate(texts):
        explainer.knows(text, (), bucket_of((20, number)))
    async with serving(explainer, size=8) as rig:
        await rig.learned(SELECT)
        for text in texts:
            assert await rig.service.get_query_metadata(text) is not None
        assert rig.service.request_if_missing(SELECT).route.kind is RouteKind.KEYED
        assert [text for text in texts if rig.service.request_if_missing(text) is not None] == texts[-2:]
        rig.service.forget_all()
        assert rig.service.request_if_missing(texts[-1]) is None


@jumping
@pytest.mark.parametrize(
    "query",
    [
        f"INSERT INTO t VALUES ($1, '{'x' * 1_000_000}')",
        f"SELECT * FROM t WHERE id IN ({', '.join(f'${n}' for n in range(1, 5001))})",
        f"INSERT INTO t VALUES {', '.join(f'(${2 * n + 1}, ${2 * n + 2})' for n in range(2000))}",
        "SELECT * FROM t -- WHERE id = $1",
    ],
    ids=["1 MB", "5000 in a list", "2000 rows", "a comment"],
)
async def test_what_is_not_worth_a_question_is_not_asked_and_read_only_once(query, monkeypatch):
    """Very long texts, very many parameters, texts the server refuses anyway: they run unrouted, at no cost."""
    reads = []
    can_be_asked = PicodataDialect.can_be_asked

    def counted(self, sql):
        reads.append(sql)
        return can_be_asked(self, sql)

    monkeypatch.setattr(PicodataDialect, "can_be_asked", counted)
    async with serving() as rig:
        for _ in range(1000):
            assert rig.service.request_if_missing(query) is None
        assert await rig.service.get_query_metadata(query) is None
        assert len(reads) <= 1
        assert rig.connect.calls == 0
        assert rig.service.stats().pending == 0


@jumping
async def test_a_text_of_unusual_letters_is_learned_as_any():
    """Letters beyond the basic plane, combining ones, and direction marks in names and literals."""
    query = 'SELECT "имя🙂", \'e\u0301\u202e\' FROM "표" WHERE "ключ" = $1'
    async with serving(Explainer().keyed_by_first(query)) as rig:
        assert (await rig.learned(query)).route.kind is RouteKind.KEYED


@jumping
async def test_the_key_named_by_the_notice_is_kept_with_the_route():
    """A one-row INSERT: tier, dk_meta and parameter types of the notice, and a route confirmed by the plan."""
    explainer = Explainer().knows(INSERT, (20, 25), lambda key, value: bucket_of((20, key)), dk_meta=[(1, 20)])
    async with serving(explainer) as rig:
        found = await rig.learned(INSERT)
        assert (found.tier, found.dk_meta, found.parameter_oids) == ("default", ((1, 20),), (20, 25))
        assert found.route.keys == ((KeyPart(0, 20),),)


@jumping
async def test_a_text_over_global_tables_runs_anywhere():
    """The plan says `any`."""
    async with serving(Explainer().knows(GLOBAL, (20,), "any", tier=None)) as rig:
        assert (await rig.learned(GLOBAL)).route.kind is RouteKind.ANY_NODE


# Notices


@jumping
async def test_other_notices_are_dropped_silently(caplog):
    """Whatever else the server says is no metadata and no log line."""
    explainer = Explainer().keyed_by_first(SELECT)
    explainer.when_prepared(
        f"EXPLAIN {SELECT}",
        (20,),
        notice=["table is large", "{}", "[1]", notice("SELECT 2", "hot"), '{"type": "Other", "query": "x"}'],
    )
    async with serving(explainer) as rig:
        await rig.service.start()
        explainer.speak("shutting down soon", notice(f"EXPLAIN {SELECT}", "hot", [(1, 20)]))
        found = await rig.service.get_query_metadata(SELECT)
        assert (found.tier, found.dk_meta) == ("default", ())
        assert caplog.records == []


@jumping
async def test_the_notice_is_taken_before_its_request_completes():
    """Notices are delivered synchronously: the dialogue knows the tier before it asks its first question."""
    cold = "SELECT * FROM c WHERE id = $1"
    explainer = Explainer().knows(cold, (20,), lambda key: bucket_of((20, key), count=10), tier="cold")
    async with serving(explainer, counts={"default": BUCKETS, "cold": 10}) as rig:
        found = await rig.service.get_query_metadata(cold)
        assert found.route.tier == "cold"


@jumping
async def test_without_a_notice_and_with_several_tiers_a_text_is_not_keyed():
    """Before 26.1 the server does not name the tier."""
    explainer = Explainer().knows(SELECT, (20,), lambda key: bucket_of((20, key)), silent=True)
    async with serving(explainer, counts={"default": BUCKETS, "cold": 10}) as rig:
        assert (await rig.learned(SELECT)).route.kind is RouteKind.NOT_KEYED


@jumping
async def test_without_a_notice_and_with_one_tier_the_plan_is_enough():
    """A server that sends no notices still teaches routes."""
    explainer = Explainer().knows(SELECT, (20,), lambda key: bucket_of((20, key)), silent=True)
    async with serving(explainer) as rig:
        found = await rig.learned(SELECT)
        assert (found.tier, found.route.kind) == ("default", RouteKind.KEYED)


@jumping
async def test_before_the_map_is_known_only_the_notice_is_kept():
    """Without bucket counts no plan can be understood: tier and key are kept, the route is learned later."""
    async with serving(counts={}) as rig:
        found = await rig.learned(SELECT)
        assert (found.tier, found.route) == ("default", None)
        assert rig.first.binds() == []
        rig.counts["default"] = BUCKETS
        assert (await rig.learned(SELECT)).route.kind is RouteKind.KEYED


@jumping
async def test_while_the_map_is_missing_a_text_is_asked_about_once():
    """An incomplete answer is not asked for again as long as it could not be completed."""
    async with serving(counts={}) as rig:
        for _ in range(5):
            await rig.learned(SELECT)
        assert rig.first.prepared() == [SELECT]


# Failures


@jumping
async def test_a_statement_the_server_rejects_costs_neither_connection_nor_cache():
    """A refused text is remembered; everything else goes on."""
    explainer = Explainer().keyed_by_first(SELECT)
    explainer.when_prepared("EXPLAIN SELECT $1 FROM nope", answers=[ServerError("sbroad: table not found")])
    async with serving(explainer) as rig:
        known = await rig.learned(SELECT)
        for _ in range(3):
            assert await rig.service.get_query_metadata("SELECT $1 FROM nope") is None
        assert rig.service.request_if_missing(SELECT) is known
        assert rig.connect.calls == 1
        assert rig.first.prepared().count("SELECT $1 FROM nope") == 1
        assert rig.service.stats().refused == 1


@jumping
async def test_a_refused_text_gets_another_chance_after_a_minute():
    """Its table may have been created meanwhile."""
    explainer = Explainer().keyed_by_first(SELECT)
    explainer._script["prepare", f"EXPLAIN {SELECT}"] = [ServerError("sbroad: table not found"), ()]
    async with serving(explainer) as rig:
        assert await rig.service.get_query_metadata(SELECT) is None
        await asyncio.sleep(59)
        assert await rig.service.get_query_metadata(SELECT) is None
        await asyncio.sleep(2)
        assert await rig.service.get_query_metadata(SELECT) is not None


@jumping
async def test_a_missing_privilege_is_asked_about_again_after_a_back_off():
    """AccessDenied is not "has no key": a GRANT may come."""
    explainer = Explainer().keyed_by_first(SELECT)
    explainer._script["prepare", f"EXPLAIN {SELECT}"] = [denied("t"), denied("t"), ()]
    async with serving(explainer) as rig:
        ask = rig.service.get_query_metadata
        assert await ask(SELECT) is None
        assert await ask(SELECT) is None
        assert len(rig.first.prepared()) == 1
        await asyncio.sleep(5.1)
        assert await ask(SELECT) is None
        assert len(rig.first.prepared()) == 2
        await asyncio.sleep(5.1)
        assert await ask(SELECT) is None
        assert len(rig.first.prepared()) == 2
        await asyncio.sleep(5.1)
        assert await ask(SELECT) is not None
        assert not rig.first.is_closed()


@jumping
async def test_a_privilege_missing_only_when_asking_is_the_same():
    """Some servers check rights when the question is put, not when it is prepared."""
    answers = iter([denied("t")])
    explainer = Explainer().knows(SELECT, (20,), lambda key: next(answers, bucket_of((20, key))))
    async with serving(explainer) as rig:
        assert await rig.service.get_query_metadata(SELECT) is None
        await asyncio.sleep(6)
        assert (await rig.service.get_query_metadata(SELECT)).route.kind is RouteKind.KEYED


@jumping
async def test_values_the_server_refuses_are_replaced_by_others():
    """An option may refuse a value; the probe tries other ones on the same connection."""
    picky = "SELECT * FROM t WHERE id = $1 OPTION (SQL_MOTION_ROW_MAX = $2)"
    refusal = iter([ServerError("sbroad: invalid option")])
    explainer = Explainer().knows(picky, (20, 20), lambda key, _: next(refusal, bucket_of((20, key))))
    async with serving(explainer) as rig:
        assert (await rig.learned(picky)).route.keys == ((KeyPart(0, 20),),)


@jumping
async def test_a_plan_we_cannot_read_is_counted_and_the_text_is_not_keyed():
    """The statement runs unrouted, and a counter says so."""
    async with serving(Explainer().knows(SELECT, (20,), "{surprise}")) as rig:
        found = await rig.learned(SELECT)
        assert found.route.kind is RouteKind.NOT_KEYED
        assert "could not be read" in found.route.reason
        assert rig.service.stats().unreadable >= 1


@jumping
async def test_a_lost_connection_costs_the_connection_only():
    """The cache stays as long as nothing is opened again."""
    async with serving() as rig:
        known = await rig.learned(SELECT)
        rig.first.break_off()
        await settle()
        assert rig.service.request_if_missing(SELECT) is known
        assert rig.connect.calls == 1


@jumping
async def test_reconnecting_clears_the_cache():
    """DDL may have been missed in between."""
    other = "SELECT v FROM t WHERE id = $1"
    second = Explainer().keyed_by_first(SELECT, other)
    async with serving(Explainer().keyed_by_first(SELECT), second) as rig:
        await rig.learned(SELECT)
        rig.first.break_off()
        await rig.learned(other)
        assert rig.connect.calls == 2
        assert rig.service.request_if_missing(SELECT) is None
        await asyncio.sleep(60)
        assert rig.service.request_if_missing(SELECT) is not None
        assert second.prepared() == [other, SELECT]


@jumping
async def test_a_text_whose_question_lost_its_connection_is_never_asked_again():
    """One query of death must not fell a cluster: not after a reconnect, not after an eviction."""
    deadly = Explainer().keyed_by_first(SELECT)
    deadly.when_prepared(
        "EXPLAIN SELECT $1 IN (bomb)", answers=[asyncpg.exceptions.ConnectionDoesNotExistError("gone")]
    )
    second = Explainer().keyed_by_first(SELECT)
    async with serving(deadly, second) as rig:
        assert await rig.service.get_query_metadata("SELECT $1 IN (bomb)") is None
        assert deadly.is_closed()
        assert await rig.service.get_query_metadata(SELECT) is not None
        rig.service.evict("SELECT $1 IN (bomb)")
        assert await rig.service.get_query_metadata("SELECT $1 IN (bomb)") is None
        assert second.prepared() == [SELECT]
        assert rig.service.stats().lost == 1


@jumping
async def test_the_same_when_the_connection_breaks_between_questions():
    """Losing it while a prepared question is put counts as well."""
    dying = Explainer().knows(SELECT, (20,), lambda key: ConnectionResetError("reset"))
    second = Explainer().keyed_by_first(SELECT)
    async with serving(dying, second) as rig:
        dying.when(f"EXPLAIN {SELECT}", ConnectionResetError("reset"))
        assert await rig.service.get_query_metadata(SELECT) is None
        assert await rig.service.get_query_metadata(SELECT) is None
        assert second.asked == []


@jumping
async def test_a_stale_plan_during_a_dialogue_is_asked_about_anew():
    """DDL between Parse and Bind: the dialogue begins again, once."""
    stale = iter([ServerError("sbroad: space metadata for table: t not found")])
    explainer = Explainer().knows(SELECT, (20,), lambda key: next(stale, bucket_of((20, key))))
    async with serving(explainer) as rig:
        assert (await rig.service.get_query_metadata(SELECT)).route.kind is RouteKind.KEYED
        assert rig.first.prepared() == [SELECT, SELECT]


@jumping
async def test_a_silent_node_costs_one_deadline_and_a_waiter_is_answered_by_another():
    """A frozen node is given up after 2 s when somebody waits; the question goes to the next connection."""
    frozen = Explainer().keyed_by_first(SELECT)
    frozen._script["prepare", f"EXPLAIN {SELECT}"] = [Hang()]
    async with serving(frozen, Explainer().keyed_by_first(SELECT)) as rig:
        begun = asyncio.get_running_loop().time()
        assert (await rig.service.get_query_metadata(SELECT)).route.kind is RouteKind.KEYED
        assert asyncio.get_running_loop().time() - begun == pytest.approx(2.0)
        assert frozen.is_closed()
        assert rig.service.stats().lost == 1


@jumping
async def test_a_waiter_hurries_a_question_that_is_under_way():
    """A background question has 5 s; as soon as somebody waits behind it, 2 s more."""
    frozen = Explainer().keyed_by_first(SELECT, GLOBAL)
    hang = Hang()
    frozen._script["prepare", f"EXPLAIN {GLOBAL}"] = [hang]
    async with serving(frozen, Explainer().keyed_by_first(SELECT, GLOBAL)) as rig:
        rig.service.request_if_missing(GLOBAL)
        await hang.entered.wait()
        begun = asyncio.get_running_loop().time()
        assert await rig.service.get_query_metadata(SELECT) is not None
        assert asyncio.get_running_loop().time() - begun == pytest.approx(2.0)


@jumping
async def test_a_slow_question_is_not_a_deadly_one():
    """Two timeouts do not condemn a text, three do."""
    frozen = [Explainer().keyed_by_first(SELECT) for _ in range(3)]
    for explainer in frozen:
        explainer._script["prepare", f"EXPLAIN {SELECT}"] = [Hang()]
    async with serving(*frozen, Explainer().keyed_by_first(SELECT)) as rig:
        for _ in range(3):
            rig.service.request_if_missing(SELECT)
            await asyncio.sleep(20)
        assert rig.connect.calls == 3
        rig.service.request_if_missing(SELECT)
        assert await rig.service.get_query_metadata(SELECT) is None
        assert rig.connect.calls == 3


@jumping
async def test_no_node_answers_is_one_warning_and_is_not_tried_at_every_call(caplog):
    """The connection is tried again after a second, then after two …; statements run unrouted meanwhile."""
    async with serving(None) as rig:
        for _ in range(100):
            rig.service.request_if_missing(SELECT)
            await asyncio.sleep(0.1)
        assert 3 <= rig.connect.calls <= 5
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


@jumping
async def test_a_connect_that_raises_is_the_same_as_no_node():
    """Errors of `connect` never reach a caller."""
    async with serving(OSError("refused")) as rig:
        assert await rig.service.get_query_metadata(SELECT) is None


@jumping
async def test_start_opens_eagerly_and_no_node_is_no_failure(caplog):
    """`start` opens the connection; nothing reachable is a warning."""
    async with serving() as rig:
        await rig.service.start()
        assert rig.connect.calls == 1
        assert rig.service.connected
    async with serving(None) as rig:
        await rig.service.start()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_constructor_does_no_io():
    """No loop, no connection."""
    rig = Rig()
    assert rig.connect.calls == 0


# Memory


@jumping
async def test_the_oldest_entry_leaves_when_the_cache_is_full():
    """The size bounds the memory."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(4)]
    async with serving(Explainer().keyed_by_first(*queries), size=3) as rig:
        for query in queries:
            assert await rig.service.get_query_metadata(query) is not None
        assert rig.service.stats().cached == 3
        assert rig.service.request_if_missing(queries[0]) is None
        assert rig.service.request_if_missing(queries[3]) is not None


@jumping
async def test_an_evicted_text_is_asked_about_again():
    """A stale-plan error evicts its text; others stay."""
    other = "SELECT v FROM t WHERE id = $1"
    async with serving(Explainer().keyed_by_first(SELECT, other)) as rig:
        await rig.learned(SELECT)
        await rig.learned(other)
        rig.service.evict(SELECT)
        assert rig.service.request_if_missing(other) is not None
        assert rig.service.request_if_missing(SELECT) is None
        await asyncio.sleep(60)
        assert rig.service.request_if_missing(SELECT) is not None
        assert rig.first.prepared() == [SELECT, other, SELECT]


@jumping
async def test_what_was_learned_about_an_evicted_text_is_not_kept():
    """DDL during a dialogue: the answers may be of two schemas."""
    hang = Hang()
    async with serving() as rig:
        rig.first._script["prepare", f"EXPLAIN {SELECT}"] = [hang, ()]
        rig.service.request_if_missing(SELECT)
        await hang.entered.wait()
        rig.service.evict(SELECT)
        hang.release()
        await asyncio.sleep(1)
        assert rig.service.stats().cached == 0
        assert await rig.learned(SELECT) is not None


@jumping
async def test_all_that_is_known_or_being_asked_can_be_forgotten():
    """The number of buckets is another one: whoever waits gets his answer, but nothing is kept of it."""
    hang = Hang()
    other = "SELECT v FROM t WHERE id = $1"
    async with serving(Explainer().keyed_by_first(SELECT, other)) as rig:
        await rig.learned(other)
        rig.first._script["prepare", f"EXPLAIN {SELECT}"] = [hang, ()]
        rig.service.request_if_missing(SELECT)
        await hang.entered.wait()
        rig.service.forget_all()
        hang.release()
        await asyncio.sleep(1)
        assert rig.service.stats().cached == 0
        assert await rig.learned(other) is not None
        assert await rig.learned(SELECT) is not None


@jumping
async def test_resize_changes_cache_and_pending_limit_and_pending_ones_finish():
    """ValueError below 1; what is pending stays pending."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(6)]
    async with serving(Explainer().keyed_by_first(*queries), size=3) as rig:
        for query in queries[:3]:
            rig.service.request_if_missing(query)
        rig.service.resize(1)
        rig.service.request_if_missing(queries[3])
        assert rig.service.stats().pending == 3
        await asyncio.sleep(300)
        assert rig.first.prepared() == queries[:3]
        assert rig.service.stats().cached == 1
        rig.service.resize(50)
        for query in queries:
            rig.service.request_if_missing(query)
        await asyncio.sleep(600)
        assert rig.service.stats().cached == 6
        with pytest.raises(ValueError, match="at least 1"):
            rig.service.resize(0)


def test_a_cache_size_below_one_is_refused():
    """Before anything is opened."""
    with pytest.raises(ValueError, match="at least 1"):
        Rig(size=0)


# The budget


async def slow_answer(key):
    """A plan that takes a tenth of a second."""
    await asyncio.sleep(0.1)
    return plan(f"[{bucket_of((20, key))}]")


@jumping
async def test_background_questions_take_a_tenth_of_the_time():
    """After what may be saved up is used, a question that took t is followed by a pause of 9 t."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(20)]
    explainer = Explainer().keyed_by_first(*queries)
    for query in queries:
        explainer.when(f"EXPLAIN {query}", slow_answer)
    async with serving(explainer) as rig:
        begun = asyncio.get_running_loop().time()
        for query in queries:
            rig.service.request_if_missing(query)
        await asyncio.sleep(60)
        binds = len(explainer.binds())
        busy = binds * 0.1
        elapsed = asyncio.get_running_loop().time() - begun
        assert 0.09 <= (busy - 0.5) / elapsed <= 0.11


@jumping
async def test_a_crowd_of_texts_that_come_once_gets_a_small_part_of_the_time():
    """One of them that comes again is learned at the usual pace."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(300)]
    explainer = Explainer().keyed_by_first(*queries)
    for query in queries:
        explainer.when(f"EXPLAIN {query}", slow_answer)
    async with serving(explainer, size=1000) as rig:
        begun = asyncio.get_running_loop().time()
        for query in queries:
            rig.service.request_if_missing(query)
        await asyncio.sleep(6000)
        assert rig.service.stats().pending >= CROWD
        alone = len(explainer.binds())
        elapsed = asyncio.get_running_loop().time() - begun
        saved = SAVED_SECONDS * CROWD_SHARE / BACKGROUND_SHARE
        assert 0.9 * CROWD_SHARE <= (alone * 0.1 - saved) / elapsed <= 1.1 * CROWD_SHARE
        rig.service.request_if_missing(queries[-1])
        await asyncio.sleep(120)
        assert rig.service.request_if_missing(queries[-1]) is not None


@jumping
async def test_a_text_in_use_is_learned_however_many_come_between_its_calls():
    """Its first call left a mark that outlasts thousands that came once; the second one is asked about first."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(3000)]
    explainer = Explainer().keyed_by_first(SELECT, *queries)
    for query in queries:
        explainer.when(f"EXPLAIN {query}", slow_answer)
    async with serving(explainer, size=100) as rig:
        for query in (*queries[:1000], SELECT, *queries[1000:]):
            rig.service.request_if_missing(query)
        assert rig.service.stats().skipped > 2000
        assert await rig.learned(SELECT) is not None


@jumping
async def test_a_text_that_gave_way_is_asked_about_when_it_comes_again():
    """What came once gives way where too many wait; that it came is remembered."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(4)]
    explainer = Explainer().keyed_by_first(SELECT, *queries)
    for query in (SELECT, *queries):
        explainer.when(f"EXPLAIN {query}", slow_answer)
    async with serving(explainer, size=3) as rig:
        for query in (SELECT, *queries[:3], queries[3], queries[3]):
            rig.service.request_if_missing(query)
        assert rig.service.stats().pending == 3
        assert await rig.learned(SELECT) is not None


@jumping
async def test_checks_and_texts_that_came_once_take_turns():
    """Neither waits for the end of the others, which may never come."""
    desk = Desk()
    for number in range(3):
        desk.open(f"SELECT {number} FROM t WHERE id = $1")
        desk.put_check(Check(SELECT, (number,)))
    desk.open("SELECT 3 FROM t WHERE id = $1")
    order = [type(desk.next()) for _ in range(7)]
    assert order == [Job, Check, Job, Check, Job, Check, Job]
    assert desk.next() is None


async def answer_in_five_milliseconds(key):
    """A plan that takes as long."""
    await asyncio.sleep(0.005)
    return plan(f"[{bucket_of((20, key))}]")


@pytest.mark.parametrize(("calls", "learned"), [(1, False), (2, True)])
@jumping
async def test_texts_of_a_start_that_are_called_again_are_learned_at_the_usual_pace(calls, learned):
    """More of them than a crowd is, all at once: second calls take them out of it."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(CROWD + 30)]
    explainer = Explainer().keyed_by_first(*queries)
    for query in queries:
        explainer.when(f"EXPLAIN {query}", answer_in_five_milliseconds)
    async with serving(explainer, size=1000) as rig:
        for query in queries * calls:
            rig.service.request_if_missing(query)
        await asyncio.sleep(100)
        assert learned == all(rig.service.request_if_missing(query) is not None for query in queries)


@jumping
async def test_a_text_that_comes_again_passes_the_crowd_and_what_it_has_used():
    """A slow question about one of the crowd is paid for by the crowd; so is a check not left behind it."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(400)]
    explainer = Explainer().keyed_by_first(SELECT, *queries)

    slow = [2.0]

    async def slow_answer_at_first(key):
        await asyncio.sleep(slow.pop() if slow else 0)
        return plan(f"[{bucket_of((20, key))}]")

    explainer.when(f"EXPLAIN {queries[0]}", slow_answer_at_first)
    async with serving(explainer, size=1000) as rig:
        await rig.learned(SELECT)
        for query in queries:
            rig.service.request_if_missing(query)
        await asyncio.sleep(1)
        rig.service.request_if_missing(queries[-1])
        rig.service.check(SELECT, (1,))
        await asyncio.sleep(60)
        assert rig.service.request_if_missing(queries[-1]) is not None
        assert rig.service.stats().checks == 1
        assert rig.service.stats().pending >= CROWD
        await rig.service.close()
        assert not rig.service.stats().pending


@jumping
async def test_a_waiter_is_not_held_back_by_the_budget():
    """Texts in the background wait for their turn, a caller does not."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(20)]
    explainer = Explainer().keyed_by_first(*queries, SELECT)
    for query in (*queries, SELECT):
        explainer.when(f"EXPLAIN {query}", slow_answer)
    async with serving(explainer) as rig:
        for query in queries:
            rig.service.request_if_missing(query)
        await asyncio.sleep(30)
        begun = asyncio.get_running_loop().time()
        assert await rig.service.get_query_metadata(SELECT) is not None
        assert asyncio.get_running_loop().time() - begun < 5
        assert rig.service.stats().pending > 5


# Checks


async def checked(rig, calls, *, a_second):
    """The keys that are checked of calls of a text that is learned, which are offered as the engine does it."""
    await rig.learned(SELECT)
    before, due = len(rig.first.binds()), 1
    for key in range(calls):
        due -= 1
        if due == 0:
            due = rig.service.check_later(SELECT, (key,))
        if key % 10 == 0:
            await asyncio.sleep(10 / a_second)
    return [asked.args[0] for asked in rig.first.binds()[before:]]


@jumping
async def test_a_text_s_first_calls_are_checked_then_samples():
    """The first 20 real argument sets are compared with the server's answer, later about one in a thousand."""
    clock = QuestionClock(lambda: asyncio.get_running_loop().time(), share=1.0)
    async with serving(clock=clock) as rig:
        keys = await checked(rig, 20_000, a_second=200)
        assert keys[:20] == list(range(20))
        assert 8 <= len(keys) - 20 <= 40
        assert rig.service.stats().checks == len(keys)
        assert rig.service.stats().differences == 0


@jumping
async def test_a_text_that_is_called_often_is_checked_once_a_second_at_most():
    """After its first calls: ten thousand calls a second need no more checks than two thousand."""
    clock = QuestionClock(lambda: asyncio.get_running_loop().time(), share=1.0)
    async with serving(clock=clock) as rig:
        assert 15 <= len(await checked(rig, 200_000, a_second=10_000)) - 20 <= 21
        rig.service.check(SELECT, (1,))  # a node has refused it: that is looked into at once
        before = len(rig.first.binds())
        await settle(40)
        assert len(rig.first.binds()) == before + 1


@jumping
async def test_a_difference_that_ddl_explains_is_learned_afresh(caplog):
    """The table was made anew with another key: the fresh route agrees with the call and is kept."""
    pair = "SELECT * FROM t WHERE a = $1 AND b = $2"
    async with serving(Explainer().knows(pair, (20, 20), lambda a, b: bucket_of((20, a)))) as rig:
        assert (await rig.learned(pair)).route.keys == ((KeyPart(0, 20),),)
        rig.first.knows(pair, (20, 20), lambda a, b: bucket_of((20, b)))
        rig.service.check_later(pair, (5, 6))
        await asyncio.sleep(60)
        assert rig.service.request_if_missing(pair).route.keys == ((KeyPart(1, 20),),)
        assert rig.service.stats().differences == 1
        assert caplog.records == []


@jumping
async def test_a_difference_that_stays_makes_the_text_not_keyed_and_is_logged_once(caplog):
    """One fresh attempt; if it differs as well, the text is not routed by key any more."""
    odd = Explainer().knows(SELECT, (20,), lambda key: 77 if key == 4242424242 else bucket_of((20, key)))
    async with serving(odd) as rig:
        assert (await rig.learned(SELECT)).route.kind is RouteKind.KEYED
        rig.service.check_later(SELECT, (4242424242,))
        await asyncio.sleep(60)
        found = rig.service.request_if_missing(SELECT)
        assert found.route.kind is RouteKind.NOT_KEYED
        rig.service.check_later(SELECT, (4242424242,))
        await asyncio.sleep(60)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "4242424242" not in caplog.text
        assert odd.prepared().count(SELECT) == 4


@jumping
async def test_a_check_opens_no_connection():
    """Checking is never worth a reconnect, which would clear the cache."""
    async with serving() as rig:
        known = await rig.learned(SELECT)
        rig.first.break_off()
        rig.service.check_later(SELECT, (1,))
        await asyncio.sleep(60)
        assert rig.connect.calls == 1
        assert rig.service.request_if_missing(SELECT) is known


@jumping
async def test_a_call_with_arguments_that_cannot_be_sent_is_no_difference():
    """What asyncpg refuses to encode says nothing about the route, and costs no connection."""
    async with serving() as rig:
        await rig.learned(SELECT)
        rig.first.when(f"EXPLAIN {SELECT}", UnfitArgumentError("invalid input for query argument $1"))
        rig.service.check_later(SELECT, ("x",))
        await asyncio.sleep(60)
        assert rig.service.stats().differences == 0
        assert rig.service.connected


# A keyed SELECT for leader questions


@jumping
async def test_a_learned_select_and_a_key_somebody_owns():
    """Random keys are tried until one lies in a wanted bucket; texts that write are never used."""
    explainer = Explainer().keyed_by_first(SELECT)
    explainer.knows(INSERT, (20, 25), lambda key, _: bucket_of((20, key)), dk_meta=[(1, 20)])
    async with serving(explainer) as rig:
        assert rig.service.keyed_select(lambda tier, bucket: True) is None
        await rig.learned(INSERT)
        assert rig.service.keyed_select(lambda tier, bucket: True) is None
        await rig.learned(SELECT)
        for wanted in (range(1, 1501), range(1501, 3001)):
            text, args = rig.service.keyed_select(lambda tier, bucket, wanted=wanted: bucket in wanted)
            assert text == SELECT
            assert bucket_of((20, args[0])) in wanted
        assert rig.service.keyed_select(lambda tier, bucket: False) is None


@jumping
async def test_a_keyed_select_of_the_right_tier_is_chosen():
    """A replicaset owns buckets of its own tier only, so not every keyed SELECT can ask about it."""
    cold = "SELECT * FROM c WHERE id = $1"
    explainer = Explainer().keyed_by_first(SELECT)
    explainer.knows(cold, (20,), lambda key: bucket_of((20, key), count=10), tier="cold")
    async with serving(explainer, counts={"default": BUCKETS, "cold": 10}) as rig:
        await rig.learned(SELECT)
        await rig.learned(cold)
        assert rig.service.keyed_select(lambda tier, bucket: tier == "default")[0] == SELECT
        assert rig.service.keyed_select(lambda tier, bucket: tier == "cold")[0] == cold


# The end


@jumping
async def test_close_waits_for_pending_discoveries_and_clears_the_cache():
    """`close` finishes what is pending without pauses; afterwards every request answers None."""
    queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(5)]
    rig = Rig(Explainer().keyed_by_first(*queries))
    for query in queries:
        rig.service.request_if_missing(query)
    waiting = asyncio.create_task(rig.service.get_query_metadata(queries[0]))
    await settle(2)
    await rig.service.close()
    assert (await waiting).route.kind is RouteKind.KEYED
    assert rig.first.prepared() == queries
    assert rig.first.closed_politely
    assert rig.service.stats().cached == 0
    assert rig.service.request_if_missing(queries[0]) is None
    assert await rig.service.get_query_metadata(queries[0]) is None
    assert rig.connect.calls == 1


@jumping
async def test_close_does_not_wait_for_a_frozen_node():
    """One hurried deadline, then the rest is answered None and nothing is opened again."""
    frozen = Explainer().keyed_by_first(SELECT, GLOBAL)
    hang = Hang()
    frozen._script["prepare", f"EXPLAIN {SELECT}"] = [hang]
    rig = Rig(frozen, Explainer().keyed_by_first(SELECT, GLOBAL))
    rig.service.request_if_missing(SELECT)
    rig.service.request_if_missing(GLOBAL)
    await hang.entered.wait()
    begun = asyncio.get_running_loop().time()
    await rig.service.close()
    assert asyncio.get_running_loop().time() - begun <= 2.01
    assert rig.connect.calls == 1


@jumping
async def test_stop_cancels_pending_discoveries():
    """Whoever waits is answered None; the connection is closed."""
    hang = Hang()
    rig = Rig()
    rig.first._script["prepare", f"EXPLAIN {SELECT}"] = [hang]
    waiting = asyncio.create_task(rig.service.get_query_metadata(SELECT))
    await hang.entered.wait()
    await rig.service.stop()
    assert await waiting is None
    assert rig.first.is_closed()
    await rig.service.stop()


@jumping
async def test_terminate_ends_everything_at_once():
    """Synchronous: waiters are answered None, the connection is dropped, nothing is left behind."""
    hang = Hang()
    rig = Rig()
    rig.first._script["prepare", f"EXPLAIN {SELECT}"] = [hang]
    waiting = asyncio.create_task(rig.service.get_query_metadata(SELECT))
    await hang.entered.wait()
    rig.service.terminate()
    assert rig.first.is_closed()
    assert await waiting is None
    await settle()
    assert rig.service.request_if_missing(SELECT) is None


@jumping
async def test_a_discovery_in_flight_may_neither_reopen_nor_fill_after_the_end():
    """An answer that comes too late changes nothing, and a connection that opens too late is dropped."""
    late = Explainer().keyed_by_first(SELECT)
    opening = asyncio.Event()

    async def connect(on_notice):
        await opening.wait()
        return late

    service = QueryMetadataService(connect, 10, dialect=PicodataDialect(), bucket_counts=lambda: {"default": BUCKETS})
    starting = asyncio.create_task(service.start())
    service.request_if_missing(SELECT)
    await settle()
    service.terminate()
    opening.set()
    await starting
    assert late.is_closed()
    assert service.stats().cached == 0
    assert not service.connected


@jumping
async def test_a_cancelled_close_terminates():
    """Whoever gives up waiting leaves nothing running."""
    hang = Hang()
    rig = Rig()
    rig.first._script["prepare", f"EXPLAIN {SELECT}"] = [hang]
    rig.service.request_if_missing(SELECT)
    await hang.entered.wait()
    closing = asyncio.create_task(rig.service.close())
    await settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert rig.first.is_closed()
    await settle()


@jumping
async def test_a_mistake_of_ours_costs_one_warning_and_the_service_goes_on(caplog):
    """An unexpected exception in a dialogue ends that dialogue only."""
    broken = Explainer().keyed_by_first(SELECT, GLOBAL)
    broken._script["prepare", f"EXPLAIN {GLOBAL}"] = [ZeroDivisionError("ours")]
    async with serving(broken, Explainer().keyed_by_first(SELECT)) as rig:
        assert await rig.service.get_query_metadata(GLOBAL) is None
        assert await rig.service.get_query_metadata(SELECT) is not None
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.fixture(autouse=True)
def _record_from_info(caplog) -> None:
    """Debug lines are not counted as log lines by these tests."""
    caplog.set_level(logging.INFO, "picopyn")


@jumping
async def test_a_cancellation_nobody_asked_for_costs_the_connection_only():
    """A connection may hand an old cancellation to a new request; nobody waits for ever because of it."""
    haunted = Explainer().keyed_by_first(SELECT, GLOBAL)
    haunted._script["prepare", f"EXPLAIN {SELECT}"] = [asyncio.CancelledError()]
    async with serving(haunted, Explainer().keyed_by_first(SELECT, GLOBAL)) as rig:
        assert await rig.service.get_query_metadata(SELECT) is None
        assert await rig.service.get_query_metadata(GLOBAL) is not None
        assert haunted.is_closed()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_breaks_in_whatever_order(seed):
    """Every request is answered, every connection closed, no task left, the bounds hold."""

    @jumping
    async def play():
        rng = random.Random(seed)
        queries = [f"SELECT {n} FROM t WHERE id = $1" for n in range(8)]
        opened = []

        def outcome(key):
            what = rng.random()
            if what < 0.05:
                return ConnectionResetError("reset")
            if what < 0.1:
                return ServerError("sbroad: space metadata for table: t not found")
            return Hang() if what < 0.12 else bucket_of((20, key))

        async def connect(on_notice):
            await asyncio.sleep(rng.choice((0, 0.1)))
            if rng.random() < 0.2:
                return None
            connection = Explainer(on_notice)
            for query in queries:
                connection.knows(query, (20,), outcome)
            opened.append(connection)
            return connection

        service = QueryMetadataService(
            connect,
            5,
            dialect=PicodataDialect(),
            bucket_counts=lambda: {"default": BUCKETS},
            now=lambda: asyncio.get_running_loop().time(),
            rng=rng,
        )
        waiting = []
        for _ in range(150):
            action, query = rng.random(), rng.choice(queries)
            if action < 0.35:
                service.request_if_missing(query)
            elif action < 0.55:
                waiting.append(asyncio.create_task(service.get_query_metadata(query)))
            elif action < 0.65:
                service.check_later(query, (rng.randint(1, 10**6),))
            elif action < 0.7:
                service.evict(query)
            elif action < 0.75 and opened:
                opened[-1].break_off()
            elif action < 0.8 and waiting:
                rng.choice(waiting).cancel()
            elif action < 0.83:
                service.resize(rng.randint(1, 8))
            else:
                await asyncio.sleep(rng.choice((0, 0.01, 1.0, 20.0)))
            assert service.stats().cached <= 8
        await rng.choice((service.close, service.stop))()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert not [each for each in outcomes if isinstance(each, Exception)]
        assert all(connection.is_closed() for connection in opened)
        assert service.stats().pending == service.stats().cached == 0
        await settle()

    play()
