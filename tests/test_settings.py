"""The settings of a pool: what may be set, what wins, and that every problem is told at once."""

from __future__ import annotations

import math
import ssl
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dsn import KNOWN_WORDS, Dsn, Endpoint
from picopyn.errors import ConfigError
from picopyn.gone_settings import GONE
from picopyn.role_settings import BALANCERS, ROLES, watches_hosts
from picopyn.routing.balance_policies import POLICIES
from picopyn.settings import PoolSettings
from picopyn.staleness import StalenessPolicy

HOSTS = (Endpoint("h", 4327),)


def problems(**values: Any) -> tuple[str, ...]:
    """What is wrong with settings."""
    with pytest.raises(ConfigError) as caught:
        PoolSettings(**{"endpoints": HOSTS, **values})
    return caught.value.problems


def of_dsn(dsn: Any, **overrides: Any) -> tuple[str, ...]:
    """What is wrong with a connection string and keywords."""
    with pytest.raises(ConfigError) as caught:
        PoolSettings.from_dsn(dsn, **overrides)
    return caught.value.problems


def refused(word: str) -> bool:
    """Whether `word=1` is refused; then the word, or the setting it means, is named."""
    try:
        PoolSettings.from_dsn(f"postgresql://h?{word}=1")
    except ConfigError as error:
        told = str(error)
        return word in told or (word == "sslmode" and "ssl must be" in told)
    return False


async def coroutine(*_: object) -> None:
    """Something that may not be an observer."""


def test_the_defaults_are_those_of_the_manual() -> None:
    """A pool that is told nothing but a host."""
    settings = PoolSettings.from_dsn("postgresql://h")
    assert settings == PoolSettings(endpoints=(Endpoint("h"),))
    assert (settings.min_size, settings.max_size, settings.max_total) == (1, 10, None)
    assert (settings.topology_update_interval, settings.query_metadata_cache_size) == (5.0, 1000)
    assert (settings.connect_timeout, settings.acquire_timeout, settings.command_timeout) == (5.0, 5.0, None)
    assert (settings.dialect, settings.role, settings.ssl, settings.password) == ("auto", None, None, None)


def test_the_words_of_a_connection_string_become_settings() -> None:
    """Numbers become numbers, seconds become seconds, `off` means none."""
    settings = PoolSettings.from_dsn(
        "postgresql://u:p@h1,h2:5/db?dialect=picodata&role=prefer_leader&min_size=2&max_size=3"
        "&topology_update_interval=2.5&query_metadata_cache_size=7&connect_timeout=3&acquire_timeout=off"
        "&command_timeout=60&max_waiting=0&statement_cache_size=0&sslmode=verify-full&application_name=a"
        "&options=sql_motion_row_max%3D10"
    )
    assert settings == PoolSettings(
        endpoints=(Endpoint("h1", 5), Endpoint("h2", 5)),
        user="u",
        password="p",
        database="db",
        dialect="picodata",
        role="prefer_leader",
        min_size=2,
        max_size=3,
        topology_update_interval=2.5,
        query_metadata_cache_size=7,
        connect_timeout=3.0,
        acquire_timeout=None,
        command_timeout=60.0,
        statement_cache_size=0,
        ssl="verify-full",
        application_name="a",
        options="sql_motion_row_max=10",
    )


def test_an_explicit_keyword_wins_over_the_connection_string() -> None:
    """Also when its value is None."""
    settings = PoolSettings.from_dsn(
        "postgresql://u:p@h?max_size=3&command_timeout=9&target_session_attrs=primary",
        max_size=4,
        command_timeout=None,
        role="prefer_leader",
        password="q",
    )
    assert (settings.max_size, settings.command_timeout, settings.role) == (4, None, "prefer_leader")
    assert settings.password == "q"


