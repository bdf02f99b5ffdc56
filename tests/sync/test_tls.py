"""Each `sslmode` for connections that block: the table of the manual, and what is theirs alone."""

from __future__ import annotations

import pytest

from picopyn.errors import NoNodeAvailable
from tests.sync.conftest import Open
from tests.tls.certificates import Authority
from tests.tls.test_connections import CASES, PLAIN, TLS, Proxy, front_of


@pytest.mark.parametrize(("kind", "mode", "rooted", "outcome"), CASES)
def test_each_word_with_each_server(
    kind: str, mode: str, rooted: int, outcome: str,
    proxy: Proxy, opened: Open, authority: Authority, stranger: Authority,
) -> None:  # fmt: skip
    """As for asynchronous connections. A failed verification never ends in plain text."""
    front = front_of(kind, authority, stranger)
    settings = {"sslmode": mode, **({"sslrootcert": authority.root} if rooted else {})}
    if outcome in (PLAIN, TLS):
        connection = opened(proxy(front), **settings)
        assert connection.fetchval("SELECT $1::int * 7", 6) == 42
        assert (connection._wire.stream.get_extra_info("ssl_object") is not None) is (outcome == TLS)
        assert front.openings[-1] == outcome
    else:
        with pytest.raises(NoNodeAvailable, match=outcome):
            opened(proxy(front), **settings)
        assert not {PLAIN, TLS} & set(front.openings)


def test_large_answers_and_a_polite_end(proxy: Proxy, opened: Open, authority: Authority, stranger: Authority) -> None:
    """Records that come in pieces are put together; the goodbye is understood."""
    connection = opened(proxy(front_of("good", authority, stranger)), sslmode="require")
    for size in (1, 16_384, 100_000, 10_000_000):
        assert connection.fetchval("SELECT length($1)", "x" * size) == size
        assert connection.fetchval("SELECT repeat('x', $1)", size) == "x" * size
    connection.close()
    assert connection.is_closed()


def test_a_request_is_cancelled_under_tls(
    proxy: Proxy, opened: Open, authority: Authority, stranger: Authority
) -> None:
    """The server is told on a second connection, encrypted like the first."""
    front = front_of("good", authority, stranger)
    connection = opened(proxy(front), sslmode="verify-full", sslrootcert=authority.root)
    with pytest.raises(TimeoutError):
        connection.fetchval("SELECT pg_sleep(60)", timeout=0.05)
    assert connection.fetchval("SELECT $1::int", 1) == 1
    assert "encrypted CancelRequest" in front.openings
