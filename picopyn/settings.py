"""The settings of a pool: one frozen value, checked as a whole before any socket is opened.

This file decides which settings exist, what values they may have, and which words of a connection string mean
which setting. It opens nothing and knows no dialect; `dialect=` may be a word or a dialect's own value.

Every problem of a configuration is found at once and told in one [`ConfigError`][picopyn.errors.ConfigError],
never with a secret in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from inspect import iscoroutinefunction
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from picopyn import dsn as connection_string
from picopyn.dsn import LONELY_PORT, Dsn, Endpoint
from picopyn.durations import read_duration
from picopyn.errors import ConfigError
from picopyn.gone_settings import GONE
from picopyn.observe import Event
from picopyn.placement_settings import ALIASES, placement_problems, words_about_places
from picopyn.role_settings import SESSION_ROLES, host_problems, role_problems
from picopyn.service_file import ReadFile, with_service
from picopyn.staleness import StalenessPolicy
from picopyn.tls import FILES, SSL_MODES, TLS_VERSIONS, ServerName, contradictions, is_context, is_name
from picopyn.word_values import (
    keepalive,
    milliseconds_or_text,
    seconds_or_text,
    ssl_mode,
    switch,
    tls_version,
    whole_or_text,
)

if TYPE_CHECKING:
    from os import PathLike
    from ssl import SSLContext

#: A password, or what gives it: called for each new connection, plainly or awaited.
Password = str | Callable[[], str] | Callable[[], Awaitable[str]]

#: Words of `dialect=`, and whether they work yet.
DIALECTS: Final[Mapping[str, bool]] = {"auto": True, "picodata": True, "postgres": True, "yugabyte": True}

#: Shortest interval between two periodic refreshes of the topology, in seconds.
MIN_UPDATE_INTERVAL: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Everything a pool is told. Sizes are per node; times are seconds.

    Usually made from a connection string by [`from_dsn`][picopyn.settings.PoolSettings.from_dsn];
    `dataclasses.replace` gives a changed copy, which is checked again.

    Attributes:
        endpoints: Where to look for the cluster first, in this order.
        user: User name; None: that of the operating system.
        password: Text, or a callable asked for each new connection; None: the password file is asked.
        passfile: Name of the password file, read for each new connection; None: there is none.
        database: Name of the database; None: that of the user.
        dialect: `"auto"` (the first server that answers says what it is), `"picodata"`, `"postgres"`, `"yugabyte"`,
            or a dialect value of one's own.
        role: Whom calls go to when they do not say: `"leader"`, `"prefer_leader"`, `"replica"`, `"prefer_replica"`,
            `"any"`; None: the leader, where there is one.
        staleness: How far behind a replica of a plain PostgreSQL may be to be preferred (a
            [`StalenessPolicy`][picopyn.staleness.StalenessPolicy]); None: as far as it likes.
        balancer_policy: Which of several equally good PostgreSQL hosts gets a call: `"greedy"` (the least loaded),
            `"round_robin"`, `"random_weighted"` (by answer time), `"two_choices"`, or a function like those of
            `picopyn.routing.balance_policies`.
        fallback_master: Calls for a replica go to the primary where there is no fresh replica.
        master_as_replica_weight: Probability (0 … 1) with which a call for a replica counts the primary as one.
        load_balance: Which nodes of a YugabyteDB are used: False (the first host that works, in the order written),
            True or `"any"`, `"only-primary"`, `"only-rr"`, `"prefer-primary"`, `"prefer-rr"`.
        topology_keys: Where they lie: `"cloud.region.zone:level,…"`, levels 1 (the best) to 10; a zone `*` means all of
            the region.
        fallback_to_topology_keys_only: No other places are used when those are down.
        yb_servers_refresh_interval: Seconds between two looks at the list of servers, 0 … 600; 0: as often as a pool
            may look.
        failed_host_reconnect_delay_secs: Seconds for which a node that failed is left out at least, 0 … 60, as long as
            another one is there.
        rebalance_batch: Most idle connections that are closed per interval because use has moved to other nodes.
        tablet_leaders: On a YugabyteDB, statements whose hash key is known go to the leader of its tablet. None: where
            `load_balance` is on. It needs the extra `picopyn[yugabyte]`.
        yb_follower_read_staleness_ms: How old what is read with `role="replica"` on a YugabyteDB is (milliseconds, at
            least 1000): always that old, even where the leader answers.
        refresh_delay: Time between two looks at the role of a PostgreSQL host, where roles matter.
        refresh_timeout: Longest time of one such look.
        min_size: Connections kept open to each node, at least 0.
        max_size: Most connections to one node, at least 1.
        max_total: Most connections for callers to all nodes together, at least `min_size`; None: no limit beyond
            `max_size`. A node where calls wait and that has none gets one at the expense of another node.
        max_lifetime: Time after which a connection is replaced, up to 10 % earlier; in use, when it is given back.
            None: never.
        max_idle: Time after which an unused connection is closed, up to 10 % later; `min_size` are opened anew.
            None: never.
        topology_update_interval: Time between two periodic refreshes of the topology, at least 1; None: off, then it is
            refreshed only when something failed or a call waits for a leader.
        query_metadata_cache_size: Most statement texts whose routes are remembered, at least 1.
        connect_timeout: Longest time to open one connection.
        acquire_timeout: Longest wait of a call that names no `timeout=` until it can be sent: for a connection, for a
            leader, for a newer look at the cluster. After a failed attempt a new wait begins; the time that the server
            takes does not count. Under a `command_timeout` what ends first counts. A call that names a `timeout=`
            waits and runs within that alone. None: only `command_timeout` counts.
        command_timeout: Longest time of a call that names no `timeout=`, waiting included; None: no limit.
        max_waiting: Most calls that may wait for a connection to one node; 0: no limit. More are refused at once with
            [`TooManyWaiting`][picopyn.errors.TooManyWaiting].
        statement_cache_size: Most prepared statements kept per connection; 0: none.
        keepalives: Whether the system asks a silent peer whether it is still there (TCP keepalive).
        keepalives_idle: Silence before the first such question; None: the system's own setting, as for the next two.
        keepalives_interval: Time between two questions.
        keepalives_count: Questions without an answer after which the connection counts as lost.
        tcp_user_timeout: Longest time that sent bytes may stay unacknowledged (Linux); None: the system's setting.
        ssl: What to do about TLS: one of `SSL_MODES`; an `ssl.SSLContext`; None: `"prefer"`; True: `"verify-full"`
            with the authorities of the system; False: `"disable"`. A keyword `sslmode` is the same.
        sslrootcert: File of the authorities to trust, or `"system"`.
        sslcert: File of the client's certificate.
        sslkey: File of its key; None: it stands in `sslcert`.
        sslpassword: Opens the key.
        sslcrl: File of revoked certificates.
        ssl_min_protocol_version: Oldest version to speak, one of `TLS_VERSIONS`; None: `"TLSv1.2"`.
        ssl_max_protocol_version: Newest version to speak; None: no limit.
        ssl_server_name: The name in the servers' certificates where it is not the host that is dialled: a text for
            all, or a callable from the dialled `(host, port)` to a name, or to None for the host itself.
        application_name: Name under which the server lists the connections; None: not sent.
        options: The start-up key `options`, in the server's own syntax; what the driver needs is added to it.
        server_settings: More start-up keys.
        after_connect: Awaited with each new connection for callers before it is used, and again after each reset. What
            it raises reaches the callers who wait for the connection; the node is not blamed. Also called `init`.
        after_connect_timeout: Longest time of one `after_connect`.
        reset: Whether a connection that was acquired is reset before the next caller gets it, in the background, on
            servers whose sessions have a state (never on Picodata); or a coroutine function that does it your way.
        record_class: Class of the rows that callers get, a subclass of `asyncpg.Record`.
        statement_timeout: Longest time the server works on one statement, as a start-up key; servers without it
            (Picodata) make `open()` fail. In a connection string it needs a unit: `5s`, `500ms`.
        strict_routing: Keyed calls run on connections that refuse to send a statement on (Picodata 26.2, `forward=off`;
            older servers ignore it, other kinds have no keys). A refusal becomes a look at the cluster and another try,
            as long as the call may wait; then it is the server's error. `max_size` counts for these connections and for
            the others, each.
        debug: Remember where connections were acquired, and say it when one is never given back (asyncio's debug
            mode does so too).
        topology_source: A source of one's own instead of polling (see `TopologySource`).
        on_event: Called with every [event][picopyn.observe]; must return soon, and may not be a coroutine
            function.
        address_map: Called with each discovered `(host, port)`, returns the one to dial (for NAT and
            tunnels).
    """

    endpoints: tuple[Endpoint, ...] = ()
    user: str | None = None
    password: Password | None = field(default=None, repr=False)
    passfile: str | None = None
    database: str | None = None
    dialect: Any = "auto"
    role: str | None = None
    staleness: StalenessPolicy | None = None
    balancer_policy: Any = "greedy"
    fallback_master: bool = False
    master_as_replica_weight: float = 0.0
    load_balance: bool | str = False
    topology_keys: str | tuple[str, ...] | list[str] | None = None
    fallback_to_topology_keys_only: bool = False
    yb_servers_refresh_interval: int = 10
    failed_host_reconnect_delay_secs: int = 5
    rebalance_batch: int = 2
    tablet_leaders: bool | None = None
    yb_follower_read_staleness_ms: int = 30_000
    refresh_delay: float = 1.0
    refresh_timeout: float = 2.0
    min_size: int = 1
    max_size: int = 10
    max_total: int | None = None
    max_lifetime: float | None = 3600.0
    max_idle: float | None = 600.0
    topology_update_interval: float | None = 5.0
    query_metadata_cache_size: int = 1000
    connect_timeout: float = 5.0
    acquire_timeout: float | None = 5.0
    command_timeout: float | None = None
    max_waiting: int = 0
    statement_cache_size: int = 100
    keepalives: bool = True
    keepalives_idle: float | None = None
    keepalives_interval: float | None = None
    keepalives_count: int | None = None
    tcp_user_timeout: float | None = None
    ssl: bool | str | SSLContext | None = None
    sslrootcert: str | PathLike[str] | None = None
    sslcert: str | PathLike[str] | None = None
    sslkey: str | PathLike[str] | None = None
    sslpassword: str | None = field(default=None, repr=False)
    sslcrl: str | PathLike[str] | None = None
    ssl_min_protocol_version: str | None = None
    ssl_max_protocol_version: str | None = None
    ssl_server_name: ServerName | None = None
    application_name: str | None = "picopyn"
    options: str | None = None
    server_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    after_connect: Callable[[Any], Awaitable[None]] | None = None
    after_connect_timeout: float = 60.0
    reset: bool | Callable[[Any], Awaitable[None]] = True
    record_class: type | None = None
    statement_timeout: float | None = None
    strict_routing: bool = False
    debug: bool = False
    topology_source: Any = None
    on_event: Callable[[Event], None] | None = None
    address_map: Callable[[str, int], tuple[str, int]] | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_dsn(
        cls,
        dsn: str | Dsn,
        /,
        *,
        environment: Mapping[str, str] | None = None,
        read_file: ReadFile | None = None,
        **overrides: Any,
    ) -> PoolSettings:
        """Settings from a connection string and keywords; a keyword wins over the same word in the string.

        Args:
            dsn: A URI, `key=value` text, or a `Dsn`.
            environment: Where `PG*` variables are looked up for what both leave open; None: nowhere.
            read_file: Reads the file that defines a service; None: a service is refused.
            **overrides: Settings by their names.

        Raises:
            ConfigError: With every problem of the string, of its words and of the keywords.
        """
        spelt: list[str] = []
        overrides = _same_words(overrides, spelt)
        parsed, problems = _parsed(dsn, _for_these(environment, overrides), read_file)
        values, more = _from_words(parsed)
        if environment is not None and environment.get("HOME"):
            values.setdefault("passfile", f"{environment['HOME'].rstrip('/')}/.pgpass")
        known = {f.name for f in fields(cls)}
        written = {
            _ALIASES[name]: name for name in (*(word for word, _ in parsed.params), *overrides) if name in _ALIASES
        }
        problems += more + _renamed(overrides) + spelt
        problems += [_unknown(name, known) for name in overrides if name not in known]
        values.update((name, value) for name, value in overrides.items() if name in known)
        try:
            settings = cls(**values)
        except ConfigError as error:
            # With a string that cannot be read, "no host" would only repeat that.
            problems += [_as_written(p, written) for p in error.problems if not (problems and p == _NO_HOST)]
            settings = None
        if problems or settings is None:
            raise ConfigError(problems)
        return settings

    @property
    def dsn(self) -> Dsn:
        """The hosts and the login as a connection string, for `repr` and logs (it masks the password)."""
        password = self.password if isinstance(self.password, str) else None
        return Dsn(self.endpoints, self.user, password, self.database)


