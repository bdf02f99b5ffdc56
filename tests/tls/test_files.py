"""From files to the one context of a pool, and what is told when they are not what they should be."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from picopyn.asynchronous import Pool, tls
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.postgres import PostgresDialect
from picopyn.errors import ConfigError
from picopyn.settings import PoolSettings
from picopyn.testing import FaultProxy
from tests.tls.certificates import Authority
from tests.tls.conftest import Dial


def prepared(**settings: Any) -> ssl.SSLContext:
    """The context for some settings."""
    context = tls.prepare(PoolSettings.from_dsn("postgresql://h", **settings)).context
    assert context is not None
    return context


def problems(**settings: Any) -> tuple[str, ...]:
    """What a pool says about some settings when it is made."""
    with pytest.raises(ConfigError) as caught:
        Pool("postgresql://u@h", **settings)
    return caught.value.problems


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_every_file_that_is_missing_is_named_in_one_error() -> None:
    """When the pool is made; no socket was opened."""
    found = problems(sslmode="verify-full", sslrootcert="/no/ca.crt", sslcrl="/no/crl", sslcert="/no/c", sslkey="/no/k")
    assert found == (
        "sslrootcert '/no/ca.crt' cannot be read: No such file or directory",
        "sslcrl '/no/crl' cannot be read: No such file or directory",
        "sslcert '/no/c' cannot be read: No such file or directory",
        "sslkey '/no/k' cannot be read: No such file or directory",
    )


def test_a_word_that_verifies_needs_authorities() -> None:
    """Nothing is trusted in silence."""
    (problem,) = problems(sslmode="verify-full")
    assert problem == ("sslmode=verify-full needs the authorities to trust: sslrootcert=<file>, or sslrootcert=system")


def test_files_with_something_else_in_them(tmp_path: Path, authority: Authority) -> None:
    """Told by word and file."""
    wrong = tmp_path / "wrong"
    wrong.write_text("this is no certificate")
    issued = authority.issue()
    assert problems(sslrootcert=wrong) == (f"sslrootcert '{wrong}' is not a certificate in PEM format",)
    assert problems(sslrootcert=authority.root, sslcrl=wrong) == (
        f"sslcrl '{wrong}' is not a revocation list in PEM format",
    )
    assert "hold no certificate with its key" in problems(sslcert=wrong, sslkey=issued.key)[0]
    assert "hold no certificate with its key" in problems(sslcert=issued.cert)[0]
    assert problems(sslcert=issued.cert, sslkey=authority.issue().key)[0].endswith(f"sslcert '{issued.cert}'")


def test_a_locked_key_opens_with_its_password_and_never_asks(authority: Authority) -> None:
    """Missing and wrong passwords are told apart, and not shown."""
    locked = authority.issue(password="S3cr3t-key")
    files = {"sslcert": locked.cert, "sslkey": locked.key}
    prepared(**files, sslpassword="S3cr3t-key")
    assert problems(**files) == (f"sslkey '{locked.key}' needs an sslpassword",)
    assert problems(**files, sslpassword="S3cr3t-no") == (f"sslpassword does not open sslkey '{locked.key}'",)


def test_the_context_is_as_strict_as_the_word(authority: Authority) -> None:
    """Chain, name, versions."""
    assert prepared().verify_mode is ssl.CERT_NONE
    chain = prepared(sslmode="verify-ca", sslrootcert=authority.root)
    assert (chain.verify_mode, chain.check_hostname) == (ssl.CERT_REQUIRED, False)
    full = prepared(sslmode="verify-full", sslrootcert=authority.root, ssl_max_protocol_version="TLSv1.2")
    assert (full.verify_mode, full.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (full.minimum_version, full.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    assert prepared(sslrootcert="system").check_hostname


def test_files_at_home_are_found(home: Path, authority: Authority) -> None:
    """`~/.postgresql/root.crt` serves `verify-full`; `~` in a written name is the home."""
    (home / ".postgresql").mkdir()
    (home / ".postgresql" / "root.crt").write_bytes(authority.root.read_bytes())
    assert prepared(sslmode="verify-full").cert_store_stats()["x509_ca"] == 1
    assert prepared(sslmode="require").verify_mode is ssl.CERT_REQUIRED
    assert prepared().verify_mode is ssl.CERT_NONE
    assert prepared(sslrootcert="~/.postgresql/root.crt").verify_mode is ssl.CERT_REQUIRED


def test_without_tls_no_file_is_read() -> None:
    """Also when the names are given."""
    security = tls.prepare(PoolSettings.from_dsn("postgresql://h?sslmode=disable&sslrootcert=/no"))
    assert (security.plan.may_encrypt, security.context) == (False, None)


async def test_a_pool_has_one_context(
    proxy: Any, dial: Dial, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made with the pool, not with each connection: that would cost more than the connection."""
    front: FaultProxy = proxy(authority.issue(addresses=["127.0.0.1"]).server_side())
    pool = Pool(f"postgresql://u@127.0.0.1:{front.port}", sslmode="verify-full", sslrootcert=authority.root)
    made: list[object] = []
    monkeypatch.setattr(tls.ssl, "SSLContext", lambda *_: made.append(1))
    for _ in range(3):
        doorway = Dialer(pool.settings, PostgresDialect(), security=pool._security)._doorway(tls.Attempt.TLS)
        assert doorway is not None
        assert doorway._context is pool._security.context
    assert made == []
