"""Service files: a name for a set of connection words, kept outside the program.

This file decides which files are looked in, how they are read, and what wins: a word of the connection string, then the
service's, then the environment's. It opens nothing; files come from a reader that somebody else brings.

*Source*: PostgreSQL 18 documentation, section 34.17 "The Connection Service File"; `src/interfaces/libpq/fe-connect.c`,
`parseServiceInfo` and `parseServiceFile` (the order of files, the first mention of a word wins, no nesting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from picopyn.dsn import Dsn, is_word
from picopyn.errors import ConfigError
from picopyn.passfile import FileText

#: Reads a file; raises OSError when it cannot.
ReadFile = Callable[[str], FileText]

#: Where the file of the whole machine lies when `PGSYSCONFDIR` does not say.
SYSTEM_DIRECTORIES: Final = ("/etc/postgresql-common", "/etc")
_NOT_IN_A_SERVICE: Final = ("service", "servicefile")


def with_service(dsn: Dsn, environment: Mapping[str, str], read: ReadFile | None) -> Dsn:
    """Fill what a connection string leaves open from the service it or `PGSERVICE` names; the same without one.

    Args:
        dsn: The connection string; afterwards it names no service.
        environment: `PGSERVICE`, `PGSERVICEFILE`, `PGSYSCONFDIR` and `HOME` are looked up.
        read: Reads files; None: a service is refused.

    Raises:
        ConfigError: The service is not defined, or its file cannot be read or understood.
    """
    name = dsn.param("service") or environment.get("PGSERVICE")
    file = dsn.param("servicefile") or environment.get("PGSERVICEFILE")
    dsn = dsn.without(*_NOT_IN_A_SERVICE)
    if not name:
        return dsn
    if read is None:
        raise ConfigError("'service' is given, but no file may be read here")
    return dsn.with_words(_definition(name, file, environment, read), f"in the service {name!r}")


def _definition(name: str, file: str | None, environment: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    if file:
        words = read_service(_must_read(file, read), name, file)
        if words is not None:
            return words
    for path in _places(environment, named=bool(file)):
        try:
            text = read(path).text
        except OSError:
            continue
        words = read_service(text, name, path)
        if words is not None:
            return words
    raise ConfigError(f"the service {name!r} is not defined in any service file")


def _must_read(path: str, read: ReadFile) -> str:
    try:
        return read(path).text
    except OSError as error:
        raise ConfigError(
            f"the service file {path!r} cannot be read: {error.strerror or type(error).__name__}"
        ) from None


def _places(environment: Mapping[str, str], *, named: bool) -> Iterator[str]:
    home = environment.get("HOME")
    if home and not named:
        yield f"{home.rstrip('/')}/.pg_service.conf"
    directory = environment.get("PGSYSCONFDIR")
    for place in (directory,) if directory else SYSTEM_DIRECTORIES:
        yield f"{place.rstrip('/')}/pg_service.conf"


def read_service(text: str, name: str, path: str) -> dict[str, str] | None:
    """The words of one service.

    Args:
        text: A service file.
        name: Name of the service.
        path: Name of the file, for messages.

    Returns:
        Word → text; None when the file does not define the service.

    Raises:
        ConfigError: A line of the service cannot be understood; it is told by its number, never with its text.
    """
    words: dict[str, str] | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            if words is not None:
                break
            words = {} if line.startswith(f"[{name}]") else None
        elif words is not None:
            word, value = _word(line, f"line {number} of the service file {path!r}")
            words.setdefault(word, value)
    return words


def _word(line: str, where: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    word = name.strip().lower()
    if line.startswith("ldap"):
        raise ConfigError(f"{where} asks a directory server, which is not supported")
    if not equals:
        raise ConfigError(f"{where} is not of the form word=value")
    if word in _NOT_IN_A_SERVICE:
        raise ConfigError(f"{where} names another service; services cannot be nested")
    if not is_word(word):
        raise ConfigError(f"{where} does not begin with a word of a connection string")
    return word, value.strip()
