"""Connection strings: a URI or `key=value` text becomes one value, and back.

This file decides what a connection string says: which hosts and ports, which user, password and
database, which other words. It opens nothing and reads no environment and no file: environment
variables come in as a mapping ([`Dsn.with_environment`][picopyn.dsn.Dsn.with_environment]), the words of a
service ([`picopyn.service_file`][]) in the same way. What a word *means* to the pool is the affair of
[`picopyn.settings`][].

Rules that differ from one driver to the next, and what holds here:

- A single port, on the last host of a URI, counts for all hosts. Else a host without a port gets
  the dialect's default.
- In `key=value` text (and in `?host=…&port=…`) one port counts for all hosts; else there are as
  many ports as hosts. A port without a host waits for the host of a service or of the environment.
- `@` may stand only once in a URI, before the hosts; elsewhere it is written `%40`. So a password
  that was not percent-encoded is refused, never looked up as a host name.
- `+` is a plus. Names of words may be written with `-` for `_` and in capitals. An empty value
  counts as not given.
- Nothing may be given twice.

A problem is told without the value of a secret, and without any text that could be a piece of one.

*Source*: PostgreSQL 18 documentation, section 34.1.1 "Connection Strings"; the rule of the single
port is hasql's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from picopyn.errors import ConfigError

#: What stands in place of a secret.
MASK: Final = "***"

#: Words that have a field of their own in a `Dsn`.
_OWN_WORDS: Final = ("host", "port", "user", "password", "dbname")

#: Every other word that is understood, or at least known, in a connection string.
# fmt: off
KNOWN_WORDS: Final = frozenset(
    {
        "acquire_timeout", "application_name", "balancer_policy", "channel_binding", "client_encoding",
        "command_timeout", "connect_timeout", "dialect", "failed_host_reconnect_delay_secs", "failed_host_ttl_seconds",
        "fallback_master", "fallback_to_topology_keys_only", "gssencmode", "hostaddr", "keepalives",
        "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance",
        "load_balance_hosts", "max_idle", "max_lifetime", "max_size", "max_total", "max_waiting",
        "master_as_replica_weight", "min_size", "options", "passfile", "query_metadata_cache_size",
        "rebalance_batch", "refresh_delay", "refresh_timeout", "role", "service",
        "servicefile", "socket_timeout", "ssl", "ssl_max_protocol_version", "ssl_min_protocol_version",
        "ssl_server_name", "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert",
        "statement_cache_size", "statement_timeout", "tablet_leaders", "target_session_attrs", "tcp_user_timeout",
        "topology_keys", "topology_update_interval", "yb_follower_read_staleness_ms", "yb_servers_refresh_interval",
    }
)
# fmt: on

#: Environment variable → word; used only for what the connection string leaves open.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGDATABASE": "dbname",
    "PGSSLMODE": "sslmode",
    "PGSSLROOTCERT": "sslrootcert",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLCRL": "sslcrl",
    "PGSSLMINPROTOCOLVERSION": "ssl_min_protocol_version",
    "PGSSLMAXPROTOCOLVERSION": "ssl_max_protocol_version",
    "PGSSLNEGOTIATION": "sslnegotiation",
    "PGAPPNAME": "application_name",
    "PGOPTIONS": "options",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    "PGTARGETSESSIONATTRS": "target_session_attrs",
    "PGPASSFILE": "passfile",
    "PGGSSENCMODE": "gssencmode",
    "PGCHANNELBINDING": "channel_binding",
}

_STRAY_AT: Final = (
    "'@' may stand only once in a URI, before the hosts; elsewhere write %40 (and %2F for '/', %3F for '?')"
)
#: A port that stands without a host.
LONELY_PORT: Final = "a port is given without a host"
_NO_PAIRS: Final = "the connection string is neither a URI (postgresql://…) nor key=value pairs"
_SECRET_PARTS: Final = ("passw", "passphrase", "secret", "token")
_SCHEME: Final = re.compile(r"([^\s=:/]*)://(.*)", re.DOTALL)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST: Final = re.compile(r"[\s\x00-\x1f\x7f/@\[\]\\?#%:,]")
_TOKEN: Final = re.compile(r"\s*([^\s=]+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'(?=\s|$)|((?!')(?:[^\s\\]|\\.)*))", re.DOTALL)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place a server may listen.

    Attributes:
        host: A name, an IPv4 or IPv6 address without brackets, or the absolute directory of a Unix socket.
        port: 1 … 65535; None means the dialect's default.
    """

    host: str
    port: int | None = None

    @property
    def is_unix(self) -> bool:
        """Whether the host is the directory of a Unix socket."""
        return self.host.startswith("/")

    @property
    def address(self) -> str:
        """`host:port` for people and for look-ups; IPv6 in brackets, without `:port` when there is none."""
        host = f"[{self.host}]" if ":" in self.host and not self.is_unix else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def with_default_port(self, port: int) -> Endpoint:
        """The same place, with this port if it had none."""
        return self if self.port is not None else replace(self, port=port)


