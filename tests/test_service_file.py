"""Service files, and who wins: the connection string, then the service, then the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dsn import Endpoint
from picopyn.errors import ConfigError
from picopyn.passfile import FileText
from picopyn.service_file import ReadFile, read_service
from picopyn.settings import PoolSettings

FILE = """\
# a comment
[other]
host=o

[app]
  host=s1,s2
port=7000
user = su
password=S3cr3t=with equals
dbname=sd
application_name=sa
host=second mention
[app]
user=never
"""


def reading(files: Mapping[str, str]) -> ReadFile:
    """A reader that knows these files."""

    def read(path: str) -> FileText:
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory")
        return FileText(files[path])

    return read


def settings(
    dsn: str, environment: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None, **more: Any
) -> PoolSettings:
    """Settings made in this world."""
    return PoolSettings.from_dsn(
        dsn, environment=environment or {}, read_file=reading({"/f": FILE} if files is None else files), **more
    )


IN_F = {"PGSERVICEFILE": "/f"}


def test_a_service_fills_what_the_string_leaves_open() -> None:
    """All words of the first group of that name; the first mention of a word counts."""
    made = settings("service=app", IN_F)
    assert made.endpoints == (Endpoint("s1", 7000), Endpoint("s2", 7000))
    assert (made.user, made.password, made.database) == ("su", "S3cr3t=with equals", "sd")
    assert made.application_name == "sa"


@pytest.mark.parametrize("dsn", ["postgresql:///?service=app&servicefile=/f", "service=app servicefile=/f"])
def test_the_file_may_be_named_in_the_string(dsn: str) -> None:
    """As PostgreSQL 18 has it; it wins over `PGSERVICEFILE`."""
    assert settings(dsn, {"PGSERVICEFILE": "/g"}).user == "su"


def test_the_environment_may_name_the_service() -> None:
    """`PGSERVICE`; one in the string wins."""
    assert settings("", {"PGSERVICE": "app", **IN_F}).user == "su"
    assert settings("service=other user=u", {"PGSERVICE": "app", **IN_F}).endpoints == (Endpoint("o"),)


def test_a_port_of_the_string_goes_with_a_host_of_the_service() -> None:
    """Each word is looked up by itself, but hosts of two places never mix."""
    assert settings("service=app port=1", IN_F).endpoints == (Endpoint("s1", 1), Endpoint("s2", 1))
    assert settings("port=1", {"PGHOST": "e"}).endpoints == (Endpoint("e", 1),)
    assert settings("postgresql://h1,h2/?service=app", IN_F).endpoints == (Endpoint("h1", 7000), Endpoint("h2", 7000))
    only_port = {"/f": "[app]\nport=5,6\n"}
    assert settings("service=app", {"PGHOST": "e,f", "PGPORT": "9", **IN_F}, only_port).endpoints == (
        Endpoint("e", 5),
        Endpoint("f", 6),
    )


WORDS = {"user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE", "application_name": "PGAPPNAME"}
SETTING = {"dbname": "database"}
places = st.sets(st.sampled_from(["string", "service", "environment"]), min_size=1)


@given(st.fixed_dictionaries(dict.fromkeys(("host", "port", *WORDS), places)))
def test_the_nearest_place_wins_word_by_word(given_in: dict[str, set[str]]) -> None:
    """String before service before environment, for every word and every combination of places."""

    def value(word: str, place: str) -> str:
        number = ["string", "service", "environment"].index(place) + 1
        return str(number) if word == "port" else f"{word}-{place}".replace("_", "-")

    def pairs(place: str) -> dict[str, str]:
        return {word: value(word, place) for word, chosen in given_in.items() if place in chosen}

    dsn = " ".join(f"{word}={text}" for word, text in {"service": "app", **pairs("string")}.items())
    file = "[app]\n" + "".join(f"{word}={text}\n" for word, text in pairs("service").items())
    variables = {"host": "PGHOST", "port": "PGPORT", **WORDS}
    environment = {variables[word]: text for word, text in pairs("environment").items()}
    made = settings(dsn, {**environment, **IN_F}, {"/f": file})
    for word in WORDS:
        nearest = next(place for place in ("string", "service", "environment") if place in given_in[word])
        assert getattr(made, SETTING.get(word, word)) == value(word, nearest)
    host, port = (
        value(word, next(place for place in ("string", "service", "environment") if place in given_in[word]))
        for word in ("host", "port")
    )
    assert made.endpoints == (Endpoint(host, int(port)),)


def test_the_files_are_looked_in_as_libpq_does() -> None:
    """The user's own, then the system's; a file that is named takes the place of the user's."""
    home, system, named = "[app]\nhost=home\n", "[app]\nhost=system\n", "[app]\nhost=named\n"
    at_home, at_etc = {"/home/u/.pg_service.conf": home}, {"/sys/pg_service.conf": system}
    places = {"HOME": "/home/u", "PGSYSCONFDIR": "/sys"}

    def host(files: dict[str, str], **environment: str) -> str:
        return settings("service=app user=u", {**places, **environment}, files).endpoints[0].host

    assert host({**at_home, **at_etc}) == "home"
    assert host(at_etc) == "system"
    assert host({"/home/u/.pg_service.conf": "[else]\nhost=x\n", **at_etc}) == "system"
    assert host({**at_home, **at_etc, "/n": named}, PGSERVICEFILE="/n") == "named"
    assert host({**at_home, **at_etc, "/n": ""}, PGSERVICEFILE="/n") == "system"
    assert host({"/etc/pg_service.conf": system}, PGSYSCONFDIR="") == "system"


