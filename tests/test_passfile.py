"""Password files, read as libpq reads them."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.passfile import FileText, find_password, mistrust

ME = ("h", 5432, "db", "u")


def found(text: str, host: str = "h", port: int = 5432, database: str = "db", user: str = "u") -> str | None:
    """What a file gives for a server."""
    return find_password(FileText(text), host, port, database, user)


@pytest.mark.parametrize(
    ("line", "password"),
    [
        ("h:5432:db:u:p", "p"),
        ("*:*:*:*:p", "p"),
        ("h:*:db:*:p", "p"),
        ("h:5432:db:u:p:ignored", "p"),
        (r"h:5432:db:u:p\:q\\r", r"p:q\r"),
        ("h:5432:db:u:p\\", "p\\"),
        ("h:5432:db:u: p w ", " p w "),
        ("h:5432:db:u:p\r", "p"),
        ("h:5432:db:u:", ""),
        ("h:5432:db:v:p", None),
        ("h:5433:db:u:p", None),
        ("i:5432:db:u:p", None),
        ("h:5432:DB:u:p", None),
        (r"\*:5432:db:u:p", None),
        ("**:5432:db:u:p", None),
        ("#h:5432:db:u:p", None),
        ("h:5432:db:u", None),
        ("", None),
    ],
)
def test_a_line_fits_field_by_field(line: str, password: str | None) -> None:
    """A lone `*` fits anything, a backslash escapes a colon or itself, a `#` in front makes a comment."""
    assert found(f"# first\n\n{line}\n") == password


def test_the_first_line_that_fits_wins() -> None:
    """Special lines stand first."""
    assert found("h:5432:db:u:one\n*:*:*:*:two") == "one"
    assert found("*:*:*:*:two\nh:5432:db:u:one") == "two"


@pytest.mark.parametrize("directory", ["", "/tmp", "/run/postgresql", "/var/run/postgresql/"])
def test_the_default_socket_directories_are_called_localhost(directory: str) -> None:
    """As in libpq; another directory is written as it is."""
    assert found("localhost:5432:db:u:p", host=directory) == "p"
    assert found("localhost:5432:db:u:p", host="/srv/pg") is None
    assert found("/srv/pg:5432:db:u:p", host="/srv/pg") == "p"


def test_an_ipv6_address_is_written_with_escaped_colons() -> None:
    """For the colon separates fields."""
    assert found(r"\:\:1:5432:db:u:p", host="::1") == "p"


@pytest.mark.parametrize(
    ("mode", "trusted"),
    [
        (stat.S_IFREG | 0o600, True),
        (stat.S_IFREG | 0o400, True),
        (stat.S_IFREG | 0o640, False),
        (stat.S_IFREG | 0o644, False),
        (stat.S_IFREG | 0o602, False),
        (stat.S_IFDIR | 0o700, False),
        (stat.S_IFIFO | 0o600, False),
    ],
)
def test_a_file_others_may_read_is_not_trusted(mode: int, *, trusted: bool) -> None:
    """Nor is anything that is no plain file."""
    assert (mistrust(FileText("", mode)) is None) is trusted


words = st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), min_size=1)


def escaped(word: str) -> str:
    """A field as one writes it."""
    return word.replace("\\", "\\\\").replace(":", "\\:")


@given(words, st.integers(1, 65535), words, words, words)
def test_whatever_is_escaped_is_found(host: str, port: int, database: str, user: str, password: str) -> None:
    """Any text can stand in any field."""
    line = ":".join(map(escaped, (host, str(port), database, user, password)))
    if line.startswith("#") or host.rstrip("/") in ("/tmp", "/run/postgresql", "/var/run/postgresql", ""):
        return
    assert found(line, host, port, database, user) == password


@given(st.text())
def test_no_file_is_too_strange(text: str) -> None:
    """Reading never fails."""
    assert find_password(FileText(text), *ME) is None or isinstance(find_password(FileText(text), *ME), str)


def test_the_text_of_a_file_is_in_no_repr() -> None:
    """It is full of secrets."""
    assert "S3cr3t" not in repr(FileText("h:5432:db:u:S3cr3t"))
