"""TLS in practice: files become one `ssl.SSLContext` per pool, and a server is asked whether it speaks TLS.

What is to be done was decided by `picopyn.tls`; here it is done. asyncpg gets a decision, never a word: with TLS, its
own `ssl=` argument carries our context, so that no release of it can come to plain text by itself. Two things it has
no argument for are put in through its argument `loop=`, as a `Doorway` in front of the event loop: the name to ask the
server for, where that is not the dialled host, and the one mode in which the answer "no TLS here" is no error.
`tests/asynchronous/test_tls_connections.py` finds a release that goes past it.

*Source*: PostgreSQL 18 documentation, sections 54.2.11 (SSL session encryption) and 32.19 (files in `~/.postgresql`).
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import asyncpg

from picopyn.errors import ConfigError
from picopyn.tls import SYSTEM, Attempt, TlsPlan, Verify, is_context, plan

Address = tuple[str, int]

#: Asks whether the server speaks TLS; answered with one byte, `S` or `N`.
SSL_REQUEST: Final = struct.pack("!II", 8, 80877103)

#: Asks whether the server speaks GSSAPI encryption; it answers `N`, or closes the connection.
GSS_REQUEST: Final = struct.pack("!II", 8, 80877104)

#: How long the other side may take to say goodbye (seconds).
GOODBYE: Final = 1.0

#: Word → where libpq looks for the file when the word is not given, below the user's home.
_AT_HOME: Final[Mapping[str, str]] = {
    "sslrootcert": "root.crt",
    "sslcrl": "root.crl",
    "sslcert": "postgresql.crt",
    "sslkey": "postgresql.key",
}


class TlsFailed(ConnectionError):  # noqa: N818 - names the event
    """No encrypted connection came about; the text says why and what to change."""


# --- from settings to a context -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Security:
    """What a pool does about TLS; shared by everything that opens connections for it.

    Attributes:
        plan: What is decided.
        context: The one context with which it is done; None when it never is.
        not_accepted: Addresses whose certificate was not accepted when they were tried last.
    """

    plan: TlsPlan
    context: ssl.SSLContext | None
    not_accepted: set[tuple[str, int]] = field(default_factory=set)


def prepare(settings: Any) -> Security:
    """Decide what a pool does about TLS, and make its context.

    Reads the files that are named, once: a context that is kept makes a connection cheaper (`measurements.md` section
    7), and a missing file is told before any socket is opened.

    Raises:
        ConfigError: With everything that is missing, cannot be read or does not fit together.
    """
    decided, problems = plan(settings, files_at_home())
    if is_context(settings.ssl):
        return Security(decided, settings.ssl)
    context = None
    if decided.may_encrypt:
        context = _context(decided, problems)
    if problems:
        raise ConfigError(problems)
    return Security(decided, context)


def files_at_home() -> dict[str, str]:
    """Word → file, for those of libpq's default files that the user has."""
    try:
        home = Path.home()
    except RuntimeError:
        return {}
    places = {word: home / ".postgresql" / name for word, name in _AT_HOME.items()}
    return {word: str(place) for word, place in places.items() if _is_file(place)}


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:
        return False


