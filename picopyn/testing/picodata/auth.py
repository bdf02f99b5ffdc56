"""Proof of identity: MD5 and SCRAM-SHA-256 from the server's side. Pure: salts and nonces are arguments.

Decides which messages are exchanged and whether the client knew the password. Must not know sessions, and
counts no failures (see `users`).

*Source*: RFC 5802, RFC 7677; PostgreSQL documentation, "SASL Authentication"; which method a user gets, and
that an unknown user is asked for SCRAM: `picodata-protocol.md` section 9.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Protocol

from picopyn.testing.picodata import wire

MECHANISM = "SCRAM-SHA-256"
_ITERATIONS = 4096


class BadExchange(Exception):  # noqa: N818 - it is what happened
    """The client's message is no part of this exchange: the connection ends without a word."""


@dataclass(frozen=True, slots=True)
class Secret:
    """What the server keeps about a password.

    Attributes:
        method: `"md5"`, `"scram-sha256"` or `"chap-sha1"`.
        md5: Hex digest of password and user name.
        salt: Salt of the SCRAM keys.
        stored_key: As RFC 5802 names it.
        server_key: As RFC 5802 names it.
    """

    method: str
    md5: str = ""
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""


def keep(user: str, password: str, method: str, salt: bytes) -> Secret:
    """Make what the server keeps of a password; `salt` is used for SCRAM."""
    if method == "md5":
        return Secret(method, md5=hashlib.md5((password + user).encode()).hexdigest())
    if method != "scram-sha256":
        return Secret(method)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return Secret(method, salt=salt, stored_key=stored, server_key=_hmac(salted, b"Server Key"))


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


class Exchange(Protocol):
    """One attempt to prove an identity.

    `verdict` is None while more messages are expected, then True or False.
    """

    verdict: bool | None

    def open(self) -> bytes:
        """The server's first message."""
        ...

    def answer(self, body: bytes) -> bytes:
        """Take one message of type `p` and give what the server sends back (maybe nothing)."""
        ...


class Md5Exchange:
    """The challenge that PostgreSQL calls MD5; `salt` has four bytes."""

    def __init__(self, secret: Secret, salt: bytes) -> None:
        self._secret = secret
        self._salt = salt
        self.verdict: bool | None = None

    def open(self) -> bytes:
        """Ask."""
        return wire.ask_md5(self._salt)

    def answer(self, body: bytes) -> bytes:
        """Check the one answer there is."""
        right = b"md5" + hashlib.md5(self._secret.md5.encode() + self._salt).hexdigest().encode()
        self.verdict = hmac.compare_digest(body.rstrip(b"\0"), right)
        return b""


class ScramExchange:
    """SCRAM-SHA-256 without channel binding. With `secret` None the exchange is acted out and always fails.

    Args:
        secret: Of the user, or None for a user nobody knows.
        nonce: The server's part of the nonce, printable characters.
    """

    def __init__(self, secret: Secret | None, nonce: str) -> None:
        self._secret = secret
        self._nonce = nonce
        self._client_first = ""
        self._server_first = ""
        self.verdict: bool | None = None

    def open(self) -> bytes:
        """Offer the mechanism."""
        return wire.ask_sasl([MECHANISM])

    def answer(self, body: bytes) -> bytes:
        """Take the client's first or final message."""
        return self._final(body) if self._server_first else self._first(body)

    def _first(self, body: bytes) -> bytes:
        mechanism, _, rest = body.partition(b"\0")
        if mechanism.decode(errors="replace") != MECHANISM or len(rest) < 4:
            raise BadExchange("not the mechanism that was offered")
        header, _, bare = rest[4:].decode(errors="replace").partition(",,")
        attributes = _attributes(bare)
        if header not in ("n", "y") or "r" not in attributes:
            raise BadExchange("channel binding or no nonce")
        self._client_first = bare
        self._nonce = attributes["r"] + self._nonce
        salt = self._secret.salt if self._secret is not None else hashlib.sha256(self._nonce.encode()).digest()[:16]
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={_ITERATIONS}"
        return wire.sasl_continue(self._server_first.encode())

    def _final(self, body: bytes) -> bytes:
        text = body.decode(errors="replace")
        without_proof, _, proof = text.rpartition(",p=")
        attributes = _attributes(without_proof)
        self.verdict = False
        if self._secret is None or attributes.get("r") != self._nonce:
            return b""
        signed = f"{self._client_first},{self._server_first},{without_proof}".encode()
        self.verdict = self._proves(proof, signed)
        signature = base64.b64encode(_hmac(self._secret.server_key, signed))
        return wire.sasl_final(b"v=" + signature) if self.verdict else b""

    def _proves(self, proof: str, signed: bytes) -> bool:
        assert self._secret is not None
        try:
            given = base64.b64decode(proof, validate=True)
        except ValueError:
            return False
        mask = _hmac(self._secret.stored_key, signed)
        key = bytes(a ^ b for a, b in zip(given, mask, strict=False))
        return hmac.compare_digest(hashlib.sha256(key).digest(), self._secret.stored_key)


def _attributes(text: str) -> dict[str, str]:
    return {piece[0]: piece[2:] for piece in text.split(",") if piece[1:2] == "="}