@dataclass(frozen=True, slots=True, repr=False)
class Dsn:
    """What a connection string says. Its `repr` and `str` never show a secret.

    Attributes:
        endpoints: The hosts in the order written; empty when none is named.
        user: User name, or None.
        password: Password as the server gets it, or None.
        database: Name of the database, or None.
        params: The other words with their text, in the order written; names in lower case with underscores.
    """

    endpoints: tuple[Endpoint, ...] = ()
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None
    params: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Read a URI (`postgresql://…`) or `key=value` text.

        Raises:
            ConfigError: With every problem found, and no secret.
        """
        dsn, problems = read(text)
        if dsn.param("port") is not None and dsn.param("service") is None:
            problems.append(LONELY_PORT)
        if problems:
            raise ConfigError(problems)
        return dsn

    def param(self, name: str) -> str | None:
        """The text of one word of `params`, or None."""
        return next((value for key, value in self.params if key == name), None)

    def with_host(self, host: str, port: int | None = None) -> Dsn:
        """The same connection string for one host instead of those named."""
        return replace(self, endpoints=(Endpoint(host, port),))

    def without(self, *names: str) -> Dsn:
        """The same connection string without these words of `params`."""
        return replace(self, params=tuple((name, value) for name, value in self.params if name not in names))

    def with_environment(self, environment: Mapping[str, str]) -> Dsn:
        """Fill what is left open from `PG*` variables; what is written always wins.

        Args:
            environment: Usually `os.environ`; `PGHOST`, `PGPORT` and those of `ENVIRONMENT` are looked up.

        Raises:
            ConfigError: When `PGHOST` and `PGPORT` cannot be hosts and ports.
        """
        names = {"PGHOST": "host", "PGPORT": "port", **ENVIRONMENT}
        return self.with_words({word: environment.get(name, "") for name, word in names.items()}, "in the environment")

    def with_words(self, words: Mapping[str, str], origin: str) -> Dsn:
        """Fill what is left open from a source that counts less; what is there already always wins.

        Hosts of two sources are never mixed; hosts without a port take the ports of the source.

        Args:
            words: Word → text; an empty text counts as not given.
            origin: Where they stand, for messages: "in the …".

        Raises:
            ConfigError: When the source's hosts and ports cannot be hosts and ports.
        """
        given = {word: text for word, text in words.items() if text}
        written = {name for name, _ in self.params}
        port = self.param("port") or given.get("port", "")
        problems: list[str] = []
        if self.endpoints:
            endpoints = _fill_ports(self.endpoints, port, problems)
        elif given.get("host"):
            endpoints = _pair(given["host"], port, problems)
        else:
            endpoints = ()
        if problems:
            raise ConfigError([f"{origin}: {problem}" for problem in problems])
        kept = self.without("port") if endpoints else self
        added = tuple((n, v) for n, v in given.items() if n not in written and n not in _OWN_WORDS)
        waiting = (("port", port),) if port and not endpoints and "port" not in written else ()
        return Dsn(
            endpoints=endpoints,
            user=self.user or given.get("user"),
            password=self.password or given.get("password"),
            database=self.database or given.get("dbname"),
            params=kept.params + added + waiting,
        )

    def uri(self) -> str:
        """The connection string as a URI, **with its secrets**; `parse` of it gives the same value."""
        return self._uri(mask=False)

    def redacted(self) -> str:
        """The connection string as a URI with every secret masked, fit for logs."""
        return self._uri(mask=True)

    def conninfo(self) -> str:
        """The connection string as `key=value` text, **with its secrets**; `parse` of it gives the same."""
        words = {
            **_host_words(self.endpoints),
            "user": self.user,
            "password": self.password,
            "dbname": self.database,
        }
        pairs = [(name, value) for name, value in words.items() if value] + list(self.params)
        return " ".join(f"{name}={_quoted(value)}" for name, value in pairs)

    def _uri(self, *, mask: bool) -> str:
        password = MASK if mask and self.password else self.password
        login = quote(self.user or "", safe="") + (f":{_escape(password, mask)}" if password else "")
        query = [(name, MASK if mask and is_secret(name) else value) for name, value in self.params]
        hosts = ",".join(_uri_host(endpoint) for endpoint in self.endpoints)
        if _only_last_has_port(self.endpoints):  # a URI would read this port as everybody's
            hosts = ""
            query = [*_host_words(self.endpoints).items(), *query]
        database = "/" + quote(self.database, safe="") if self.database else ""
        tail = "&".join(f"{name}={_escape(value, mask)}" for name, value in query)
        return f"postgresql://{login}{'@' if login else ''}{hosts}{database}{'?' if tail else ''}{tail}"

    def __repr__(self) -> str:
        return f"Dsn({self.redacted()!r})"

    def __str__(self) -> str:
        return self.redacted()


def is_secret(word: str) -> bool:
    """Whether the value of this word must never be shown."""
    return any(part in word for part in _SECRET_PARTS)


def is_word(name: str) -> bool:
    """Whether this is a word of a connection string."""
    return name in KNOWN_WORDS or name in _OWN_WORDS


def read(text: str) -> tuple[Dsn, list[str]]:
    """Read a connection string as far as it can be read.

    Returns:
        What it says, and every problem, told without secrets. With problems, the value is only good for
        finding more of them. A port without a host is no problem yet: it stands in `params`.
    """
    text = text.strip()
    match = _SCHEME.match(text)
    if match is None:
        return _read_conninfo(text)
    if match[1].lower() not in ("postgresql", "postgres"):
        return Dsn(), ["the scheme of the URI must be postgresql:// or postgres://"]
    return _read_uri(match[2])


# --- URI ------------------------------------------------------------------------------------------


def _read_uri(rest: str) -> tuple[Dsn, list[str]]:
    authority, slash_or_mark, tail = _cut(rest)
    if rest.count("@") > 1 or "@" in tail:
        return Dsn(), [_STRAY_AT]
    path, _, query = (slash_or_mark + tail).partition("?")
    login, at, hosts = authority.rpartition("@")
    problems: list[str] = []
    words: dict[str, str] = {}
    for name, value in _login_words(login):
        _put(words, name, _decode(value, f"the {name}", problems), problems)
    _put(words, "dbname", _decode(path[1:], "the database", problems), problems)
    for name, value in _query_words(query, problems):
        _put(words, name, value, problems)
    endpoints = _authority_endpoints(hosts, problems, port_may_be_shown=bool(at))
    return _assemble(endpoints, words, problems)


def _cut(rest: str) -> tuple[str, str, str]:
    """Split at the first `/` or `?`."""
    for position, char in enumerate(rest):
        if char in "/?":
            return rest[:position], char, rest[position + 1 :]
    return rest, "", ""


def _login_words(login: str) -> Iterator[tuple[str, str]]:
    user, _, password = login.partition(":")
    yield "user", user
    yield "password", password


def _query_words(query: str, problems: list[str]) -> Iterator[tuple[str, str]]:
    for number, item in enumerate(query.split("&") if query else (), start=1):
        name, equals, value = item.partition("=")
        if not equals:
            problems.append(f"parameter {number} of the URI has no '='")
            continue
        word = _word(_decode(name, f"the name of parameter {number}", problems))
        if not is_word(word):
            problems.append(_unknown(word))
        else:
            yield word, _decode(value, f"'{word}'", problems)


def _authority_endpoints(hosts: str, problems: list[str], *, port_may_be_shown: bool) -> tuple[Endpoint, ...]:
    if not hosts:
        return ()
    items = [_host_and_port(item) for item in hosts.split(",")]
    given = [number for number, (_, port) in enumerate(items) if port]
    if given == [len(items) - 1]:
        items = [(host, items[-1][1]) for host, _ in items]
    endpoints = []
    for number, (text, port) in enumerate(items, start=1):
        host = _decode(text, f"host {number}", problems)
        _check_host(host, number, problems)
        # Without a login the text after the colon may be a password whose "@host" was forgotten.
        endpoints.append(Endpoint(host, _check_port(port, number, problems, shown=port_may_be_shown)))
    return tuple(endpoints)


def _host_and_port(item: str) -> tuple[str, str]:
    if item.startswith("[") and "]" in item:
        host, _, port = item[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = item.partition(":")
    return host, port


def _decode(text: str, what: str, problems: list[str]) -> str:
    if _BAD_ESCAPE.search(text):
        problems.append(f"in {what}: '%' must be followed by two hexadecimal digits (write %25 for '%')")
        return ""
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeError:
        decoded = "\x00"
    if "\x00" in decoded:
        problems.append(f"in {what}: the percent-encoding does not give UTF-8 text")
        return ""
    return decoded


# --- key=value ------------------------------------------------------------------------------------


def _read_conninfo(text: str) -> tuple[Dsn, list[str]]:
    problems: list[str] = []
    words: dict[str, str] = {}
    position, before = 0, ""
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            expected = f"after '{before}': expected key=value (a value with blanks or quotes is written '…')"
            problems.append(expected if before else _NO_PAIRS)
            break
        position = match.end()
        before = _take_token(match, before, words, problems)
    return _assemble((), words, problems)


def _take_token(match: re.Match[str], before: str, words: dict[str, str], problems: list[str]) -> str:
    """Put one `key=value` into `words`; returns the name to call it by in a later problem."""
    word = _word(match[1])
    if is_word(word):
        value = match[2] if match[2] is not None else match[3]
        _put(words, word, _ESCAPED.sub(r"\1", value), problems)
        return word
    if is_secret(before):  # it may be the rest of a password with a blank in it
        problems.append(f"the word after '{before}' is unknown (a value with blanks is written '…')")
        return before
    problems.append(_unknown(word))
    return word


def _quoted(value: str) -> str:
    if value and not re.search(r"[\s'\\]", value):
        return value
    return "'" + re.sub(r"(['\\])", r"\\\1", value) + "'"


# --- what both forms share ------------------------------------------------------------------------


def _word(name: str) -> str:
    return name.lower().replace("-", "_")


def _unknown(word: str) -> str:
    if not _NAME.fullmatch(word):  # hardly a name; it may be a piece of anything
        return "an unknown word stands in the connection string"
    near = get_close_matches(word, (*KNOWN_WORDS, *_OWN_WORDS), n=1)
    hint = f"did you mean '{near[0]}'?" if near else "what the server is to be told goes into server_settings="
    return f"unknown word '{word}' in the connection string ({hint})"


def _put(words: dict[str, str], word: str, value: str, problems: list[str]) -> None:
    if not value:
        return
    if word in words:
        problems.append(f"'{word}' is given twice")
    words[word] = value


def _assemble(endpoints: Sequence[Endpoint], words: dict[str, str], problems: list[str]) -> tuple[Dsn, list[str]]:
    host, port = words.pop("host", ""), words.pop("port", "")
    if endpoints and (host or port):
        problems.append("hosts and ports stand both before and after the '?'")
    elif host:
        endpoints = _pair(host, port, problems)
    elif port:
        words["port"] = port
    own = {name: words.pop(name, None) for name in ("user", "password", "dbname")}
    dsn = Dsn(tuple(endpoints), own["user"], own["password"], own["dbname"], tuple(words.items()))
    return dsn, problems


def _pair(host: str, port: str, problems: list[str]) -> tuple[Endpoint, ...]:
    """Hosts and ports given as two lists."""
    hosts = [_unbracketed(item.strip()) for item in host.split(",")]
    for number, name in enumerate(hosts, start=1):
        _check_host(name, number, problems)
    return _fill_ports([Endpoint(name) for name in hosts], port, problems)


def _fill_ports(endpoints: Sequence[Endpoint], port: str, problems: list[str]) -> tuple[Endpoint, ...]:
    """Hosts that have no port take the one of a list with one port, or with as many as there are hosts."""
    if all(endpoint.port is not None for endpoint in endpoints):
        return tuple(endpoints)
    ports = [item.strip() for item in port.split(",")]
    if len(ports) == 1:
        ports *= len(endpoints)
    if len(ports) != len(endpoints):
        problems.append(f"{len(ports)} ports are given for {len(endpoints)} hosts")
        return tuple(endpoints)
    numbers = [_check_port(text, number, problems, shown=True) for number, text in enumerate(ports, start=1)]
    return tuple(
        endpoint if endpoint.port is not None else replace(endpoint, port=number)
        for endpoint, number in zip(endpoints, numbers, strict=True)
    )


def _unbracketed(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _check_host(host: str, number: int, problems: list[str]) -> None:
    if not host:
        problems.append(f"host {number} is empty")
    elif not host.startswith("/") and not _is_ipv6(host) and _BAD_HOST.search(host):
        problems.append(f"host {number} is neither a name, an address nor a directory")


def _is_ipv6(host: str) -> bool:
    if ":" not in host:
        return False
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _check_port(text: str, number: int, problems: list[str], *, shown: bool) -> int | None:
    if not text:
        return None
    port = _port_number(text)
    if port is None:
        value = f" {text!r}" if shown else ""
        hint = " (an IPv6 address stands in brackets)" if ":" in text else ""
        problems.append(f"the port{value} of host {number} is not a number from 1 to 65535{hint}")
    return port


def _port_number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    return int(text) if 1 <= int(text) <= 65535 else None


def _only_last_has_port(endpoints: Sequence[Endpoint]) -> bool:
    return len(endpoints) > 1 and [e for e in endpoints if e.port is not None] == [endpoints[-1]]


def _host_words(endpoints: Sequence[Endpoint]) -> dict[str, str]:
    ports = ["" if endpoint.port is None else str(endpoint.port) for endpoint in endpoints]
    one = len(set(ports)) == 1
    words = {"host": ",".join(endpoint.host for endpoint in endpoints)}
    if any(ports):
        words["port"] = ports[0] if one else ",".join(ports)
    return words


def _uri_host(endpoint: Endpoint) -> str:
    host = quote(endpoint.host, safe="")
    if ":" in endpoint.host and not endpoint.is_unix:
        host = f"[{quote(endpoint.host, safe=':')}]"
    return host if endpoint.port is None else f"{host}:{endpoint.port}"


def _escape(value: str, mask: bool) -> str:
    return value if mask and value == MASK else quote(value, safe="")
