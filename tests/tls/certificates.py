"""Certificates for tests, made when they are needed and gone with their directory."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, in two files."""

    cert: Path
    key: Path
    serial: int

    def server_side(self, *, clients: Path | None = None, newest: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """A server that shows it, and asks for a certificate of its clients when it knows an authority for those."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if newest is not None:
            context.maximum_version = newest
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Authority:
    """Issues certificates into a directory; `root` is the file to trust."""

    def __init__(self, directory: Path, name: str = "Test authority") -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._stem = name.lower().replace(" ", "-")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _certificate(self._name, self._name, self._key, self._key, timedelta(days=1))
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.root = directory / f"{self._stem}.crt"
        self.root.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        *,
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
        common_name: str | None = None,
        expired: bool = False,
        password: str | None = None,
    ) -> Issued:
        """A certificate for servers and clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name or "somebody")])
        lifetime = timedelta(days=-1) if expired else timedelta(days=1)
        builder = _certificate(subject, self._name, key, self._key, lifetime)
        alternatives = [x509.DNSName(name) for name in names] + [x509.IPAddress(ip_address(a)) for a in addresses]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = builder.add_extension(usage, critical=False).sign(self._key, hashes.SHA256())
        stem = f"{self._stem}-{next(self._numbers)}"
        cert, key_file = self._directory / f"{stem}.crt", self._directory / f"{stem}.key"
        cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
        return Issued(cert, key_file, certificate.serial_number)

    def revoke(self, *issued: Issued) -> Path:
        """A file that lists these certificates as revoked."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - timedelta(hours=1)).next_update(now + timedelta(days=1))
        for one in issued:
            entry = x509.RevokedCertificateBuilder().serial_number(one.serial).revocation_date(now - timedelta(hours=1))
            builder = builder.add_revoked_certificate(entry.build())
        file = self._directory / f"{self._stem}-{next(self._numbers)}.crl"
        file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return file


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuers_key: ec.EllipticCurvePrivateKey,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    """What Python 3.13 asks of every certificate is there: it says whose key it has, and whose key has signed it."""
    now = datetime.now(UTC)
    subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + lifetime)
        .add_extension(subject_key, critical=False)
        .add_extension(authority_key, critical=False)
    )
