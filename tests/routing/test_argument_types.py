"""What is refused before asyncpg sees it, is what asyncpg refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picopyn.routing.argument_types import is_refused
from tests.dialects.sent_bytes import SentBytes
from tests.dialects.test_bucket_hash import ANYTHING, NUMBERS, OIDS, OTHERS, TEXTS


@pytest.fixture(scope="module")
def sent_bytes() -> Iterator[SentBytes]:
    """A recording server with an asyncpg connection."""
    server = SentBytes()
    yield server
    server.close()


def asyncpg_refuses(sent: SentBytes, oid: int, value: Any) -> bool:
    """What asyncpg itself says."""
    try:
        sent.of(oid, value)
    except asyncpg.DataError:
        return True
    return False


@pytest.mark.parametrize("oid", OIDS)
def test_what_is_refused_is_refused_by_asyncpg(sent_bytes: SentBytes, oid: int) -> None:
    """Nothing that it would send is refused, and nothing that it would not is let through."""
    for value in (*NUMBERS, *TEXTS, *OTHERS):
        assert is_refused(oid, value) == asyncpg_refuses(sent_bytes, oid, value), repr(value)


@given(oid=st.sampled_from(OIDS), value=ANYTHING)
@settings(max_examples=200, deadline=None)
def test_nothing_that_asyncpg_sends_is_refused(sent_bytes: SentBytes, oid: int, value: Any) -> None:
    """For every type and value."""
    assert not is_refused(oid, value) or asyncpg_refuses(sent_bytes, oid, value)


def test_of_other_types_nothing_is_said() -> None:
    """The last word about them is asyncpg's."""
    assert not is_refused(17, "no bytes")
    assert not is_refused(20, None)
