"""What the TLS words mean, decided without a file or a socket."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from picopyn.dsn import Endpoint
from picopyn.errors import ConfigError
from picopyn.settings import PoolSettings
from picopyn.tls import OLDEST, SSL_MODES, SYSTEM, Attempt, TlsPlan, Verify, plan

HOSTS = (Endpoint("h"),)
AT_HOME = {"sslrootcert": "/h/root.crt", "sslcrl": "/h/root.crl", "sslcert": "/h/p.crt", "sslkey": "/h/p.key"}


def planned(at_home: dict[str, str] | None = None, /, **settings: Any) -> TlsPlan:
    """The plan for some settings, which must lack nothing."""
    decided, problems = plan(PoolSettings(endpoints=HOSTS, **settings), at_home or {})
    assert problems == []
    return decided


def lacks(at_home: dict[str, str] | None = None, /, **settings: Any) -> list[str]:
    """What is missing for some settings."""
    return plan(PoolSettings(endpoints=HOSTS, **settings), at_home or {})[1]


def refused(dsn: str = "postgresql://h", **settings: Any) -> tuple[str, ...]:
    """The problems of settings that contradict themselves."""
    with pytest.raises(ConfigError) as caught:
        PoolSettings.from_dsn(dsn, **settings)
    return caught.value.problems


@pytest.mark.parametrize(
    ("word", "attempts", "verify"),
    [
        ("disable", (Attempt.PLAIN,), None),
        ("allow", (Attempt.PLAIN, Attempt.TLS), Verify.NOTHING),
        ("prefer", (Attempt.OFFERED,), Verify.NOTHING),
        ("require", (Attempt.TLS,), Verify.NOTHING),
    ],
)
def test_the_words_that_verify_nothing(word: str, attempts: tuple[Attempt, ...], verify: Verify | None) -> None:
    """They differ in the ways they try; only `allow` has a second one."""
    decided = planned(ssl=word)
    assert (decided.attempts, decided.verify) == (attempts, verify)
    assert decided.said == f"sslmode={word}"


@pytest.mark.parametrize("word", ["allow", "prefer", "require", "verify-ca"])
def test_a_root_certificate_is_verified_against_under_any_word(word: str) -> None:
    """As in libpq; `require` with a root certificate is `verify-ca`."""
    decided = planned(ssl=word, sslrootcert="ca.crt")
    assert (decided.verify, decided.root) == (Verify.CHAIN, "ca.crt")
    assert planned(ssl="verify-full", sslrootcert="ca.crt").verify is Verify.NAME


def test_prefer_is_what_nobody_asked_for() -> None:
    """`None` is `prefer`, `True` is `verify-full` with the system's authorities, `False` is `disable`."""
    assert planned().said == "sslmode=prefer"
    assert (planned(ssl=True).said, planned(ssl=True).root) == ("sslmode=verify-full", SYSTEM)
    assert planned(ssl=True, sslrootcert="ca.crt").root == "ca.crt"
    assert not planned(ssl=False).may_encrypt


def test_the_systems_authorities_need_the_name_checked() -> None:
    """`sslrootcert=system` turns `prefer` into `verify-full`, and refuses a weaker word that was written."""
    assert planned(sslrootcert="system").verify is Verify.NAME
    for word in ("allow", "prefer", "require", "verify-ca"):
        (problem,) = refused(ssl=word, sslrootcert="system")
        assert "needs sslmode=verify-full" in problem


def test_files_at_the_default_places_are_used_as_libpq_uses_them() -> None:
    """A root certificate from `require` on, a revocation list where there is verification, and the client's pair."""
    decided = planned(AT_HOME, ssl="require")
    assert (decided.verify, decided.root, decided.crl) == (Verify.CHAIN, "/h/root.crt", "/h/root.crl")
    assert (decided.cert, decided.key) == ("/h/p.crt", "/h/p.key")
    preferred = planned(AT_HOME)
    assert (preferred.root, preferred.crl, preferred.cert) == (None, None, "/h/p.crt")
    written = planned(AT_HOME, ssl="verify-full", sslrootcert="r", sslcert="c", sslkey="k", sslcrl="l")
    assert (written.root, written.cert, written.key, written.crl) == ("r", "c", "k", "l")
    assert planned(AT_HOME, ssl="disable").cert is None
    assert planned({"sslcert": "/h/p.crt"}).cert is None, "a certificate without its key is not shown"


def test_what_a_word_lacks_is_told() -> None:
    """Each lack in one sentence."""
    for word in ("verify-ca", "verify-full"):
        assert [problem.partition(":")[0] for problem in lacks(ssl=word)] == [
            f"sslmode={word} needs the authorities to trust"
        ]
    assert "verifies no certificate" in lacks(ssl="require", sslcrl="l")[0]
    assert lacks(sslpassword="S3cr3t") == ["sslpassword is given without sslcert"]


def test_files_are_not_asked_for_without_tls() -> None:
    """`disable` ignores them, as libpq does: switching TLS off for a test changes one word."""
    decided = planned(ssl="disable", sslrootcert="ca.crt", sslcert="c", sslkey="k", sslcrl="l", sslpassword="p")
    assert (decided.root, decided.cert, decided.crl, decided.password) == (None, None, None, None)


def test_on_a_unix_socket_there_is_no_tls() -> None:
    """Whatever the word."""
    assert planned(ssl="verify-full", sslrootcert="f").attempts_at("/run/postgresql") == (Attempt.PLAIN,)


