"""TLS: what a pool does about it, decided from words before anything is opened or read.

This file decides what each `sslmode` means: whether TLS is used, asked for or left out, what of the server's
certificate is checked, which files that needs, and under which name a host is known. It reads no file and opens
nothing; which files the user keeps at libpq's default places comes in as a mapping. Making an `ssl.SSLContext` of a
plan, and speaking TLS, is the affair of `picopyn.asynchronous.tls`.

The words are libpq's, with one rule that is stricter: under `prefer`, plain text follows only when the server itself
offers no TLS. A hand-shake or a verification that fails is an error and never a reason to go on without.

*Source*: PostgreSQL 18 documentation, sections 32.1.2 (parameter key words) and 32.19 (SSL support).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

#: Words of `ssl=` and `sslmode=`, as libpq names them.
SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

#: Versions of the protocol, oldest first, as libpq names them.
TLS_VERSIONS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")

#: The oldest version that is spoken when nobody says otherwise.
OLDEST: Final = "TLSv1.2"

#: The value of `sslrootcert` that means: the authorities that the operating system trusts.
SYSTEM: Final = "system"

#: Words whose settings name a file.
FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

#: Settings that an `ssl.SSLContext` answers by itself.
SAID_BY_CONTEXT: Final = (*FILES, "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version")

#: One name for every server, or what gives the name of a dialled (host, port); None: the host itself.
ServerName = str | Callable[[str, int], str | None]


class Attempt(Enum):
    """One way to connect."""

    PLAIN = "without TLS"
    OFFERED = "with TLS, or without if the server offers none"
    TLS = "with TLS"


class Verify(Enum):
    """What of the server's certificate is checked."""

    NOTHING = "nothing"
    CHAIN = "that a trusted authority issued it"
    NAME = "that a trusted authority issued it, for the name that is dialled"


_ATTEMPTS: Final[Mapping[str, tuple[Attempt, ...]]] = {
    "disable": (Attempt.PLAIN,),
    "allow": (Attempt.PLAIN, Attempt.TLS),
    "prefer": (Attempt.OFFERED,),
}
_VERIFY: Final[Mapping[str, Verify]] = {"verify-ca": Verify.CHAIN, "verify-full": Verify.NAME}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPlan:
    """What a pool does about TLS, for every host.

    Attributes:
        said: What the user wrote, for messages: `"sslmode=require"`.
        attempts: The ways to connect over TCP, in this order; the next one only after the server refused (28000).
        verify: What is checked; None when a context of the user's own decides.
        root: File of trusted authorities, or `SYSTEM`, or None.
        cert: File of the client's certificate, or None.
        key: File of its key; None: it stands in `cert`.
        password: Opens the key, or None.
        crl: File of revoked certificates, or None.
        oldest: The oldest version of the protocol, or None for a context of the user's own.
        newest: The newest one; None: no limit.
        server_name: Under which name the servers are known, where that is not the host that is dialled.
        names: The name under which an address was found; filled while names are looked up.
    """

    said: str
    attempts: tuple[Attempt, ...]
    verify: Verify | None = None
    root: str | None = None
    cert: str | None = None
    key: str | None = None
    password: str | None = field(default=None, repr=False)
    crl: str | None = None
    oldest: str | None = None
    newest: str | None = None
    server_name: ServerName | None = None
    names: dict[tuple[str, int], str] = field(default_factory=dict, compare=False)

    @property
    def may_encrypt(self) -> bool:
        """Whether TLS is ever spoken."""
        return self.attempts != (Attempt.PLAIN,)

    def attempts_at(self, host: str) -> tuple[Attempt, ...]:
        """The ways to connect to a host; on a Unix socket there is no TLS, whatever was said."""
        return (Attempt.PLAIN,) if host.startswith("/") else self.attempts

    def name_of(self, host: str, port: int) -> str:
        """The name to ask a dialled host for, and to find in its certificate.

        Raises:
            ValueError: The `ssl_server_name` of the user gives something that is no name.
        """
        given = self.server_name(host, port) if callable(self.server_name) else self.server_name
        if given is None:
            return self.names.get((host, port), host)
        if not is_name(given):
            raise ValueError(f"ssl_server_name gives no name for {host}:{port}, but {given!r}")
        return given


def is_name(value: Any) -> bool:
    """Whether TLS can ask a server for this name."""
    if not isinstance(value, str) or not value or value.startswith(".") or "\x00" in value:
        return False
    try:
        value.encode("idna")
    except UnicodeError:
        return False
    return True


