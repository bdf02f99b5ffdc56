"""The bounded memory of statement metadata, and which errors mean that a statement is outdated."""

from __future__ import annotations

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.query_metadata import (
    PreparedStatementMetadata,
    QueryMetadataCache,
    is_stmt_invalidated_error,
)


def metadata(query: str) -> PreparedStatementMetadata:
    """Some metadata."""
    return PreparedStatementMetadata(query, "default", ((1, 20),))


def test_metadata_is_kept_by_exact_text() -> None:
    """A text is known exactly as it was prepared; another spelling is another text."""
    cache = QueryMetadataCache(10)
    cache.set("SELECT 1", metadata("SELECT 1"))
    assert cache.get("SELECT 1") == metadata("SELECT 1")
    assert cache.get("select 1") is None
    assert not cache.is_known_without_metadata("SELECT 1")


def test_a_text_without_metadata_is_remembered() -> None:
    """What the server gives nothing for is not asked again, until it is evicted."""
    cache = QueryMetadataCache(10)
    assert not cache.is_known_without_metadata("x")
    cache.set_no_metadata("x")
    assert cache.is_known_without_metadata("x")
    assert cache.get("x") is None
    assert cache.evict("x")
    assert not cache.is_known_without_metadata("x")
    assert not cache.evict("x")


def test_a_later_answer_replaces_the_earlier() -> None:
    """A text has one entry: metadata, or the knowledge that there is none."""
    cache = QueryMetadataCache(10)
    cache.set_no_metadata("x")
    cache.set("x", metadata("x"))
    assert cache.get("x") is not None
    assert not cache.is_known_without_metadata("x")
    cache.set_no_metadata("x")
    assert cache.get("x") is None
    assert len(cache) == 1


def test_the_oldest_entry_leaves_when_the_cache_is_full() -> None:
    """The cache forgets in the order in which it learned; looking up keeps nothing alive."""
    cache = QueryMetadataCache(2)
    cache.set("a", metadata("a"))
    cache.set_no_metadata("b")
    assert cache.get("a") is not None
    cache.set("c", metadata("c"))
    assert list(cache) == ["b", "c"]


def test_what_is_in_use_is_not_crowded_out() -> None:
    """A text that was used since it was asked last gets another round; when all are, the oldest leaves all the same."""
    cache = QueryMetadataCache(3)
    asked = []
    used = {"hot"}

    def in_use(query: str) -> bool:
        asked.append(query)
        return query in used

    cache.in_use = in_use
    cache.set("hot", metadata("hot"))
    for number in range(1000):
        cache.set(f"once {number}", metadata("once"))
        assert cache.get("hot") is not None
        assert len(cache) <= 3
    assert len(asked) <= 2 * 1000
    used |= {"a", "b", "c", "once 999", "once 998"}
    for query in "abc":
        cache.set(query, metadata(query))
    assert len(cache) == 3
    assert cache.get("c") is not None


def test_shrinking_forgets_the_oldest() -> None:
    """`resize` works at once in both directions."""
    cache = QueryMetadataCache(4)
    for query in "abcd":
        cache.set(query, metadata(query))
    cache.resize(2)
    assert list(cache) == ["c", "d"]
    assert cache.size == 2
    cache.resize(3)
    cache.set("e", metadata("e"))
    assert list(cache) == ["c", "d", "e"]
    cache.clear()
    assert len(cache) == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_cache_needs_room(size: int) -> None:
    """A size below one is refused and changes nothing."""
    with pytest.raises(ValueError, match="at least 1"):
        QueryMetadataCache(size)
    cache = QueryMetadataCache(3)
    with pytest.raises(ValueError, match="at least 1"):
        cache.resize(size)
    assert cache.size == 3


@given(
    size=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from("sne"), st.sampled_from("abcdef")), max_size=40),
)
def test_the_cache_keeps_the_newest_texts(size: int, steps: list[tuple[str, str]]) -> None:
    """Whatever happens, the newest `size` texts are known and no others."""
    cache, model = QueryMetadataCache(size), list[str]()
    for step, query in steps:
        model = [text for text in model if text != query]
        if step == "e":
            cache.evict(query)
            continue
        if step == "s":
            cache.set(query, metadata(query))
        else:
            cache.set_no_metadata(query)
        model = [*model, query][-size:]
    assert list(cache) == model


def server_error(sqlstate: str, message: str) -> asyncpg.PostgresError:
    """An error as asyncpg makes it of the server's fields."""
    return asyncpg.PostgresError.new({"C": sqlstate, "M": message, "S": "ERROR"})


@pytest.mark.parametrize(
    ("sqlstate", "message", "outdated"),
    [
        ("42999", "prepared statement  has been invalidated", True),
        ("42999", "anything", True),
        ("XX000", "sbroad: storage schema version different from router", True),
        ("XX000", "sbroad: space metadata for table: inv not found", True),
        (
            "XX000",
            'sbroad: box error: ProcLua: {"message":"prepared statement x has been invalidated"}',
            True,
        ),
        ("XX000", "sbroad: rule parsing error", False),
        ("26000", 'prepared statement "x" does not exist', False),
        ("23505", "sbroad: TupleFound", False),
    ],
)
def test_an_outdated_statement_is_recognised(sqlstate: str, message: str, outdated: bool) -> None:
    """SQLSTATE 42999, or one of the recorded texts, means: prepare again."""
    assert is_stmt_invalidated_error(server_error(sqlstate, message)) is outdated


def test_causes_and_contexts_count() -> None:
    """An outdated statement is recognised behind the errors it led to, also when they form a ring."""
    inner = server_error("42999", "prepared statement  has been invalidated")
    middle, outer = RuntimeError("middle"), RuntimeError("outer")
    middle.__context__ = inner
    outer.__cause__ = middle
    assert is_stmt_invalidated_error(outer)
    ring = RuntimeError("ring")
    ring.__context__, middle.__context__ = middle, ring
    assert not is_stmt_invalidated_error(ring)
    assert not is_stmt_invalidated_error(None)