def test_versions_of_the_protocol() -> None:
    """1.2 or newer when nobody says otherwise; small letters do."""
    assert (planned().oldest, planned().newest) == (OLDEST, None) == ("TLSv1.2", None)
    settings = PoolSettings.from_dsn("postgresql://h?ssl_min_protocol_version=tlsv1.3&ssl_max_protocol_version=TLSV1.3")
    decided, _ = plan(settings, {})
    assert (decided.oldest, decided.newest) == ("TLSv1.3", "TLSv1.3")


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"sslkey": "k"}, "sslkey is given without sslcert"),
        ({"ssl_min_protocol_version": "TLSv1.3", "ssl_max_protocol_version": "TLSv1.2"}, "must not exceed"),
        ({"ssl_max_protocol_version": "TLSv1.1"}, "ssl_min_protocol_version (TLSv1.2) must not exceed"),
        ({"ssl_min_protocol_version": "1.2"}, "ssl_min_protocol_version must be one of"),
        ({"ssl": ssl.create_default_context(), "sslrootcert": "f", "sslcrl": "g"}, "leave out sslrootcert, sslcrl"),
        ({"ssl": "require", "sslmode": "require"}, "'ssl' and 'sslmode' are both given"),
        ({"sslrootcert": ""}, "sslrootcert must be the name of a file"),
        ({"sslcert": b"c"}, "sslcert must be the name of a file"),
        ({"sslpassword": 5}, "sslpassword must be a text that is not empty"),
        ({"ssl_server_name": ".n1"}, "ssl_server_name must be a host name or a plain callable"),
        ({"ssl_server_name": {}}, "ssl_server_name must be"),
    ],
)
def test_what_contradicts_itself_is_one_problem(settings: dict[str, Any], part: str) -> None:
    """Told at construction, by the names of the settings."""
    (problem,) = refused(**settings)
    assert part in problem


def test_words_of_a_connection_string_and_keywords_are_the_same() -> None:
    """A keyword wins; `sslmode` is `ssl`; a path may be a `Path`."""
    text = "postgresql://h?sslmode=verify-ca&sslrootcert=r&sslcert=c&sslkey=k&sslpassword=p&sslcrl=l&ssl-server-name=n"
    settings = PoolSettings.from_dsn(text, sslmode="verify-full", sslcrl=Path("m"))
    assert settings == PoolSettings(
        endpoints=HOSTS, ssl="verify-full", sslrootcert="r", sslcert="c", sslkey="k", sslpassword="p",
        sslcrl=Path("m"), ssl_server_name="n",
    )  # fmt: skip
    assert plan(settings, {})[0].crl == "m"


def test_no_text_form_shows_the_password_of_the_key() -> None:
    """Neither of the settings nor of the plan."""
    settings = PoolSettings.from_dsn("postgresql://h?sslcert=c&sslpassword=S3cr3t-x")
    assert "S3cr3t" not in repr(settings) + repr(plan(settings, {})[0])


def test_environment_words_fill_what_is_open() -> None:
    """What is written wins, word by word; a context or a bool leaves no room for any of them."""
    environment = {
        "PGSSLMODE": "verify-full", "PGSSLROOTCERT": "er", "PGSSLCERT": "ec", "PGSSLKEY": "ek", "PGSSLCRL": "el",
        "PGSSLMINPROTOCOLVERSION": "TLSv1.3", "PGSSLMAXPROTOCOLVERSION": "TLSv1.3", "PGSSLNEGOTIATION": "postgres",
    }  # fmt: skip
    settings = PoolSettings.from_dsn("postgresql://h?sslrootcert=r", environment=environment)
    assert (settings.ssl, settings.sslrootcert, settings.sslcert, settings.sslkey) == ("verify-full", "r", "ec", "ek")
    assert (settings.ssl_min_protocol_version, settings.ssl_max_protocol_version) == ("TLSv1.3", "TLSv1.3")
    assert PoolSettings.from_dsn("postgresql://h?ssl=false", environment=environment).ssl == "disable"
    context = ssl.create_default_context()
    for own in (context, True, False):
        settings = PoolSettings.from_dsn("postgresql://h", environment=environment, ssl=own)
        assert (settings.ssl, settings.sslrootcert, settings.sslcert) == (own, None, None)


def test_tls_without_being_asked_for_is_not_supported() -> None:
    """`sslnegotiation=direct` is refused; Picodata cannot do it either."""
    assert refused("postgresql://h?sslnegotiation=direct") == ("'sslnegotiation' is not supported yet",)


def test_a_server_is_known_by_the_host_that_is_dialled_or_by_a_name_of_its_own() -> None:
    """One name for all, or a callable; None leaves the host."""
    assert planned().name_of("10.0.0.1", 5) == "10.0.0.1"
    assert planned(ssl_server_name="n").name_of("10.0.0.1", 5) == "n"
    by_port = planned(ssl_server_name=lambda host, port: {5: "n5"}.get(port))
    assert (by_port.name_of("10.0.0.1", 5), by_port.name_of("10.0.0.1", 6)) == ("n5", "10.0.0.1")
    with pytest.raises(ValueError, match=r"ssl_server_name gives no name for h:5, but 7"):
        planned(ssl_server_name=lambda host, port: 7).name_of("h", 5)


def test_every_mode_has_a_plan() -> None:
    """No word is left over."""
    for word in SSL_MODES:
        assert planned(ssl=word, sslrootcert="r").said == f"sslmode={word}"