def test_what_is_written_wins_over_the_environment_and_a_keyword_over_both() -> None:
    """The environment is only looked at when it is handed over."""
    environment = {"PGHOST": "e", "PGUSER": "eu", "PGPASSWORD": "ep", "PGAPPNAME": "ea"}
    settings = PoolSettings.from_dsn("user=u", environment=environment, application_name="k")
    assert (settings.endpoints, settings.user) == ((Endpoint("e"),), "u")
    assert (settings.password, settings.application_name) == ("ep", "k")


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("any", None),
        ("read-write", "leader"),
        ("primary", "leader"),
        ("read-only", "replica"),
        ("standby", "replica"),
        ("prefer-standby", "prefer_replica"),
    ],
)
def test_session_attributes_ask_for_a_role(text: str, role: str | None) -> None:
    """`target_session_attrs` means a role; an explicit `role` wins."""
    assert PoolSettings.from_dsn(f"postgresql://h?target_session_attrs={text}").role == role
    wins = PoolSettings.from_dsn("postgresql://h?target_session_attrs=standby&role=leader")
    assert wins.role == "leader"


@pytest.mark.parametrize("word", ["ssl=true", "sslmode=require", "ssl=require"])
def test_ssl_words_of_other_drivers(word: str) -> None:
    """JDBC's `ssl=true` is `sslmode=require`."""
    assert PoolSettings.from_dsn(f"postgresql://h?{word}").ssl == "require"


def test_words_that_ask_for_what_happens_anyway_are_taken() -> None:
    """A connection string of another driver keeps working where nothing would differ."""
    text = "client_encoding=UTF-8&gssencmode=prefer&channel_binding=prefer"
    assert PoolSettings.from_dsn(f"postgresql://h?{text}") == PoolSettings.from_dsn("postgresql://h")


def test_every_known_word_is_taken_or_refused_by_name() -> None:
    """No word of a connection string is dropped in silence."""
    assert {word for word in KNOWN_WORDS if not refused(word)} == {
        "acquire_timeout",
        "application_name",
        "command_timeout",
        "connect_timeout",
        "failed_host_reconnect_delay_secs",
        "failed_host_ttl_seconds",
        "fallback_master",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance",
        "load_balance_hosts",
        "master_as_replica_weight",
        "max_idle",
        "max_lifetime",
        "max_size",
        "max_total",
        "max_waiting",
        "min_size",
        "options",
        "passfile",
        "query_metadata_cache_size",
        "rebalance_batch",
        "refresh_delay",
        "refresh_timeout",
        "servicefile",
        "socket_timeout",
        "ssl_server_name",
        "sslcert",
        "sslcrl",
        "sslpassword",
        "sslrootcert",
        "statement_cache_size",
        "tablet_leaders",
        "tcp_user_timeout",
        "topology_update_interval",
        "yb_servers_refresh_interval",
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("500ms", 0.5),
        ("2500us", 0.0025),
        ("1min", 60.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("%207%20s", 7.0),
        ("1e3ms", 1.0),
        ("0", None),
        ("0ms", None),
        ("off", None),
    ],
)
def test_a_limit_for_statements_is_written_with_a_unit_in_the_string(text: str, seconds: float | None) -> None:
    """As in PostgreSQL's own settings; a keyword is a number of seconds, and wins."""
    settings = PoolSettings.from_dsn(f"postgresql://h?statement_timeout={text}")
    assert settings.statement_timeout == seconds
    assert PoolSettings.from_dsn(f"postgresql://h?statement_timeout={text}", statement_timeout=3) == PoolSettings(
        endpoints=(Endpoint("h"),), statement_timeout=3
    )


@pytest.mark.parametrize("text", ["30", "30000", "1.5", "-1"])
def test_a_limit_for_statements_without_a_unit_is_refused_and_told_why(text: str) -> None:
    """It would mean milliseconds to the server and seconds to us."""
    (told,) = of_dsn(f"postgresql://h?statement_timeout={text}")
    assert "milliseconds" in told
    assert told.endswith(f"write {text}ms or {text}s")
    assert of_dsn(f"host=h statement_timeout={text}") == (told,)


@pytest.mark.parametrize("text", ["5S", "5 sec", "s", "soon", "1s2", "nan", "inf s", "0x5s", "٣s"])
def test_a_limit_for_statements_that_is_no_duration_is_refused(text: str) -> None:
    """The units are named."""
    (told,) = of_dsn(f"host=h statement_timeout='{text}'")
    assert told.startswith(f"statement_timeout: {text!r} is no duration")
    assert "us, ms, s, min, h, d" in told


