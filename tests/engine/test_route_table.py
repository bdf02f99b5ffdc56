"""Compiled routes: as long-lived as the metadata they were made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Lock

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.engine.route_table import CompiledRoute, RouteTable
from picopyn.engine.tallies import Tallies
from picopyn.query_metadata import PreparedStatementMetadata, QueryMetadataCache
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute

TEXT = "SELECT v FROM t WHERE id = $1"
KEYED = StatementRoute(RouteKind.KEYED, "default", ((KeyPart(0, 20),),))


def metadata(route: StatementRoute | None = KEYED) -> PreparedStatementMetadata:
    return PreparedStatementMetadata(TEXT, "default", (), (20,), route)


class Cached:
    """A metadata source that is nothing but its cache."""

    def __init__(self) -> None:
        self.cache = QueryMetadataCache(2)

    def request_if_missing(self, query: str) -> PreparedStatementMetadata | None:
        return self.cache.get(query)

    def tell_forgotten(self, listener: Callable[[str | None], None], in_use: Callable[[str], bool]) -> None:
        self.cache.on_forgotten = listener
        self.cache.in_use = in_use


def table(counts: dict[str, int] | None = None) -> tuple[RouteTable, QueryMetadataCache]:
    source = Cached()
    known = {"default": 3000} if counts is None else counts
    return RouteTable(source, PICODATA_KEY_HASH, lambda: known, Tallies(Lock(), 10), defaultdict(int)), source.cache


def test_a_route_is_compiled_once_and_gives_the_bucket() -> None:
    """The recorded bucket of 1 is 1934."""
    routes, cache = table()
    assert routes.get(TEXT) is None
    cache.set(TEXT, metadata())
    compiled = routes.get(TEXT)
    assert compiled is not None
    assert compiled.limit
    assert compiled.bucket((1,)) == 1934
    assert routes.get(TEXT) is compiled


def test_a_route_leaves_with_its_metadata() -> None:
    """Evicted, replaced, pushed out by newer texts, or cleared."""
    routes, cache = table()
    for drop in (
        lambda: cache.evict(TEXT),
        lambda: cache.set(TEXT, metadata(StatementRoute(RouteKind.NOT_KEYED, "default"))),
        lambda: [cache.set(other, metadata()) for other in ("a", "b")],
        cache.clear,
    ):
        cache.set(TEXT, metadata())
        before = routes.get(TEXT)
        assert before is not None
        drop()
        assert routes.get(TEXT) is not before


def count_one(compiled: CompiledRoute) -> None:
    """A call went the way of its route."""
    compiled.calls += 1


def count_one_otherwise(compiled: CompiledRoute) -> None:
    """A call had no key."""
    compiled.tally[compiled.otherwise] += 1


def test_a_text_is_in_use_when_it_was_called_since_that_was_asked() -> None:
    """So that a flood of texts that are called once does not crowd it out."""
    routes, cache = table()
    cache.set(TEXT, metadata())
    assert not routes.in_use(TEXT)
    compiled = routes.get(TEXT)
    assert compiled is not None
    assert not routes.in_use(TEXT)
    for count in (count_one, lambda compiled: compiled.book(), count_one_otherwise):
        count(compiled)
        assert routes.in_use(TEXT) is (count in (count_one, count_one_otherwise))
        assert not routes.in_use(TEXT)


def test_a_tier_whose_buckets_are_not_counted_yet_is_looked_at_again() -> None:
    """Nothing is kept that was made without knowing the number of buckets."""
    counts: dict[str, int] = {}
    routes, cache = table(counts)
    cache.set(TEXT, metadata())
    early = routes.get(TEXT)
    assert early is not None
    assert not early.limit
    counts["default"] = 3000
    later = routes.get(TEXT)
    assert later is not None
    assert later.bucket is not None


def test_every_kind_of_route_is_compiled() -> None:
    """A key, a constant, a set; or nothing to compute."""
    routes, cache = table()
    kinds = {
        "constant": StatementRoute(RouteKind.CONSTANT, "default", buckets=(7,)),
        "set": StatementRoute(RouteKind.KEY_SET, "default", ((KeyPart(0, 20),), (KeyPart(1, 20),)), (9,)),
        "any": StatementRoute(RouteKind.ANY_NODE),
        "none": StatementRoute(RouteKind.NOT_KEYED, "default"),
    }
    compiled = {}
    for name, route in kinds.items():
        cache.set(TEXT, metadata(route))
        compiled[name] = routes.get(TEXT)
    assert compiled["constant"].bucket(()) == 7
    assert compiled["set"].buckets((1, 2)) == {1934, 1410, 9}
    assert (compiled["any"].limit, compiled["any"].bucket(()), compiled["none"].buckets) == (0, None, None)


def test_the_calls_of_a_route_are_told_however_many_other_texts_there_are() -> None:
    """Its tally is not dropped while it counts there."""
    routes, cache = table()
    cache.set(TEXT, metadata())
    compiled = routes.get(TEXT)
    assert compiled is not None
    for number in range(100):
        routes.tallies.of(f"text {number}")["unlearned"] += 1
    compiled.calls += 1
    assert routes.tallies.all()[TEXT] == routes.tallies.all()[TEXT] == {"keyed": 1}
    compiled.calls += 2
    routes.forget(TEXT)
    assert routes.tallies.all()[TEXT] == {"keyed": 3}
