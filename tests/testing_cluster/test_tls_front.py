"""A fault proxy that ends TLS: what its clients see, and what it records."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from picopyn.testing import FaultProxy, PostgresServer, TlsFront, tls_only
from tests.tls.certificates import Authority

SSL_REQUEST = struct.pack("!II", 8, 80877103)
START_UP = struct.pack("!II", 41, 196608) + b"user\0postgres\0database\0postgres\0\0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who issues the certificates."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """What stands behind."""
    with PostgresServer(port=0) as server:
        yield server


def front_of(authority: Authority, **more: Any) -> TlsFront:
    """A front with a certificate."""
    return TlsFront(authority.issue(names=["n1.test"], addresses=["127.0.0.1"]).server_side(), **more)


def through(server: PostgresServer, front: TlsFront) -> FaultProxy:
    """A proxy in front of the server."""
    return FaultProxy("127.0.0.1", server.port or 0, tls=front)


def connect(proxy: FaultProxy) -> socket.socket:
    """A plain connection to the proxy."""
    return socket.create_connection((proxy.host, proxy.port), timeout=5)


def encrypt(client: socket.socket, root: Path, name: str = "n1.test") -> ssl.SSLSocket:
    """Ask for TLS and shake hands."""
    client.sendall(SSL_REQUEST)
    assert client.recv(1) == b"S"
    return ssl.create_default_context(cafile=str(root)).wrap_socket(client, server_hostname=name)


def test_it_ends_tls_and_passes_on_what_was_inside(server: PostgresServer, authority: Authority) -> None:
    """In both directions; the record says how the client began and whom it asked for."""
    front = front_of(authority)
    with through(server, front) as proxy, connect(proxy) as plain, encrypt(plain, authority.root) as client:
        client.sendall(START_UP)
        assert client.recv(1) == b"R"
        assert (proxy.accepted, proxy.open) == (1, 1)
    assert front.openings == ["SSLRequest", "encrypted StartupMessage"]
    assert (front.server_names, front.clients, front.failures) == (["n1.test"], [None], [])


def test_clients_without_tls_pass_unless_they_are_refused(server: PostgresServer, authority: Authority) -> None:
    """`tls_only` speaks as Picodata with TLS turned on."""
    with through(server, front_of(authority)) as proxy, connect(proxy) as client:
        client.sendall(START_UP)
        assert client.recv(1) == b"R"
    with through(server, front_of(authority, refuse=tls_only)) as proxy, connect(proxy) as client:
        client.sendall(START_UP)
        said = b"".join(iter(lambda: client.recv(4096), b""))
        assert said[:1] == b"E"
        assert b"C28000\0Mthis server requires the client to use ssl\0" in said


def test_without_a_context_it_says_that_there_is_no_tls(server: PostgresServer) -> None:
    """And goes on over the same connection."""
    front = TlsFront()
    with through(server, front) as proxy, connect(proxy) as client:
        client.sendall(SSL_REQUEST)
        assert client.recv(1) == b"N"
        client.sendall(START_UP)
        assert client.recv(1) == b"R"
    assert front.openings == ["SSLRequest", "StartupMessage"]


def test_a_client_that_does_not_accept_it_is_on_record(server: PostgresServer, authority: Authority) -> None:
    """With the alert that the client sent."""
    front = front_of(authority)
    with through(server, front) as proxy, connect(proxy) as plain:
        with pytest.raises(ssl.SSLCertVerificationError):
            encrypt(plain, authority.root, "n2.test")
        while proxy.open:
            pass
    assert len(front.failures) == 1
    assert front.openings == ["SSLRequest"]


def test_a_client_without_a_certificate_gets_an_alert(server: PostgresServer, authority: Authority) -> None:
    """As from real servers: under TLS 1.3 the client hears of it when it reads."""
    front = TlsFront(authority.issue(names=["n1.test"]).server_side(clients=authority.root))
    with through(server, front) as proxy, connect(proxy) as plain:
        client = encrypt(plain, authority.root)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            client.recv(1)
        client.close()


@pytest.mark.parametrize("stall", ["answer", "handshake"])
def test_it_falls_silent_where_it_is_told_to(stall: Any, server: PostgresServer, authority: Authority) -> None:
    """Before its answer, or after it."""
    with through(server, front_of(authority, stall=stall)) as proxy, connect(proxy) as client:
        client.sendall(SSL_REQUEST)
        client.settimeout(5 if stall == "handshake" else 0.1)
        if stall == "handshake":
            assert client.recv(1) == b"S"
            client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_faults_work_on_encrypted_connections(server: PostgresServer, authority: Authority) -> None:
    """Frozen, what was said arrives later; cut, the connection ends."""
    with (
        through(server, front_of(authority)) as proxy,
        connect(proxy) as plain,
        encrypt(plain, authority.root) as client,
    ):
        proxy.freeze()
        client.sendall(START_UP)
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.let_pass()
        client.settimeout(5)
        assert client.recv(1) == b"R"
        proxy.cut()
        with suppress(ConnectionResetError):  # up to Python 3.12, TLS reads a reset as the end
            while client.recv(65536):
                pass
        assert proxy.open == 0


def test_faults_work_before_the_first_word(server: PostgresServer, authority: Authority) -> None:
    """Mute, late, cut."""
    with through(server, front_of(authority)) as proxy:
        proxy.mute()
        with connect(proxy) as client:
            client.settimeout(0.1)
            client.sendall(SSL_REQUEST)
            with pytest.raises(TimeoutError):
                client.recv(1)
        proxy.let_pass()
        proxy.delay(0.01)
        with connect(proxy) as client, encrypt(client, authority.root) as encrypted:
            encrypted.sendall(START_UP)
            assert encrypted.recv(1) == b"R"
        proxy.let_pass()
        with connect(proxy) as client:
            client.sendall(SSL_REQUEST[:4])
            while proxy.open < 1:
                pass
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