@pytest.mark.parametrize("text", ["-5s", "500us", "1e999s"])
def test_a_limit_for_statements_is_checked_like_the_keyword(text: str) -> None:
    """A server counts in milliseconds."""
    (told,) = of_dsn(f"postgresql://h?statement_timeout={text}")
    assert told.startswith("statement_timeout must be a number of seconds")


def test_words_about_the_life_of_connections() -> None:
    """As libpq writes them: `tcp_user_timeout` in milliseconds, and 0 for what the system does by itself."""
    settings = PoolSettings.from_dsn(
        "postgresql://h?max_total=9&max_lifetime=off&max_idle=30&max_waiting=7&keepalives=0&keepalives_idle=60"
        "&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=1500"
    )
    assert (settings.max_total, settings.max_lifetime, settings.max_idle, settings.max_waiting) == (9, None, 30.0, 7)
    assert settings.keepalives is False
    assert (settings.keepalives_idle, settings.keepalives_interval, settings.keepalives_count) == (60.0, 5.0, 3)
    assert settings.tcp_user_timeout == 1.5
    zeros = "keepalives=1&keepalives_idle=0&keepalives_interval=0&keepalives_count=0&tcp_user_timeout=0"
    assert PoolSettings.from_dsn(f"postgresql://h?{zeros}") == PoolSettings.from_dsn("postgresql://h")


def test_a_connection_lives_an_hour_and_is_idle_for_ten_minutes_by_default() -> None:
    """Both can be switched off."""
    settings = PoolSettings.from_dsn("postgresql://h")
    assert (settings.max_lifetime, settings.max_idle) == (3600.0, 600.0)
    assert PoolSettings(endpoints=HOSTS, max_lifetime=None, max_idle=None).max_idle is None


@pytest.mark.parametrize("word", ["sslnegotiation=direct", "hostaddr=1"])
def test_words_whose_time_has_not_come_are_refused(word: str) -> None:
    """They are known, and say so, instead of doing nothing."""
    assert of_dsn(f"postgresql://h?{word}") == (f"'{word.partition('=')[0]}' is not supported yet",)


@pytest.mark.parametrize("role", ROLES)
def test_every_role_is_for_every_kind_of_server(role: str) -> None:
    """Which one it is may be known only later."""
    for dialect in ("picodata", "postgres", "auto"):
        assert PoolSettings(endpoints=HOSTS, role=role, dialect=dialect).role == role


LIMIT = StalenessPolicy(max_lag=5)
TWO = (Endpoint("h1"), Endpoint("h2"))


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"staleness": LIMIT, "role": "leader"}, "staleness limits replicas, but role='leader'"),
        ({"staleness": LIMIT}, "staleness limits replicas, but there is one host and no role"),
        ({"staleness": LIMIT, "role": "replica", "dialect": "picodata"}, "staleness is for plain PostgreSQL"),
        *(
            ({name: value, "role": role}, f"{name} is about calls for a replica, but role={role!r}")
            for name, value in (("fallback_master", True), ("master_as_replica_weight", 0.5))
            for role in ("leader", "prefer_leader", "any")
        ),
        ({"fallback_master": True, "dialect": "picodata"}, "fallback_master is for plain PostgreSQL"),
        ({"balancer_policy": "round_robin", "dialect": "picodata"}, "balancer_policy is for plain PostgreSQL"),
        (
            {"balancer_policy": "two_choices", "role": "any"},
            "balancer_policy chooses among hosts whose roles are known",
        ),
    ],
)
def test_contradictions_between_roles_and_policies(values: dict[str, Any], part: str) -> None:
    """Named in one clear error, never a silent choice."""
    assert any(part in problem for problem in problems(**values))


@pytest.mark.parametrize("role", [None, "replica", "prefer_replica"])
def test_policies_that_fit_their_role(role: str | None) -> None:
    """A pool without a role may have them for the calls that name one."""
    PoolSettings(endpoints=TWO, role=role, staleness=LIMIT, fallback_master=True, master_as_replica_weight=1)


