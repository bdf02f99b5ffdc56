"""Framing of the PostgreSQL protocol, version 3, as far as Picodata speaks it: bytes to messages and back.
Pure.

Decides what a message's bytes are. Must not know what a message means, nor a socket.

*Source*: PostgreSQL documentation, chapter "Frontend/Backend Protocol", sections "Message Formats" and
"Overview".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

PROTOCOL_3 = 196608
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102

_int32 = struct.Struct("!i")
_int16 = struct.Struct("!h")
_head = struct.Struct("!cI")
_column_tail = struct.Struct("!ihihih")


class ProtocolViolation(Exception):  # noqa: N818 - it is what happened
    """The bytes are no message Picodata reads; the connection ends without a word."""


@dataclass(frozen=True, slots=True)
class Parse:
    """Prepare `text` under `name`; `oids` are the parameter types the client declared (0: unspecified)."""

    name: str
    text: str
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """Make `portal` from `statement` with parameter values; formats are 0 (text) and 1 (binary)."""

    portal: str
    statement: str
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """Describe a statement (`kind` `"S"`) or a portal (`"P"`)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Close:
    """Forget a statement (`kind` `"S"`) or a portal (`"P"`)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a portal; `limit` 0 means all rows."""

    portal: str
    limit: int


@dataclass(frozen=True, slots=True)
class Query:
    """Simple protocol: run one text."""

    text: str


@dataclass(frozen=True, slots=True)
class Password:
    """Any message of type `p`: a password, a SASL start or a SASL answer, as was asked."""

    body: bytes


@dataclass(frozen=True, slots=True)
class CopyData:
    """Any of the COPY messages, which Picodata reads and refuses; `shown` is how its refusal prints it."""

    shown: str


@dataclass(frozen=True, slots=True)
class Bare:
    """A message without content: `"sync"`, `"flush"` or `"terminate"`."""

    name: str


Message = Parse | Bind | Describe | Close | Execute | Query | Password | CopyData | Bare

SYNC = Bare("sync")
FLUSH = Bare("flush")
TERMINATE = Bare("terminate")
_BARE = {b"S": SYNC, b"H": FLUSH, b"X": TERMINATE}