def _context(decided: TlsPlan, problems: list[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = decided.verify is Verify.NAME
    context.verify_mode = ssl.CERT_NONE if decided.verify is Verify.NOTHING else ssl.CERT_REQUIRED
    context.minimum_version = _version(decided.oldest) or ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = _version(decided.newest) or ssl.TLSVersion.MAXIMUM_SUPPORTED
    context.set_alpn_protocols(["postgresql"])
    problems += [
        *_trust(context, decided.root),
        *_revoke(context, decided.crl),
        *_introduce(context, decided),
    ]
    return context


def _version(word: str | None) -> ssl.TLSVersion | None:
    return None if word is None else ssl.TLSVersion[word.replace(".", "_")]


def _trust(context: ssl.SSLContext, root: str | None) -> Iterator[str]:
    if root == SYSTEM:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    elif root is not None:
        yield from _load("sslrootcert", root, "a certificate", lambda path: context.load_verify_locations(path))


def _revoke(context: ssl.SSLContext, crl: str | None) -> Iterator[str]:
    if crl is not None:
        yield from _load("sslcrl", crl, "a revocation list", lambda path: context.load_verify_locations(path))
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN


def _load(word: str, file: str, what: str, load: Callable[[Path], None]) -> Iterator[str]:
    path = Path(file).expanduser()
    try:
        load(path)
    except ssl.SSLError:
        yield f"{word} {file!r} is not {what} in PEM format"
    except OSError as error:
        yield f"{word} {file!r} cannot be read: {error.strerror or error}"


def _introduce(context: ssl.SSLContext, decided: TlsPlan) -> Iterator[str]:
    """Load the client's certificate. A key that is encrypted is never asked for on a terminal."""
    if decided.cert is None:
        return
    files = {"sslcert": decided.cert} | ({"sslkey": decided.key} if decided.key is not None else {})
    unreadable = [problem for word, file in files.items() for problem in _load(word, file, "", _open)]
    if unreadable:
        yield from unreadable
        return
    asked: list[bool] = []

    def password() -> str:
        asked.append(True)
        return decided.password or ""

    cert, key = Path(decided.cert).expanduser(), decided.key and Path(decided.key).expanduser()
    try:
        context.load_cert_chain(cert, key or None, password=password)
    except (ssl.SSLError, ValueError) as error:
        yield _misfit(error, list(files.items()), decided.password is not None, bool(asked))


def _open(path: Path) -> None:
    with path.open("rb"):
        pass


def _misfit(error: Exception, files: list[tuple[str, str]], has_password: bool, asked: bool) -> str:
    word, file = files[-1]
    if asked:
        return f"sslpassword does not open {word} {file!r}" if has_password else f"{word} {file!r} needs an sslpassword"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"sslkey {file!r} is not the key of sslcert {files[0][1]!r}"
    return " and ".join(f"{word} {file!r}" for word, file in files) + " hold no certificate with its key in PEM format"


# --- from a context to a connection -------------------------------------------------------------------


class Stage(Enum):
    """How far a connection has come with TLS."""

    ASKED = "the server is asked for TLS"
    SHAKING_HANDS = "the hand-shake"
    AGREED = "both sides know how they talk; what fails now is not about TLS any more"


class Doorway:
    """What asyncpg is given as its event loop while TLS is possible: the loop itself, but for two methods.

    Args:
        loop: The event loop; everything else is its own.
        decided: What the pool does about TLS.
        attempt: How this connection is made, and those that ask the server to cancel something on it.
        context: With what.
        limit: How long a hand-shake may take (seconds).

    Attributes:
        stage: How far it has come.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        decided: TlsPlan,
        attempt: Attempt,
        context: ssl.SSLContext,
        limit: float,
    ) -> None:
        self._loop = loop
        self._decided = decided
        self._attempt = attempt
        self._context = context
        self._limit = limit
        self._address: Address = ("", 0)
        self._transport: Any = None
        self.stage = Stage.ASKED
        # What every call on a connection needs is at hand.
        self.create_future = loop.create_future
        self.call_later = loop.call_later
        self.time = loop.time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._loop

    def __hash__(self) -> int:  # `asyncio.current_task` looks for the loop in a dict
        return hash(self._loop)

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int, **more: Any) -> Any:
        """Connect; where the server is free to offer no TLS, come to terms with it as well."""
        self._address = (host, port)
        if self._attempt is Attempt.TLS:
            return await self._loop.create_connection(factory, host, port, **more)
        transport, answer = await self._loop.create_connection(_Answer, host, port, **more)
        try:
            transport.write(SSL_REQUEST)
            if (await answer.word()) == b"S":
                transport = await self.start_tls(transport, answer, self._context)
            self.stage = Stage.AGREED
            protocol = factory()
            protocol.connection_made(transport)
            transport.set_protocol(protocol)
            transport.resume_reading()
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    async def start_tls(self, transport: Any, protocol: Any, context: ssl.SSLContext, **more: Any) -> Any:
        """Shake hands, asking for the server by the name it is known under."""
        self.stage = Stage.SHAKING_HANDS
        more["server_hostname"] = self._decided.name_of(*self._address)
        try:
            self._transport = await self._loop.start_tls(
                transport, protocol, context, ssl_handshake_timeout=self._limit, ssl_shutdown_timeout=GOODBYE, **more
            )
        except BaseException:
            transport.abort()
            raise
        self.stage = Stage.AGREED
        return self._transport

    def on(self, loop: Any) -> Doorway:
        """The same for another event loop and another connection."""
        return Doorway(loop, self._decided, self._attempt, self._context, self._limit)

    def drop(self) -> None:
        """Give up what was being set up. Merely closing it, as asyncpg does, would wait for a goodbye."""
        if self._transport is not None:
            self._transport.abort()


class _Answer(asyncio.Protocol):
    """Waits for the one byte that answers the question for TLS, and reads nothing more."""

    def __init__(self) -> None:
        # Holds an error as a result: nobody would fetch an exception after a cancellation.
        self._word: asyncio.Future[bytes | ConnectionError] = asyncio.get_running_loop().create_future()
        self._transport: Any = None

    async def word(self) -> bytes:
        """The answer, `S` or `N`."""
        word = await self._word
        if isinstance(word, ConnectionError):
            raise word
        return word

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()
        # More than the byte, or another one, is not shown: nothing protected it (CVE-2021-23222, CVE-2024-10977).
        odd = ConnectionError("the server answers the question for TLS with something else")
        self._settle(data if data in (b"S", b"N") else odd)

    def connection_lost(self, exc: Exception | None) -> None:
        error = ConnectionError("the server closed the connection when it was asked for TLS")
        error.__cause__ = exc
        self._settle(error)

    def _settle(self, word: bytes | ConnectionError) -> None:
        if not self._word.done():
            self._word.set_result(word)


# --- what went wrong ----------------------------------------------------------------------------------


class NotOffered(TlsFailed):
    """The server did not take part in TLS at all."""


def explained(error: Exception, decided: TlsPlan, doorway: Doorway | None, address: Address) -> Exception:
    """The error of an attempt in words that say what to change; most come back as they were.

    Server errors keep their class; those that are about TLS get a hint.

    Args:
        error: What happened.
        decided: What the pool does about TLS.
        doorway: The doorway of the attempt; None: it was one without TLS.
        address: Who was dialled.
    """
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        _hint(error, decided, plain=doorway is None)
    elif doorway is not None:
        return _told(error, decided, doorway, address)
    return error


def _told(error: Exception, decided: TlsPlan, doorway: Doorway, address: Address) -> Exception:
    found = _tls_error(error)
    if found is not None:
        return _failed(found, decided, address)
    if isinstance(error, ConnectionError) and doorway.stage is Stage.SHAKING_HANDS:
        return _caused(TlsFailed(f"TLS with {_shown(address)} failed: the server closed the connection"), error)
    if isinstance(error, ConnectionError) and doorway.stage is Stage.ASKED and error.errno is None:
        return _not_offered(error, decided, address)
    return error


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error that an error is or comes from."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__
    return error


def _failed(error: ssl.SSLError, decided: TlsPlan, address: Address) -> TlsFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = (
            f"the certificate of {_shown(address)} is not accepted: {error.verify_message} "
            f"(expected: {decided.name_of(*address)!r}; {decided.said}). "
            "Look at sslrootcert, or name the server with ssl_server_name"
        )
    else:
        text = f"TLS with {_shown(address)} failed: {error.reason or error}"
        if "CERTIFICATE_REQUIRED" in text or "HANDSHAKE_FAILURE" in text:
            text += ". If the server asks for a client's certificate, give it sslcert and sslkey"
    return _caused(TlsFailed(text), error)


def _not_offered(error: ConnectionError, decided: TlsPlan, address: Address) -> TlsFailed:
    why = str(error) or type(error).__name__
    text = f"no TLS with {_shown(address)}, which {decided.said} asks for: {why}. Turn it on there, or change sslmode"
    return _caused(NotOffered(text), error)


def _caused(failed: TlsFailed, error: Exception) -> TlsFailed:
    failed.__cause__ = error
    return failed


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hint(error: Any, decided: TlsPlan, *, plain: bool) -> None:
    """Add what to change; asyncpg shows it behind the server's own words."""
    text = str(error).lower()
    if error.hint is not None or error.sqlstate != "28000":
        return
    if plain and ("ssl" in text or "no encryption" in text):
        error.hint = f"the connection was not encrypted ({decided.said}); with sslmode=require or stronger it is"
    elif not plain and "ssl encryption" in text:
        error.hint = f"the connection was encrypted ({decided.said}); with sslmode=disable or allow it is not"