def test_policies_in_a_connection_string() -> None:
    """What a text can say."""
    settings = PoolSettings.from_dsn(
        "postgresql://a,b/?target_session_attrs=standby&balancer_policy=round_robin&fallback_master=true"
        "&master_as_replica_weight=0.5&refresh_delay=0.2&refresh_timeout=3"
    )
    assert settings == PoolSettings(
        endpoints=(Endpoint("a"), Endpoint("b")),
        role="replica",
        balancer_policy="round_robin",
        fallback_master=True,
        master_as_replica_weight=0.5,
        refresh_delay=0.2,
        refresh_timeout=3.0,
    )


@pytest.mark.parametrize(
    ("hosts", "role", "limit", "watched"),
    [
        (1, None, None, False),
        (1, "any", None, False),
        (2, "any", None, False),
        (2, None, None, True),
        (2, "any", LIMIT, True),
        *((1, role, None, True) for role in ROLES if role != "any"),
    ],
)
def test_hosts_are_watched_only_where_their_roles_matter(
    hosts: int, role: str | None, limit: StalenessPolicy | None, watched: bool
) -> None:
    """A single host without a role, or equals by declaration, cost nothing."""
    assert watches_hosts(PoolSettings(endpoints=TWO[:hosts], role=role, staleness=limit)) is watched


def test_the_words_of_policies_are_those_of_the_functions() -> None:
    """The settings know the words only."""
    assert set(BALANCERS) == set(POLICIES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("min_size", value) for value in (-1, True, 1.0, "1", None)),
        *(("max_size", value) for value in (0, True, 2.5, math.nan)),
        *(("max_total", value) for value in (0, False, "all")),
        *(("max_lifetime", value) for value in (0, -1, math.nan, math.inf, "1 h", True)),
        *(("max_idle", value) for value in (0, -0.5, math.nan, False)),
        *(("keepalives", value) for value in (1, "yes", None)),
        *(("keepalives_idle", value) for value in (0, 0.5, -1, math.nan, True)),
        *(("keepalives_interval", value) for value in (0, "5")),
        *(("keepalives_count", value) for value in (0, 1.5, True)),
        *(("tcp_user_timeout", value) for value in (0, -1, math.inf)),
        *(("topology_update_interval", value) for value in (0, 0.5, -1.0, math.nan, math.inf, True, "5")),
        *(("query_metadata_cache_size", value) for value in (0, None, True)),
        *(("connect_timeout", value) for value in (0, -1, math.nan, math.inf, None, "5", True)),
        *(("acquire_timeout", value) for value in (0, -0.1, math.nan, "5")),
        *(("command_timeout", value) for value in (0, -math.inf, math.nan, False)),
        *(("max_waiting", value) for value in (-1, True, None)),
        *(("statement_cache_size", value) for value in (-1, None)),
        *(("ssl", value) for value in ("on", "REQUIRE", 1, object())),
        *(("role", value) for value in ("master", "Leader", "", 1, [])),
        *(("dialect", value) for value in ("mysql", "", None, 1)),
        *(("user", value) for value in ("", 1, "a\x00b")),
        *(("database", value) for value in ("", b"x")),
        *(("application_name", value) for value in ("", 1)),
        *(("password", value) for value in (1, b"S3cr3t", ["S3cr3t"])),
        *(("server_settings", value) for value in (None, "a=b", {"a": 1}, {1: "a"}, {"application_name": "a"})),
        *(("after_connect", value) for value in (1, "f")),
        *(("topology_source", value) for value in (1, object())),
        *(("on_event", value) for value in (1, coroutine)),
        *(("address_map", value) for value in ({}, coroutine)),
        *(("staleness", value) for value in (5, "5 s", {"max_lag": 1})),
        *(("balancer_policy", value) for value in ("fastest", None, 1, object)),
        *(("fallback_master", value) for value in (1, "yes", None)),
        *(("tablet_leaders", value) for value in (1, "yes", 0.0)),
        *(("master_as_replica_weight", value) for value in (-0.1, 1.1, 2, math.nan, True, None)),
        *(("refresh_delay", value) for value in (0, -1, math.inf, "1")),
        *(("refresh_timeout", value) for value in (0, -1, math.nan, None)),
    ],
)
def test_a_wrong_value_is_one_problem_that_names_the_setting(name: str, value: Any) -> None:
    """No wrong type, NaN, infinity or bool slips through."""
    (problem,) = problems(**{name: value})
    assert problem.startswith(name) or name in problem
    assert "S3cr3t" not in problem