def mode(ssl: Any, root: Any) -> str:
    """The `sslmode` that a pool's `ssl` and `sslrootcert` come to.

    `None` is `prefer`, as everywhere; only with `sslrootcert=system` it is `verify-full`, since anybody can get a
    certificate from one of those authorities. `True` is `verify-full`, as asyncpg has it.
    """
    if ssl is None:
        return "verify-full" if root == SYSTEM else "prefer"
    if isinstance(ssl, bool):
        return "verify-full" if ssl else "disable"
    return str(ssl)


def is_context(value: Any) -> bool:
    """Whether a value serves as an `ssl.SSLContext`."""
    return hasattr(value, "wrap_bio")


def contradictions(settings: Any) -> Iterator[str]:
    """What contradicts itself in TLS settings whose values are right by themselves.

    Args:
        settings: Has the attributes `ssl` and those of `SAID_BY_CONTEXT`.
    """
    if is_context(settings.ssl):
        twice = [name for name in SAID_BY_CONTEXT if getattr(settings, name) is not None]
        if twice:
            yield f"ssl is an SSLContext and says everything itself; leave out {', '.join(twice)}"
        return
    word = mode(settings.ssl, settings.sslrootcert)
    if settings.sslrootcert == SYSTEM and word not in ("disable", "verify-full"):
        yield f"sslrootcert=system needs sslmode=verify-full, not {word}: they give anybody a certificate"
    if settings.sslkey is not None and settings.sslcert is None:
        yield "sslkey is given without sslcert"
    versions = (settings.ssl_min_protocol_version or OLDEST, settings.ssl_max_protocol_version)
    if versions[1] is not None and _rank(versions[0]) > _rank(versions[1]):
        yield f"ssl_min_protocol_version ({versions[0]}) must not exceed ssl_max_protocol_version ({versions[1]})"


def _rank(version: str) -> int:
    return TLS_VERSIONS.index(version)


def plan(settings: Any, at_home: Mapping[str, str]) -> tuple[TlsPlan, list[str]]:
    """What a pool does about TLS.

    Args:
        settings: TLS settings without `contradictions`; see there.
        at_home: Word → file, for those that stand at libpq's default places (`~/.postgresql/root.crt` …).

    Returns:
        The plan, and what it lacks, one sentence each; with problems, the plan is only good for finding more.
    """
    if is_context(settings.ssl):
        plan = TlsPlan(said="an ssl.SSLContext", attempts=(Attempt.TLS,), server_name=settings.ssl_server_name)
        return plan, []
    word = mode(settings.ssl, settings.sslrootcert)
    if word == "disable":
        return TlsPlan(said="sslmode=disable", attempts=_ATTEMPTS[word]), []
    made = _with_files(settings, word, at_home)
    return made, list(_lacks(made, word))


def _with_files(settings: Any, word: str, at_home: Mapping[str, str]) -> TlsPlan:
    written = {name: _path(getattr(settings, name)) for name in FILES}
    root = written["sslrootcert"]
    if root is None and settings.ssl is True:
        root = SYSTEM
    if root is None and word not in ("allow", "prefer"):
        root = at_home.get("sslrootcert")
    # libpq verifies the chain under any mode for which there is a root certificate.
    verify = _VERIFY.get(word, Verify.NOTHING if root is None else Verify.CHAIN)
    crl = written["sslcrl"]
    if crl is None and verify is not Verify.NOTHING and root != SYSTEM:
        crl = at_home.get("sslcrl")
    cert, key = written["sslcert"], written["sslkey"]
    if cert is None and "sslcert" in at_home and "sslkey" in at_home:
        cert, key = at_home["sslcert"], at_home["sslkey"]
    return TlsPlan(
        said=f"sslmode={word}",
        attempts=_ATTEMPTS.get(word, (Attempt.TLS,)),
        verify=verify,
        root=root,
        cert=cert,
        key=key,
        password=settings.sslpassword,
        crl=crl,
        oldest=settings.ssl_min_protocol_version or OLDEST,
        newest=settings.ssl_max_protocol_version,
        server_name=settings.ssl_server_name,
    )


def _lacks(plan: TlsPlan, word: str) -> Iterator[str]:
    if plan.verify is not Verify.NOTHING and plan.root is None:
        yield f"sslmode={word} needs the authorities to trust: sslrootcert=<file>, or sslrootcert=system"
    if plan.crl is not None and plan.verify is Verify.NOTHING:
        yield f"sslcrl is given, but sslmode={word} without sslrootcert verifies no certificate"
    if plan.password is not None and plan.cert is None:
        yield "sslpassword is given without sslcert"


def _path(value: Any) -> str | None:
    return None if value is None else str(value)