#: Names of other drivers → our own.
_ALIASES: Final[Mapping[str, str]] = {"init": "after_connect", **ALIASES}


def _renamed(overrides: dict[str, Any]) -> list[str]:
    """Replace names of other drivers by ours; what is given twice is a problem."""
    problems = []
    for alias in _ALIASES.keys() & overrides.keys():
        value = overrides.pop(alias)
        if overrides.setdefault(_ALIASES[alias], value) != value:
            problems.append(f"'{alias}' and '{_ALIASES[alias]}' are the same setting")
    return problems


def _as_written(problem: str, written: Mapping[str, str]) -> str:
    """A problem with a setting, under the name that was written for it."""
    name, space, rest = problem.partition(" ")
    return f"{written.get(name, name)}{space}{rest}"


_NO_HOST: Final = "no host is named: give a connection string like postgresql://user@host:4327/"


# --- the words of a connection string -----------------------------------------------------------------


def _parsed(dsn: Any, environment: Mapping[str, str] | None, read_file: ReadFile | None) -> tuple[Dsn, list[str]]:
    if isinstance(dsn, str):
        parsed, problems = connection_string.read(dsn)
    elif isinstance(dsn, Dsn):
        parsed, problems = dsn, []
    else:
        return Dsn(), [f"dsn must be a connection string or a Dsn, not {type(dsn).__name__}"]
    if problems:
        return parsed, problems
    try:
        parsed = with_service(parsed, environment or {}, read_file)
        if environment is not None and parsed.param("ssl") is not None:  # says the same as sslmode
            environment = {name: value for name, value in environment.items() if name != "PGSSLMODE"}
        return parsed.with_environment(environment or {}), []
    except ConfigError as error:
        return parsed.without("service", "servicefile", "port"), [*error.problems]


