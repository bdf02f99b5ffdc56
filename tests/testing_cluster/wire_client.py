"""A small raw client for the PostgreSQL protocol: it sends what it is told and writes down every answer.

Answers have the form of `tests/recorded/picodata-conversations.json`: `["T", [[name, oid], …]]`, `["D",
[value, …]]`, …
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

Answer = list[Any]

_EMPTY = {"1", "2", "3", "n", "I", "s"}


def packed(kind: str, body: bytes = b"") -> bytes:
    """One message."""
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def text(value: str) -> bytes:
    """A string with its end."""
    return value.encode() + b"\0"


def parse(sql: str, name: str = "", oids: Sequence[int] = ()) -> bytes:
    """Parse."""
    return packed("P", text(name) + text(sql) + struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def bind(values: Sequence[str | None] = (), statement: str = "", portal: str = "", result_format: int = 0) -> bytes:
    """Bind with values as text."""
    parts = [text(portal), text(statement), struct.pack("!HH", 0, len(values))]
    for value in values:
        raw = None if value is None else value.encode()
        parts.append(struct.pack("!i", -1) if raw is None else struct.pack("!i", len(raw)) + raw)
    parts.append(struct.pack("!Hh", 1, result_format))
    return packed("B", b"".join(parts))


def describe(kind: str = "S", name: str = "") -> bytes:
    """Describe."""
    return packed("D", kind.encode() + text(name))


def execute(portal: str = "", limit: int = 0) -> bytes:
    """Execute."""
    return packed("E", text(portal) + struct.pack("!i", limit))


def close(kind: str = "S", name: str = "") -> bytes:
    """Close."""
    return packed("C", kind.encode() + text(name))


SYNC = packed("S")
FLUSH = packed("H")


class WireClient:
    """One connection; `exchange` sends bytes and gives the answers up to ReadyForQuery or the end."""

    def __init__(self, host: str, port: int, *, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._socket.settimeout(timeout)
        self._rest = b""

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send."""
        self._socket.sendall(data)

    def start(self, user: str | None, password: str = "", keys: dict[str, str] | None = None) -> list[Answer]:
        """Log in; gives every answer up to the first ReadyForQuery, an error, or the end."""
        pairs = {**({"user": user, "database": "db"} if user is not None else {}), **(keys or {})}
        body = struct.pack("!I", 196608) + b"".join(text(k) + text(v) for k, v in pairs.items()) + b"\0"
        self.send(struct.pack("!I", len(body) + 4) + body)
        answers: list[Answer] = []
        while True:
            kind, raw = self.receive()
            if kind == "R":
                answers.append(self._authenticate(raw, user or "", password))
                continue
            answers.append(written(kind, raw))
            if kind in ("Z", "E", "CLOSED"):
                return answers

    def _authenticate(self, raw: bytes, user: str, password: str) -> Answer:
        code = struct.unpack_from("!I", raw)[0]
        if code == 5:
            inner = hashlib.md5((password + user).encode()).hexdigest()
            self.send(packed("p", text("md5" + hashlib.md5(inner.encode() + raw[4:8]).hexdigest())))
            return ["R", "md5"]
        if code == 10:
            self._scram = Scram(password)
            first = self._scram.first().encode()
            self.send(packed("p", text("SCRAM-SHA-256") + struct.pack("!I", len(first)) + first))
            return ["R", "sasl"]
        if code == 11:
            self.send(packed("p", self._scram.final(raw[4:].decode()).encode()))
            return ["R", "sasl_continue"]
        return ["R", {12: "sasl_final", 0: "ok"}[code]]

    def exchange(self, data: bytes) -> list[Answer]:
        """Send, then read up to ReadyForQuery or the end."""
        self.send(data)
        answers: list[Answer] = []
        while not answers or answers[-1][0] not in ("Z", "CLOSED"):
            answers.append(written(*self.receive()))
        return answers

    def query(self, sql: str) -> list[Answer]:
        """One text through the simple protocol."""
        return self.exchange(packed("Q", text(sql)))

    def receive(self) -> tuple[str, bytes]:
        """One message; `("CLOSED", b"")` at the end of the connection."""
        try:
            while len(self._rest) < 5 or len(self._rest) < 1 + struct.unpack_from("!I", self._rest, 1)[0]:
                data = self._socket.recv(65536)
                if not data:
                    return "CLOSED", b""
                self._rest += data
        except ConnectionError:
            return "CLOSED", b""
        end = 1 + struct.unpack_from("!I", self._rest, 1)[0]
        message, self._rest = self._rest[:end], self._rest[end:]
        return chr(message[0]), message[5:]


class Scram:
    """SCRAM-SHA-256 from the client's side."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._nonce = base64.b64encode(os.urandom(12)).decode()
        self._bare = f"n=,r={self._nonce}"

    def first(self) -> str:
        """The first message."""
        return f"n,,{self._bare}"

    def final(self, server_first: str) -> str:
        """The proof."""
        fields = dict(piece.split("=", 1) for piece in server_first.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c=biws,r={fields['r']}"
        signed = f"{self._bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        return f"{without_proof},p={proof}"


def written(kind: str, raw: bytes) -> Answer:
    """One message in the form of the recorded file."""
    if kind in _EMPTY or kind == "CLOSED":
        return [kind]
    if kind == "Z":
        return ["Z", raw.decode()]
    if kind == "C":
        return ["C", raw[:-1].decode()]
    if kind == "S":
        return ["S", raw[:-1].decode().split("\0")]
    if kind in ("E", "N"):
        return [kind, {part[:1]: part[1:] for part in raw.decode().split("\0") if part}]
    if kind == "t":
        return ["t", list(struct.unpack(f"!{(len(raw) - 2) // 4}I", raw[2:]))]
    if kind == "T":
        return ["T", _columns(raw)]
    assert kind == "D", kind
    return ["D", _values(raw)]


def _columns(raw: bytes) -> list[list[Any]]:
    found, at = [], 2
    while at < len(raw):
        end = raw.index(0, at)
        found.append([raw[at:end].decode(), struct.unpack_from("!I", raw, end + 7)[0]])
        at = end + 19
    return found


def _values(raw: bytes) -> list[Any]:
    found: list[Any] = []
    at = 2
    while at < len(raw):
        (size,) = struct.unpack_from("!i", raw, at)
        at += 4
        found.append(None if size < 0 else _shown(raw[at : at + size]))
        at += max(0, size)
    return found


def _shown(value: bytes) -> Any:
    """Text where it can be text, else `{"hex": …}`."""
    try:
        shown = value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
    return shown if shown.isprintable() else {"hex": value.hex()}