class Framer:
    """Cuts a byte stream into packets. First the packets without a type byte (start-up), then typed messages.

    Owner: one session; nobody else feeds it.
    """

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take more bytes from the stream."""
        self._bytes = self._bytes[self._at :] + data if self._at < len(self._bytes) else data
        self._at = 0

    def start_up(self) -> bytes | None:
        """The next untyped packet without its length, or None if it is not complete.

        Raises:
            ProtocolViolation: The length cannot be right.
        """
        if len(self._bytes) < self._at + 4:
            return None
        length: int = _int32.unpack_from(self._bytes, self._at)[0]
        if not 8 <= length <= 10_000:
            raise ProtocolViolation(f"start-up packet of {length} bytes")
        return self._cut(4, length)

    def next_message(self) -> Message | None:
        """The next typed message, or None if it is not complete.

        Raises:
            ProtocolViolation: A message Picodata cannot decode.
        """
        if len(self._bytes) < self._at + 5:
            return None
        kind, length = _head.unpack_from(self._bytes, self._at)
        if not 4 <= length < 1 << 30:
            raise ProtocolViolation(f"message of {length} bytes")
        body = self._cut(5, length + 1)
        return None if body is None else _decode(kind, body)

    def _cut(self, head: int, size: int) -> bytes | None:
        start, end = self._at + head, self._at + size
        if len(self._bytes) < end:
            return None
        self._at = end
        return self._bytes[start:end]


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def text(self) -> str:
        end = self._body.index(0, self._at)
        found = self._body[self._at : end].decode()
        self._at = end + 1
        return found

    def int16(self) -> int:
        value: int = _int16.unpack_from(self._body, self._at)[0]
        self._at += 2
        return value

    def int32(self) -> int:
        value: int = _int32.unpack_from(self._body, self._at)[0]
        self._at += 4
        return value

    def letter(self) -> str:
        self._at += 1
        return chr(self._body[self._at - 1])

    def value(self) -> bytes | None:
        length = self.int32()
        if length < 0:
            return None
        found = self._body[self._at : self._at + length]
        if len(found) < length:
            raise ProtocolViolation("value shorter than announced")
        self._at += length
        return found


def _decode(kind: bytes, body: bytes) -> Message:
    bare = _BARE.get(kind)
    if bare is not None:
        return bare
    decode = _DECODERS.get(kind)
    if decode is None:
        raise ProtocolViolation(f"message type {kind!r}")
    try:
        return decode(_Reader(body), body)
    except (ValueError, IndexError, struct.error) as error:
        raise ProtocolViolation(f"message type {kind!r}: {error}") from None


def _parse(reader: _Reader, _: bytes) -> Message:
    name, text = reader.text(), reader.text()
    return Parse(name, text, tuple(reader.int32() & 0xFFFFFFFF for _ in range(reader.int16() & 0xFFFF)))


def _bind(reader: _Reader, _: bytes) -> Message:
    portal, statement = reader.text(), reader.text()
    formats = tuple(reader.int16() for _ in range(reader.int16() & 0xFFFF))
    values = tuple(reader.value() for _ in range(reader.int16() & 0xFFFF))
    return Bind(portal, statement, formats, values, tuple(reader.int16() for _ in range(reader.int16() & 0xFFFF)))


def _copy(reader: _Reader, body: bytes) -> Message:
    shown = "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in body)
    return CopyData(f'CopyData(CopyData {{ data: b"{shown}" }})')


_DECODERS: dict[bytes, Callable[[_Reader, bytes], Message]] = {
    b"P": _parse,
    b"B": _bind,
    b"D": lambda reader, _: Describe(reader.letter(), reader.text()),
    b"C": lambda reader, _: Close(reader.letter(), reader.text()),
    b"E": lambda reader, _: Execute(reader.text(), reader.int32()),
    b"Q": lambda reader, _: Query(reader.text()),
    b"p": lambda _, body: Password(body),
    b"d": _copy,
    b"c": lambda *_: CopyData("CopyDone(CopyDone)"),
    b"f": lambda reader, _: CopyData(f'CopyFail(CopyFail {{ message: "{reader.text()}" }})'),
}


def message(kind: bytes, body: bytes = b"") -> bytes:
    """One typed message."""
    return _head.pack(kind, len(body) + 4) + body


PARSE_COMPLETE = message(b"1")
BIND_COMPLETE = message(b"2")
CLOSE_COMPLETE = message(b"3")
NO_DATA = message(b"n")
EMPTY_QUERY = message(b"I")
PORTAL_SUSPENDED = message(b"s")
READY = message(b"Z", b"I")
AUTHENTICATION_OK = message(b"R", _int32.pack(0))


def ask_md5(salt: bytes) -> bytes:
    """AuthenticationMD5Password."""
    return message(b"R", _int32.pack(5) + salt)


def ask_sasl(mechanisms: Iterable[str]) -> bytes:
    """AuthenticationSASL."""
    return message(b"R", _int32.pack(10) + b"".join(name.encode() + b"\0" for name in mechanisms) + b"\0")


def sasl_continue(data: bytes) -> bytes:
    """AuthenticationSASLContinue."""
    return message(b"R", _int32.pack(11) + data)


def sasl_final(data: bytes) -> bytes:
    """AuthenticationSASLFinal."""
    return message(b"R", _int32.pack(12) + data)


def parameter_status(name: str, value: str) -> bytes:
    """ParameterStatus."""
    return message(b"S", f"{name}\0{value}\0".encode())


def parameter_description(oids: Sequence[int]) -> bytes:
    """ParameterDescription."""
    return message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def row_description(columns: Sequence[tuple[str, int]], formats: Sequence[int]) -> bytes:
    """RowDescription as Picodata fills it: no table, no attribute number, size 0, modifier -1."""
    parts = [_int16.pack(len(columns))]
    for (name, oid), code in zip(columns, formats, strict=True):
        parts.append(name.encode() + b"\0" + _column_tail.pack(0, 0, oid, 0, -1, code))
    return message(b"T", b"".join(parts))


def data_row(values: Sequence[bytes | None]) -> bytes:
    """DataRow."""
    parts = [_int16.pack(len(values))]
    for value in values:
        parts.append(b"\xff\xff\xff\xff" if value is None else _int32.pack(len(value)) + value)
    return message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """CommandComplete."""
    return message(b"C", tag.encode() + b"\0")


def error_response(sqlstate: str, text: str) -> bytes:
    """ErrorResponse with the only three fields Picodata fills; the severity is always ERROR."""
    return message(b"E", f"SERROR\0C{sqlstate}\0M{text}\0\0".encode())


def notice_response(text: str) -> bytes:
    """NoticeResponse with the only three fields Picodata fills."""
    return message(b"N", f"SNOTICE\0C00000\0M{text}\0\0".encode())
