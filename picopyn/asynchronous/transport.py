"""Dialling: from an address and a purpose to an authenticated connection, and asking seeds who is awake.

A node that hangs accepts TCP and says nothing, so the first word decides: seeds are asked in parallel with the one
question every PostgreSQL-protocol server answers before it knows who asks (`SSLRequest`: one byte, `S` or `N`;
`picodata-protocol.md` section 8 for Picodata). No password is sent by that, so a wrong one reaches one node only.
Whoever wants no TLS is not asked for it: `GSSENCRequest` is the other such question, and Picodata answers it by closing
the connection, which says as much.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from picopyn.asynchronous import tls
from picopyn.asynchronous.connection import Connection
from picopyn.dialects.base import Dialect, Purpose
from picopyn.errors import Fault
from picopyn.settings import PoolSettings
from picopyn.tls import Attempt

_LOG = logging.getLogger("picopyn.asynchronous.transport")

Address = tuple[str, int]

#: How much later a less preferred group of addresses is asked (seconds).
STAGGER = 0.1


class Dialer:
    """Opens connections with the credentials of one pool.

    Args:
        settings: Credentials, time limits, statement cache.
        dialect: The kind of server: decides the start-up options of each purpose.

    Raises:
        ConfigError: A file that TLS needs is missing, or cannot be what it should be.
    """

    def __init__(self, settings: PoolSettings, dialect: Dialect) -> None:
        self._settings = settings
        self._dialect = dialect
        self._tls, self._context = tls.prepare(settings)
        self._not_accepted: set[Address] = set()

    @property
    def knock(self) -> Knock:
        """How to ask these servers for a first word."""
        if not self._tls.may_encrypt:
            return Knock(tls.GSS_REQUEST, closing_counts=True)
        return Knock(tls.SSL_REQUEST, closing_counts=self._tls.attempts[0] is Attempt.PLAIN)

    async def dial(
        self, address: Address, purpose: Purpose, on_notice: Callable[[str], None] | None = None
    ) -> Connection:
        """Open one connection within the connect timeout.

        Raises:
            TimeoutError: The node did not complete the hand-shake in time.
            OSError: It could not be reached.
            asyncpg.PostgresError: It refused.
        """
        connection = await self._connect(address, purpose)
        connection.read_into_kept_buffer()
        connection.on_notice = on_notice
        connection.endpoint = address
        return connection  # type: ignore[no-any-return]

    async def _connect(self, address: Address, purpose: Purpose) -> Any:
        """Try the ways that `sslmode` leaves, one limit for all of them."""
        refused: asyncpg.PostgresError | None = None
        async with asyncio.timeout(self._settings.connect_timeout):
            *first, last = self._tls.attempts_at(address[0])
            for attempt in first:
                try:
                    return await self._attempt(address, purpose, attempt)
                except asyncpg.InvalidAuthorizationSpecificationError as error:
                    if error.sqlstate != "28000":  # a wrong password is wrong with TLS, too, and it is counted
                        raise
                    refused = error
            try:
                return await self._attempt(address, purpose, last)
            except tls.NotOffered:
                if refused is None:
                    raise
                raise refused from None

    async def _attempt(self, address: Address, purpose: Purpose, attempt: Attempt) -> Any:
        doorway = self._doorway(attempt)
        try:
            connection = await self._open(address, purpose, doorway, encrypted=attempt is Attempt.TLS)
        except BaseException as error:
            if doorway is not None:
                doorway.drop()
            if not isinstance(error, Exception):
                raise
            told = tls.explained(error, self._tls, doorway, address)
            self._warn_once(told, address)
            if told is error:
                raise
            raise told from error
        self._not_accepted.discard(address)
        return connection

    def _doorway(self, attempt: Attempt) -> tls.Doorway | None:
        if attempt is Attempt.PLAIN or self._context is None:
            return None
        loop = asyncio.get_running_loop()
        return tls.Doorway(loop, self._tls, attempt, self._context, self._settings.connect_timeout)

    async def _open(self, address: Address, purpose: Purpose, doorway: tls.Doorway | None, *, encrypted: bool) -> Any:
        settings = self._settings
        # asyncpg takes these, but its types say otherwise.
        arguments: dict[str, Any] = {"timeout": None, "loop": doorway}
        return await asyncpg.connect(
            host=address[0],
            port=address[1],
            user=settings.user,
            password=settings.password,
            database=settings.database,
            ssl=self._context if encrypted else False,
            direct_tls=False,
            target_session_attrs="any",
            statement_cache_size=settings.statement_cache_size,
            server_settings=self._start_up(purpose),
            connection_class=Connection,
            **arguments,
        )

    def _warn_once(self, error: Exception, address: Address) -> None:
        """A node whose certificate is not accepted is left out, which should not go unnoticed."""
        if isinstance(error.__cause__, ssl.SSLCertVerificationError) and address not in self._not_accepted:
            self._not_accepted.add(address)
            _LOG.warning("a node is not used: %s", error)

    def _start_up(self, purpose: Purpose) -> dict[str, str]:
        settings = self._settings
        keys = {**settings.server_settings, **self._dialect.startup_options(purpose)}
        options = [settings.options, settings.server_settings.get("options"), keys.get("options")]
        if joined := ",".join(dict.fromkeys(option for option in options if option)):
            keys["options"] = joined
        if settings.application_name is not None:
            keys.setdefault("application_name", settings.application_name)
        return keys


@dataclass(frozen=True, slots=True)
class Knock:
    """A question to which every server has an answer.

    Attributes:
        question: What is sent.
        closing_counts: Whether closing the connection is an answer, too.
    """

    question: bytes
    closing_counts: bool


_KNOCK = Knock(tls.SSL_REQUEST, closing_counts=False)


async def awake(
    groups: Sequence[Sequence[Address]], timeout: float, failed: dict[Address, str], knock: Knock = _KNOCK
) -> AsyncGenerator[Address, None]:
    """Ask addresses in parallel whether somebody answers; yield those that do, in the order of their answers.

    Args:
        groups: Whom to ask; each group is asked `STAGGER` seconds after the one before it.
        timeout: Limit for each answer (seconds).
        failed: Receives the reason for every address that did not answer.
        knock: How to ask.
    """
    asking: dict[asyncio.Task[None], Address] = {}
    for number, group in enumerate(groups):
        for address in group:
            if address not in asking.values():
                asking[asyncio.create_task(_first_word(address, timeout, number * STAGGER, knock))] = address
    try:
        pending = set(asking)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for asked in done:
                error = asked.exception()
                if error is None:
                    yield asking[asked]
                else:
                    failed[asking[asked]] = str(error) or f"no answer within {timeout:g} s"
    finally:
        for asked in asking:
            asked.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _first_word(address: Address, timeout: float, delay: float, knock: Knock) -> None:
    if delay:
        await asyncio.sleep(delay)
    async with asyncio.timeout(timeout):
        reader, writer = await _connect(address)
        try:
            writer.write(knock.question)
            if not await _one_byte(reader, knock) and not knock.closing_counts:
                raise ConnectionError("the server closed the connection")
        finally:
            writer.transport.abort()


async def _one_byte(reader: asyncio.StreamReader, knock: Knock) -> bytes:
    try:
        return await reader.read(1)
    except ConnectionResetError:
        if knock.closing_counts:
            return b""
        raise


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


def fault(error: BaseException) -> Fault | None:
    """What an error of the connection itself means; None when the server or the caller's arguments speak."""
    if isinstance(error, asyncpg.exceptions.ConnectionDoesNotExistError):
        return Fault.LOST
    if isinstance(error, asyncpg.InterfaceError):
        return Fault.NOT_SENT if "connection is closed" in str(error) else None
    if isinstance(error, OSError | asyncpg.InternalClientError):
        return Fault.LOST
    return None