def _same_words(overrides: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """The keywords with `sslmode`, as other drivers call it, under the name it has here."""
    if "sslmode" not in overrides:
        return overrides
    if "ssl" in overrides:
        problems.append("'ssl' and 'sslmode' are both given")
    return {"ssl" if name == "sslmode" else name: value for name, value in overrides.items()}


def _for_these(environment: Mapping[str, str] | None, overrides: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The environment, without its words about TLS when a keyword says everything about that."""
    said = overrides.get("ssl")
    if environment is None or said is None or isinstance(said, str):
        return environment
    return {name: value for name, value in environment.items() if not name.startswith("PGSSL")}


#: Word → (setting, how its text becomes a value). A text that is no number stays text, and is told as such.
_WORDS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "dialect": ("dialect", str),
    "role": ("role", str),
    "balancer_policy": ("balancer_policy", str),
    "fallback_master": ("fallback_master", switch),
    "master_as_replica_weight": ("master_as_replica_weight", seconds_or_text),
    "tablet_leaders": ("tablet_leaders", switch),
    "refresh_delay": ("refresh_delay", seconds_or_text),
    "refresh_timeout": ("refresh_timeout", seconds_or_text),
    "min_size": ("min_size", whole_or_text),
    "max_size": ("max_size", whole_or_text),
    "max_total": ("max_total", whole_or_text),
    "max_lifetime": ("max_lifetime", seconds_or_text),
    "max_idle": ("max_idle", seconds_or_text),
    "topology_update_interval": ("topology_update_interval", seconds_or_text),
    "query_metadata_cache_size": ("query_metadata_cache_size", whole_or_text),
    "connect_timeout": ("connect_timeout", seconds_or_text),
    "acquire_timeout": ("acquire_timeout", seconds_or_text),
    "command_timeout": ("command_timeout", seconds_or_text),
    "max_waiting": ("max_waiting", whole_or_text),
    "statement_cache_size": ("statement_cache_size", whole_or_text),
    "keepalives": ("keepalives", switch),
    "keepalives_idle": ("keepalives_idle", keepalive(seconds_or_text)),
    "keepalives_interval": ("keepalives_interval", keepalive(seconds_or_text)),
    "keepalives_count": ("keepalives_count", keepalive(whole_or_text)),
    "tcp_user_timeout": ("tcp_user_timeout", milliseconds_or_text),
    "sslmode": ("ssl", str),
    "ssl": ("ssl", ssl_mode),
    **{name: (name, str) for name in (*FILES, "sslpassword", "ssl_server_name")},
    "ssl_min_protocol_version": ("ssl_min_protocol_version", tls_version),
    "ssl_max_protocol_version": ("ssl_max_protocol_version", tls_version),
    "application_name": ("application_name", str),
    "options": ("options", str),
    "passfile": ("passfile", str),
    **words_about_places(whole_or_text, switch),
}


def _from_words(dsn: Dsn) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {
        "endpoints": dsn.endpoints,
        "user": dsn.user,
        "password": dsn.password,
        "database": dsn.database,
    }
    problems: list[str] = []
    for word, text in dsn.params:
        known = ALIASES.get(word, word)
        if known in _WORDS:
            name, convert = _WORDS[known]
            value = convert(text)
            if name in ALIASES.values() and values.get(name, value) != value:
                problems.append(f"'{name}' is given twice, by another name of its own the second time")
            values[name] = value
        elif word == "port":
            problems.append(LONELY_PORT)
        elif word == "statement_timeout":
            problems += _statement_timeout(text, values)
        elif word == "target_session_attrs":
            problems += _session_role(text, dsn, values)
        elif not _changes_nothing(word, text.lower()):
            problems.append(f"'{word}' is not supported yet")
    if dsn.param("ssl") and dsn.param("sslmode"):
        problems.append("'ssl' and 'sslmode' are both given")
    return values, problems


def _statement_timeout(text: str, values: dict[str, Any]) -> list[str]:
    try:
        values["statement_timeout"] = read_duration(text)
    except ValueError as error:
        return [f"statement_timeout: {error}"]
    return []


def _session_role(text: str, dsn: Dsn, values: dict[str, Any]) -> list[str]:
    if text not in SESSION_ROLES:
        return [f"target_session_attrs must be one of {_listed(SESSION_ROLES)}, not {text!r}"]
    if dsn.param("role") is None:
        values["role"] = SESSION_ROLES[text]
    return []


def _changes_nothing(word: str, text: str) -> bool:
    """Whether a word of other drivers asks for what happens in any case."""
    if word == "client_encoding":
        return text.replace("-", "") in ("utf8", "auto")
    if word == "gssencmode":
        return text in ("disable", "prefer")
    if word == "sslnegotiation":
        return text == "postgres"
    return word == "channel_binding" and text in ("disable", "prefer")


# --- checks -------------------------------------------------------------------------------------------

#: Says what a value must be, or None when it is right.
_Check = Callable[[Any], str | None]


def _whole(least: int) -> _Check:
    wanted = f"a whole number of at least {least}"
    return lambda value: None if isinstance(value, int) and not isinstance(value, bool) and value >= least else wanted


def _seconds(least: float = 0.0) -> _Check:
    wanted = f"a number of seconds of at least {least:g}" if least else "a number of seconds above 0"

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            return wanted
        return None if value > 0 and value >= least else wanted

    return check


def _or_none(check: _Check) -> _Check:
    def optional(value: Any) -> str | None:
        wanted = None if value is None else check(value)
        return wanted and f"{wanted}, or None"

    return optional


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value and "\x00" not in value else "a text that is not empty"


def _bool(value: Any) -> str | None:
    return None if isinstance(value, bool) else "a bool"


def _function(value: Any) -> str | None:
    return None if callable(value) else "a callable"


def _plain_function(value: Any) -> str | None:
    return None if callable(value) and not iscoroutinefunction(value) else "a plain callable, not a coroutine"


def _password(value: Any) -> str | None:
    return None if isinstance(value, str) or callable(value) else "a text or a callable"


def _ssl(value: Any) -> str | None:
    if isinstance(value, bool) or value in SSL_MODES or is_context(value):
        return None
    return f"a bool, one of {_listed(SSL_MODES)}, or an ssl.SSLContext"


def _file(value: Any) -> str | None:
    path = str(value) if hasattr(value, "__fspath__") else value
    return None if _text(path) is None else "the name of a file"


def _version(value: Any) -> str | None:
    return None if isinstance(value, str) and value in TLS_VERSIONS else f"one of {_listed(TLS_VERSIONS)}"


def _server_name(value: Any) -> str | None:
    return None if is_name(value) or _plain_function(value) is None else "a host name or a plain callable"


def _server_settings(value: Any) -> str | None:
    texts = isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())
    return None if texts else "a mapping of texts to texts"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _reset(value: Any) -> str | None:
    return None if isinstance(value, bool) or callable(value) else "True, False or a callable"


def _record_class(value: Any) -> str | None:
    bases = getattr(value, "__mro__", ())
    if any(base.__name__ == "Record" and base.__module__.startswith("asyncpg") for base in bases):
        return None
    return "a subclass of asyncpg.Record"


def _source(value: Any) -> str | None:
    methods = ("listen", "refresh", "close", "terminate")
    return None if all(callable(getattr(value, m, None)) for m in methods) else f"an object with {_listed(methods)}"


_CHECKS: Final[Mapping[str, _Check]] = {
    "user": _or_none(_text),
    "password": _or_none(_password),
    "passfile": _or_none(_text),
    "database": _or_none(_text),
    "min_size": _whole(0),
    "max_size": _whole(1),
    "max_total": _or_none(_whole(1)),
    "max_lifetime": _or_none(_seconds()),
    "max_idle": _or_none(_seconds()),
    "topology_update_interval": _or_none(_seconds(MIN_UPDATE_INTERVAL)),
    "query_metadata_cache_size": _whole(1),
    "connect_timeout": _seconds(),
    "acquire_timeout": _or_none(_seconds()),
    "command_timeout": _or_none(_seconds()),
    "max_waiting": _whole(0),
    "statement_cache_size": _whole(0),
    "keepalives": _bool,
    "keepalives_idle": _or_none(_seconds(1)),
    "keepalives_interval": _or_none(_seconds(1)),
    "keepalives_count": _or_none(_whole(1)),
    "tcp_user_timeout": _or_none(_seconds()),
    "ssl": _or_none(_ssl),
    **dict.fromkeys(FILES, _or_none(_file)),
    "sslpassword": _or_none(_text),
    "ssl_min_protocol_version": _or_none(_version),
    "ssl_max_protocol_version": _or_none(_version),
    "ssl_server_name": _or_none(_server_name),
    "application_name": _or_none(_text),
    "options": _or_none(_text),
    "server_settings": _server_settings,
    "after_connect": _or_none(_function),
    "after_connect_timeout": _seconds(),
    "reset": _reset,
    "record_class": _or_none(_record_class),
    "statement_timeout": _or_none(_seconds(0.001)),
    "strict_routing": _flag,
    "debug": _flag,
    "topology_source": _or_none(_source),
    "on_event": _or_none(_plain_function),
    "address_map": _or_none(_plain_function),
}

#: Start-up keys that are settings.
_OWN_KEYS: Final = ("application_name", "options", "statement_timeout")

#: Settings whose value is never told.
_UNTOLD: Final = ("password", "server_settings", "sslpassword")


def _problems(settings: PoolSettings) -> list[str]:
    """Every problem, in the order of the settings."""
    problems = [] if settings.endpoints else [_NO_HOST]
    problems += _dialect_problems(settings.dialect) + role_problems(settings.role)
    wrong = set()
    for name, check in _CHECKS.items():
        value = getattr(settings, name)
        wanted = check(value)
        if wanted is not None:
            wrong.add(name)
            problems.append(f"{name} must be {wanted}" + ("" if name in _UNTOLD else f", not {value!r}"))
    if not wrong & {"min_size", "max_size"} and settings.min_size > settings.max_size:
        problems.append(f"min_size ({settings.min_size}) must not exceed max_size ({settings.max_size})")
    total = settings.max_total
    if not wrong & {"min_size", "max_total"} and total is not None and settings.min_size > total:
        problems.append(f"min_size ({settings.min_size}) must not exceed max_total ({total})")
    if not wrong & {"ssl", "ssl_min_protocol_version", "ssl_max_protocol_version"}:
        problems += contradictions(settings)
    problems += host_problems(settings) + placement_problems(settings)
    if "server_settings" not in wrong:
        twice = [name for name in _OWN_KEYS if name in settings.server_settings]
        problems += [f"'{name}' has a setting of its own; leave it out of server_settings" for name in twice]
    return problems


def check_timeout(timeout: float | None) -> None:
    """Refuse the `timeout=` of a call that is no number of seconds above 0; NaN would upset the loop's timers.

    Raises:
        ValueError: It is none.
    """
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")


def check_grace(grace: float) -> None:
    """Refuse a `grace=` that is no number of seconds.

    Raises:
        ValueError: It is negative, or none.
    """
    if not (_is_number(grace) and grace >= 0):
        raise ValueError(f"grace must be a number of seconds of at least 0, not {grace!r}")


def _is_number(value: Any) -> bool:
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def _dialect_problems(dialect: Any) -> list[str]:
    if not isinstance(dialect, str):
        own = isinstance(getattr(dialect, "name", None), str) and callable(getattr(dialect, "startup_options", None))
        return [] if own else [f"dialect must be one of {_listed(DIALECTS)}, or a dialect, not {dialect!r}"]
    if dialect not in DIALECTS:
        return [f"dialect must be one of {_listed(DIALECTS)}, or a dialect, not {dialect!r}"]
    return [] if DIALECTS[dialect] else [f"dialect {dialect!r} is not supported yet"]


def _unknown(name: str, known: set[str]) -> str:
    if name in GONE:
        return f"'{name}' of picopyn 3 is gone: {GONE[name]}"
    near = get_close_matches(name, known, n=1)
    return f"unknown setting '{name}'" + (f" (did you mean '{near[0]}'?)" if near else "")


def _listed(words: Any) -> str:
    return ", ".join(words)
