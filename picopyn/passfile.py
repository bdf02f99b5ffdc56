"""Password files: which line of a file gives the password for one host, port, database and user.

This file decides how such a file is read and when it is not trusted. It opens nothing: text and mode come from somebody
else, as a [`FileText`][picopyn.passfile.FileText].

*Source*: PostgreSQL 18 documentation, section 34.16 "The Password File"; `src/interfaces/libpq/fe-connect.c`,
`passwordFromFile` (the order of escapes and colons, what a directory of Unix sockets is called).
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

#: Directories of Unix sockets that libpq builds call the default one; a file calls them `localhost`.
_DEFAULT_SOCKET_DIRECTORIES: Final = frozenset({"/tmp", "/run/postgresql", "/var/run/postgresql"})


@dataclass(frozen=True, slots=True)
class FileText:
    """A file as it was read.

    Attributes:
        text: What stands in it; never shown, it may be full of secrets.
        mode: Its kind and permissions, as `stat` gives them.
    """

    text: str = field(repr=False)
    mode: int = stat.S_IFREG | 0o600


def mistrust(file: FileText) -> str | None:
    """Why a password file is not used, or None when it is."""
    if not stat.S_ISREG(file.mode):
        return "it is not a plain file"
    if file.mode & (stat.S_IRWXG | stat.S_IRWXO):
        return "group or others may read or write it; its permissions should be 0600 or less"
    return None


def find_password(file: FileText, host: str, port: int, database: str, user: str) -> str | None:
    """The password of the first line that fits, or None.

    Args:
        file: The password file.
        host: The host as it is dialled; the directory of a Unix socket, or `""` for none.
        port: Its port.
        database: Name of the database.
        user: User name.
    """
    if not host or host.rstrip("/") in _DEFAULT_SOCKET_DIRECTORIES:
        host = "localhost"
    wanted = (host, str(port), database, user)
    for line in file.text.split("\n"):
        fields = list(_fields(line.rstrip("\r")))
        if not line.startswith("#") and len(fields) > len(wanted) and _fits(fields, wanted):
            return fields[len(wanted)].value
    return None


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a line.

    Attributes:
        raw: As written; an escaped `*` is no joker.
        value: Without its escapes.
    """

    raw: str
    value: str


def _fits(fields: list[_Field], wanted: tuple[str, ...]) -> bool:
    return all(f.raw == "*" or f.value == want for f, want in zip(fields, wanted, strict=False))


def _fields(line: str) -> Iterator[_Field]:
    """Split at the colons that no backslash precedes; a backslash at the very end stands for itself."""
    raw, value, position = "", "", 0
    while position < len(line):
        char = line[position]
        if char == ":":
            yield _Field(raw, value)
            raw = value = ""
        elif char == "\\" and position + 1 < len(line):
            position += 1
            raw += char + line[position]
            value += line[position]
        else:
            raw += char
            value += char
        position += 1
    yield _Field(raw, value)