@pytest.mark.parametrize(
    ("files", "environment", "part"),
    [
        ({}, {}, "the service 'app' is not defined"),
        ({"/f": "[other]\nhost=h\n"}, IN_F, "the service 'app' is not defined"),
        ({}, IN_F, "'/f' cannot be read"),
        ({"/f": "[app]\nS3cr3t\n"}, IN_F, "line 2 of the service file '/f' is not of the form"),
        ({"/f": "[app]\nhost=h\nS3cr3t=x\n"}, IN_F, "line 3 of the service file '/f' does not begin with a word"),
        ({"/f": "[app]\nservice=other\n"}, IN_F, "cannot be nested"),
        ({"/f": "[app]\nldap://S3cr3t\n"}, IN_F, "directory server"),
        ({"/f": "[app]\nhost=a,b\nport=1,2,3\n"}, IN_F, "in the service 'app': 3 ports are given for 2 hosts"),
    ],
)
def test_what_is_wrong_with_a_service_is_told_without_its_text(
    files: dict[str, str], environment: dict[str, str], part: str
) -> None:
    """By the number of the line: it may hold a password."""
    with pytest.raises(ConfigError) as caught:
        settings("service=app", environment, files)
    (problem,) = caught.value.problems
    assert part in problem
    assert "S3cr3t" not in problem


def test_a_wrong_line_of_another_service_does_not_matter() -> None:
    """Only the named one is read."""
    assert read_service("[x]\nnonsense\n[app]\nhost=h\n[y]\nnonsense", "app", "f") == {"host": "h"}


def test_without_a_reader_a_service_is_refused() -> None:
    """Settings alone read no file."""
    with pytest.raises(ConfigError, match="no file may be read"):
        PoolSettings.from_dsn("service=app")


def test_the_password_file_is_named_by_string_service_environment_or_home() -> None:
    """In this order; without a home there is none."""
    home, variable = {"HOME": "/home/u"}, {"PGPASSFILE": "/e"}
    with_service = {"/f": "[app]\nhost=h\npassfile=/s\n"}
    assert settings("host=h").passfile is None
    assert settings("host=h", home).passfile == "/home/u/.pgpass"
    assert settings("host=h", {**home, **variable}).passfile == "/e"
    assert settings("service=app", {**home, **variable, **IN_F}, with_service).passfile == "/s"
    assert settings("service=app passfile=/d", {**home, **variable, **IN_F}, with_service).passfile == "/d"
    assert settings("host=h passfile=/d", home, passfile=None).passfile is None