def test_sizes_must_agree() -> None:
    """`min_size` may exceed neither `max_size` nor `max_total`."""
    assert problems(min_size=5, max_size=4) == ("min_size (5) must not exceed max_size (4)",)
    assert problems(min_size=5, max_total=4) == ("min_size (5) must not exceed max_total (4)",)


def test_every_problem_of_string_words_and_keywords_is_in_one_error() -> None:
    """In the order string, words, keywords, values."""
    found = of_dsn("postgresql://u@h:x?foo=1&max_size=ten&hostaddr=f", min_sise=1, connect_timeout=-1, role="x")
    parts = [
        "'foo'",
        "'x' of host 1",
        "'hostaddr'",
        "did you mean 'min_size'",
        "role",
        "max_size",
        "connect_timeout",
    ]
    assert len(found) == len(parts)
    for problem, part in zip(found, parts, strict=True):
        assert part in problem


@pytest.mark.parametrize("dsn", ["", "user=u", "postgresql://u:p@/db"])
def test_a_host_must_be_named(dsn: str) -> None:
    """Nothing is guessed: no silent `localhost`."""
    (problem,) = of_dsn(dsn)
    assert "no host" in problem or "neither a URI" in problem


@pytest.mark.parametrize("dsn", [None, 5, b"postgresql://h"])
def test_a_connection_string_is_a_text(dsn: Any) -> None:
    """Anything else is a problem, not a `TypeError`."""
    (problem,) = of_dsn(dsn)
    assert problem.startswith("dsn must be")


def test_no_text_form_of_settings_shows_a_secret() -> None:
    """Neither `repr` nor the error of a problem elsewhere."""
    secret = "S3cr3t-x@y"
    settings = PoolSettings.from_dsn("postgresql://u@h", password=secret, server_settings={"token": secret})
    assert secret not in repr(settings)
    assert secret not in repr(settings.dsn)
    with pytest.raises(ConfigError) as caught:
        replace(settings, max_size=0)
    assert secret not in str(caught.value)
    assert secret not in repr(caught.value.args)


def test_settings_are_one_value_that_cannot_change() -> None:
    """A changed copy is checked again."""
    settings = PoolSettings(endpoints=HOSTS)
    with pytest.raises(FrozenInstanceError):
        settings.max_size = 3  # type: ignore[misc]
    assert replace(settings, max_size=3).max_size == 3
    with pytest.raises(ConfigError):
        replace(settings, max_size=0)


def test_a_dialect_value_an_ssl_context_and_callables_are_taken() -> None:
    """What cannot be written in a connection string is handed over as it is."""

    class OwnDialect:
        name = "own"

        def startup_options(self, purpose: object) -> dict[str, str]:
            return {}

    settings = PoolSettings(
        endpoints=HOSTS,
        dialect=OwnDialect(),
        ssl=ssl.create_default_context(),
        password=lambda: "p",
        after_connect=coroutine,
        on_event=print,
        address_map=lambda host, port: (host, port),
    )
    assert settings.dsn == Dsn(HOSTS)


@pytest.mark.parametrize("name", sorted(GONE))
def test_a_setting_of_picopyn_3_that_is_gone_says_what_to_do_instead(name: str) -> None:
    """Who comes from there need not look for it."""
    with pytest.raises(ConfigError) as caught:
        PoolSettings.from_dsn("postgresql://u@h:1/", **{name: "arbiter"})
    assert caught.value.problems == (f"'{name}' of picopyn 3 is gone: {GONE[name]}",)


numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3))


@given(st.dictionaries(st.sampled_from([f.name for f in fields(PoolSettings) if f.name != "endpoints"]), numbers))
def test_whatever_the_values_there_are_settings_or_one_error(values: dict[str, Any]) -> None:
    """Checking never fails in another way."""
    try:
        settings = PoolSettings(endpoints=HOSTS, **values)
    except ConfigError:
        return
    assert 0 <= settings.min_size <= settings.max_size
