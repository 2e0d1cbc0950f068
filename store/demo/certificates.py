"""An authority of the demo's own, and what it signs; all of it is forgotten with the directory.

Keys are of the curve P-256, which needs no noticeable time to make.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from storenode.connection.channel import TlsIdentity

_LIFETIME: Final = timedelta(days=1)
_LEEWAY: Final = timedelta(minutes=5)
"""Certificates begin in the past, so that a clock which is set a little meanwhile does no harm."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where a certificate, its key and the authority's certificate are, as PEM."""

    cert: Path
    key: Path
    ca: Path


class Authority:
    """Signs certificates that hold for 127.0.0.1 and a name, and writes them into a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "storenode demo")])
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self._pem = certificate.public_bytes(serialization.Encoding.PEM)
        self._ca = directory / "ca.pem"
        self._ca.write_bytes(self._pem)

    def files(self, name: str) -> Files:
        """A certificate of a node: its first DNS name is the node's ID."""
        identity = self._issue(name)
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key", self._ca)
        files.cert.write_bytes(identity.cert or b"")
        files.key.touch(mode=0o600)
        files.key.write_bytes(identity.key or b"")
        return files

    def client(self, name: str) -> TlsIdentity:
        """What a client shows to a node, and checks it by; it is in no file."""
        return self._issue(name)

    def _issue(self, name: str) -> TlsIdentity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.DNSName(name), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(subject, self._name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return TlsIdentity(
            ca=self._pem,
            cert=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + _LIFETIME)
    )
