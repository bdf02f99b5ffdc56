"""Connection strings: what they say, what is refused, and that no secret ever comes out of them."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from picopyn.dsn import KNOWN_WORDS, MASK, Dsn, Endpoint
from picopyn.errors import ConfigError

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=20)
names = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}", fullmatch=True)
hosts = st.one_of(
    names,
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.just("fe80::1%lo"),
    st.from_regex(r"/[a-zA-Z0-9_./-]{0,20}", fullmatch=True),
)
endpoints = st.builds(Endpoint, hosts, st.none() | st.integers(1, 65535))
dsns = st.builds(
    Dsn,
    st.lists(endpoints, max_size=5).map(tuple),
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.dictionaries(st.sampled_from(sorted(KNOWN_WORDS)), texts, max_size=4).map(lambda d: tuple(d.items())),
)


def places(text: str) -> list[tuple[str, int | None]]:
    """Hosts and ports as read."""
    return [(endpoint.host, endpoint.port) for endpoint in Dsn.parse(text).endpoints]


def problems(text: str) -> tuple[str, ...]:
    """What is wrong with a string; the error may have no other one behind it."""
    with pytest.raises(ConfigError) as caught:
        Dsn.parse(text)
    assert caught.value.__context__ is None
    return caught.value.problems


@given(dsns)
def test_a_uri_says_what_was_written(dsn: Dsn) -> None:
    """Reading the URI of a value gives that value."""
    assert Dsn.parse(dsn.uri()) == dsn


@given(dsns)
def test_key_value_text_says_what_was_written(dsn: Dsn) -> None:
    """Reading the `key=value` text of a value gives that value."""
    assume(dsn.conninfo())
    assert Dsn.parse(dsn.conninfo()) == dsn


@given(dsns, texts.filter(lambda text: len(text) > 3))
def test_no_text_form_shows_a_secret(dsn: Dsn, secret: str) -> None:
    """`repr`, `str` and `redacted()` mask the password and `sslpassword`, wherever they stood."""
    assume(secret not in dsn.redacted())
    assume(secret not in MASK)
    params = tuple(pair for pair in dsn.params if pair[0] != "sslpassword")
    shown = Dsn(dsn.endpoints, dsn.user, secret, dsn.database, (*params, ("sslpassword", secret)))
    for text in (repr(shown), str(shown), f"{shown}", shown.redacted()):
        assert secret not in text
        assert f"sslpassword={MASK}" in text


@given(dsns)
def test_a_value_can_be_copied_pickled_and_used_as_a_key(dsn: Dsn) -> None:
    """A `Dsn` is a plain value."""
    assert pickle.loads(pickle.dumps(dsn)) == dsn
    assert copy.deepcopy(dsn) == dsn
    assert {dsn: 1}[dsn] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://h1,h2", [("h1", None), ("h2", None)]),
        ("postgresql://h1:6432,h2", [("h1", 6432), ("h2", None)]),
        ("postgresql://h1,h2:6432", [("h1", 6432), ("h2", 6432)]),
        ("postgresql://h1,h2,h3:6432", [("h1", 6432), ("h2", 6432), ("h3", 6432)]),
        ("postgresql://h1:6432,h2,h3", [("h1", 6432), ("h2", None), ("h3", None)]),
        ("postgresql://h1,h2:6432,h3", [("h1", None), ("h2", 6432), ("h3", None)]),
        ("postgresql://h1:1,h2,h3:3", [("h1", 1), ("h2", None), ("h3", 3)]),
        ("postgresql://h:", [("h", None)]),
        ("host=h1,h2", [("h1", None), ("h2", None)]),
        ("host=h1,h2 port=5", [("h1", 5), ("h2", 5)]),
        ("host=h1,h2 port=1,2", [("h1", 1), ("h2", 2)]),
        ("host=h1,h2 port=1,", [("h1", 1), ("h2", None)]),
        ("host=h1,h2 port=,2", [("h1", None), ("h2", 2)]),
        ("postgresql:///db?host=h1,h2&port=5", [("h1", 5), ("h2", 5)]),
    ],
)
def test_ports_are_given_to_hosts(text: str, expected: list[tuple[str, int | None]]) -> None:
    """A single port, on the last host, counts for all; in lists one port counts for all hosts."""
    assert places(text) == expected


@pytest.mark.parametrize("login", ["", "u@", ":p@", "u:p@"])
@pytest.mark.parametrize("database", ["", "/", "/db", "/db?options=x", "?options=x"])
def test_the_port_rule_holds_whatever_stands_around_the_hosts(login: str, database: str) -> None:
    """Login, database and parameters change nothing about hosts and ports."""
    assert places(f"postgresql://{login}h1,h2,h3:6432{database}") == [
        ("h1", 6432),
        ("h2", 6432),
        ("h3", 6432),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://[::1]:5433", [("::1", 5433)]),
        ("postgresql://[::1]", [("::1", None)]),
        ("postgresql://[::1]:1,127.0.0.1:2", [("::1", 1), ("127.0.0.1", 2)]),
        ("postgresql://[fe80::1%25lo]:1", [("fe80::1%lo", 1)]),
        ("host=::1 port=5433", [("::1", 5433)]),
        ("host=[::1] port=5433", [("::1", 5433)]),
        ("postgresql://%2Fvar%2Frun:5432/db", [("/var/run", 5432)]),
        ("host=/var/run,localhost", [("/var/run", None), ("localhost", None)]),
        ("postgres://BIG.example", [("BIG.example", None)]),
        ("  postgresql://h  \n", [("h", None)]),
    ],
)
def test_addresses_of_every_kind(text: str, expected: list[tuple[str, int | None]]) -> None:
    """Names, IPv4, IPv6 with and without a zone, and directories of Unix sockets."""
    assert places(text) == expected


def test_a_thousand_hosts_keep_their_order() -> None:
    """The list may be long."""
    names = [f"h{number}" for number in range(1024)]
    assert places("postgresql://" + ",".join(names)) == [(name, None) for name in names]


def test_the_address_of_an_endpoint_is_fit_for_people_and_look_ups() -> None:
    """IPv6 stands in brackets; without a port only the host is told."""
    assert Endpoint("::1", 5).address == "[::1]:5"
    assert Endpoint("h", 5).address == "h:5"
    assert Endpoint("h").address == "h"
    assert Endpoint("h").with_default_port(7).address == "h:7"
    assert Endpoint("h", 5).with_default_port(7).address == "h:5"
    assert Endpoint("/tmp/a:b", 5).address == "/tmp/a:b:5"


PASSWORD_CHARACTERS = "p@ss:w/o#r?d%25&=+ '\"\\ü日"


@pytest.mark.parametrize("password", [*PASSWORD_CHARACTERS, PASSWORD_CHARACTERS, "a b", "+", "x'y\\"])
def test_every_password_can_be_written(password: str) -> None:
    """Percent-encoded in a URI, quoted in `key=value`; `+` is a plus."""
    dsn = Dsn((Endpoint("h"),), "u", password)
    assert Dsn.parse(dsn.uri()).password == password
    assert Dsn.parse(dsn.conninfo()).password == password


@pytest.mark.parametrize(
    "where", ["postgresql://u:{}@h:x", "postgresql://u@h:x?password={}", "host=h port=x password={}"]
)
def test_a_problem_elsewhere_does_not_show_the_password(where: str) -> None:
    """A bad port is told with its text; the password is not, wherever it stands."""
    (problem,) = problems(where.format("S3cr3t-x%40y" if "://" in where else "S3cr3t-x@y"))
    assert "'x'" in problem
    assert "S3cr3t" not in problem


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:S3cr3t-x@y@h:5432/db",
        "postgresql://u:S3cr3t/x@h",
        "postgresql://u:S3cr3t?x@h",
        "postgresql://u:1/S3cr3t?S3cr3t=b@h",
        "postgresql://u:S3cr3t%zz@h",
        "postgresql://u:S3cr3t%FF@h",
        "postgresql://u:S3cr3t",
        "postgresql://u:S3cr3t,h:S3cr3t",
        "postgresql://h?password=S3cr3t@y",
        "postgresql://u@h?S3cr3t-x",
        "postgresql://u@h?S3cr3t%40y=1",
        "mysql://u:S3cr3t@h",
        "u:S3cr3t@h/db",
        "u:S3=cr3t@h/db",
        "host=h password=my S3cr3t",
        "host=h password=my S3cr3t=x",
        "host=h password='S3cr3t",
        "host=h password='S3'cr3t",
        'host=h password="my S3cr3t"',
        "host=h,i port=1,2,3 password=S3cr3t",
        "host=h user=u password=S3cr3t password=S3cr3t",
    ],
)
def test_a_malformed_string_is_refused_without_a_piece_of_it(text: str) -> None:
    """What could be a piece of a password is in no problem, no note and no chained error."""
    told = " ".join(problems(text)).lower()
    assert "s3" not in told
    assert "cr3t" not in told


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("postgresql://u@h:0", "'0'"),
        ("postgresql://u@h:65536", "'65536'"),
        ("postgresql://u@h:-1", "'-1'"),
        ("postgresql://u@h: 1", "' 1'"),
        ("postgresql://u@h:١", "'١'"),
        ("postgresql://u@fe80::1", "brackets"),
        ("postgresql://h1,,h2", "host 2 is empty"),
        ("postgresql://h1,", "host 2 is empty"),
        ("postgresql://u@[::g]", "host 1 is neither"),
        ("postgresql://a%20b", "host 1 is neither"),
        ("host=h1,h2 port=1,2,3", "3 ports are given for 2 hosts"),
        ("host=h1 port=1,2", "2 ports are given for 1 hosts"),
        ("host=h:5432", "host 1 is neither"),
        ("port=5432", "without a host"),
        ("postgresql://h/db?host=i", "both before and after"),
        ("postgresql://u@h?user=v", "'user' is given twice"),
        ("postgresql://h?sslmode=a&sslmode=b", "'sslmode' is given twice"),
        ("postgresql://h?foo=1", "unknown word 'foo'"),
        ("postgresql://h?sslmod=1", "did you mean 'sslmode'?"),
        ("host=h foo=1", "unknown word 'foo'"),
        ("http://h", "postgresql://"),
        ("nonsense", "neither a URI"),
    ],
)
def test_a_problem_names_the_part_that_is_wrong(text: str, part: str) -> None:
    """The offending part is told, and nothing else."""
    (problem,) = problems(text)
    assert part in problem


def test_every_problem_is_found_at_once() -> None:
    """One error lists them all, in the order written."""
    found = problems("postgresql://u@h:x,,i:99999/d?foo=1&user=v")
    assert [next(word for word in ("twice", "foo", "'x'", "empty", "'99999'") if word in p) for p in found] == [
        "foo",
        "twice",
        "'x'",
        "empty",
        "'99999'",
    ]


def test_words_may_be_written_as_in_other_drivers() -> None:
    """Capitals and hyphens do not matter in names; values stay as they are; empty ones count as not given."""
    dsn = Dsn.parse("postgresql://h?Application-Name=A%20b+c&CONNECT_TIMEOUT=3&options=&role=")
    assert dsn.params == (("application_name", "A b+c"), ("connect_timeout", "3"))
    assert dsn.param("connect_timeout") == "3"
    assert dsn.param("role") is None


def test_key_value_text_is_read_as_libpq_reads_it() -> None:
    """Blanks around `=`, quotes, and backslashes in and out of quotes."""
    dsn = Dsn.parse("host = h  user='a b'\tpassword='it\\'s \\\\' dbname=a\\ b  application_name=''")
    assert (dsn.user, dsn.password, dsn.database, dsn.params) == ("a b", "it's \\", "a b", ())


def test_another_host_keeps_the_rest() -> None:
    """`with_host` replaces the hosts and nothing else."""
    dsn = Dsn.parse("postgresql://u:p@h1,h2:5/db?role=leader").with_host("::1", 7)
    assert dsn.uri() == "postgresql://u:p@[::1]:7/db?role=leader"


ENVIRONMENT = {
    "PGHOST": "e1,e2",
    "PGPORT": "7",
    "PGUSER": "eu",
    "PGPASSWORD": "ep",
    "PGDATABASE": "ed",
    "PGSSLMODE": "require",
    "PGAPPNAME": "",
    "HOME": "/nowhere",
}


def test_the_environment_fills_what_is_open() -> None:
    """With nothing written, the variables decide; empty and foreign ones do not count."""
    dsn = Dsn.parse("").with_environment(ENVIRONMENT)
    assert dsn == Dsn.parse("postgresql://eu:ep@e1:7,e2:7/ed?sslmode=require")


def test_what_is_written_wins_over_the_environment() -> None:
    """With everything written, the variables change nothing."""
    dsn = Dsn.parse("postgresql://u:p@h:1/d?sslmode=disable")
    assert dsn.with_environment(ENVIRONMENT) == dsn


def test_hosts_without_a_port_take_the_environments_port() -> None:
    """As in libpq; hosts of the environment never mix with written ones."""
    assert Dsn.parse("postgresql://h,i").with_environment(ENVIRONMENT).endpoints == (
        Endpoint("h", 7),
        Endpoint("i", 7),
    )
    with pytest.raises(ConfigError, match="in the environment: the port 'x' of host 1"):
        Dsn.parse("postgresql://h").with_environment({"PGPORT": "x"})
    with pytest.raises(ConfigError, match="in the environment: 2 ports"):
        Dsn().with_environment({"PGHOST": "a", "PGPORT": "1,2"})
