"""Certificates: read, checked before a listener uses them, and read again when they change.

A certificate that is renewed in place is used by the next connection; a renewal that cannot be
used is logged, and the listener continues with what it has.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar

from store.observe.logging import get_logger

_LOG = get_logger("store.serving.tls")

_T = TypeVar("_T")

RELOAD_INTERVAL_S: Final = 1.0
"""The files are looked at for a new connection, but no more often than this."""

MAX_PEM_BYTES: Final = 1024 * 1024


class TlsError(Exception):
    """A certificate or key that cannot be used; one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a certificate chain, its key and, with mutual TLS, the clients' authorities."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class TlsCredentials:
    """The checked contents of `TlsFiles`, in PEM form."""

    chain: bytes
    key: bytes
    authorities: bytes | None
    names: list[str]
    """The DNS names of the certificate."""
    context: ssl.SSLContext
    """The context of a server, which has the chain and its key."""


def check(files: TlsFiles) -> TlsCredentials:
    """Read the files that a listener is to use.

    Raises:
        TlsError: A file cannot be read or used.
    """
    chain, key = read_pem(files.cert), read_pem(files.key)
    context, names = _load_pair(files, chain)
    roots = None if files.client_ca is None else read_authorities(files.client_ca)
    return TlsCredentials(chain, key, roots, names, context)


def first_dns_name(cert: Path, key: Path) -> str:
    """Return the first DNS name of a certificate: the node ID with TLS (contract, "Peers").

    Raises:
        TlsError: The files cannot be used, or the certificate names no DNS name.
    """
    for name in check(TlsFiles(cert, key)).names:
        return name
    raise TlsError(
        f"The certificate in {cert} has no DNS name, and the first one is the node's ID: issue one"
        " with a subject alternative name of type DNS."
    )


class Reloader(Generic[_T]):
    """The object that a listener makes of its certificates, as they were last seen on disk."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsCredentials], _T]) -> None:
        self._files = files
        self._make = make
        self._stamp = _stamp_of(files)
        self._looked_s = time.monotonic()
        self.current = make(check(files))

    def newest(self) -> _T:
        """Look, and return the object as it is now."""
        return self.fetch() or self.current

    def fetch(self) -> _T | None:
        """Look before a handshake; return None where nothing changed that can be used."""
        now_s = time.monotonic()
        if now_s - self._looked_s < RELOAD_INTERVAL_S:
            return None
        self._looked_s = now_s
        try:
            stamp = _stamp_of(self._files)
            if stamp == self._stamp:
                return None
            self.current = self._make(check(self._files))
        except TlsError as error:
            _LOG.warning("certificate_not_reloaded", reason=str(error))
            return None
        self._stamp = stamp
        _LOG.info("certificate_reloaded", cert=str(self._files.cert))
        return self.current


def renewing_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a server's context that takes what the files hold at each handshake.

    Raises:
        TlsError: A file cannot be read or used.
    """

    def make(found: TlsCredentials) -> ssl.SSLContext:
        found.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if found.authorities is not None:
            found.context.verify_mode = ssl.CERT_REQUIRED
            found.context.load_verify_locations(cadata=found.authorities.decode("ascii"))
        return found.context

    source = Reloader(files, make)
    context = source.current

    def renew(handshake: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: object) -> None:
        handshake.context = source.newest()

    context.sni_callback = renew
    return context


def _stamp_of(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """Return a value that changes when one of the files does; raise `TlsError` as `check` does."""
    try:
        found = [path.stat() for path in (files.cert, files.key, files.client_ca) if path]
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from error
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def read_pem(path: Path) -> bytes:
    """Read a PEM file.

    Raises:
        TlsError: It cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PEM_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > MAX_PEM_BYTES or b"-----BEGIN " not in data:
        raise TlsError(f"{path} is not a PEM file: it must hold text that begins with -----BEGIN.")
    return data


def dns_names(pem: bytes) -> list[str]:
    """Return the DNS names of a certificate in PEM form; raise `ValueError` for anything else."""
    from cryptography import x509  # noqa: PLC0415 - only where there is TLS

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.DNSName)


def _unreadable(path: Path, error: OSError) -> TlsError:
    return TlsError(f"{path} cannot be read ({error.strerror}): name a readable PEM file.")


def read_authorities(path: Path) -> bytes:
    """Read the certificates of authorities.

    Raises:
        TlsError: They cannot be read, or one of them is none.
    """
    from cryptography import x509  # noqa: PLC0415 - only where there is TLS

    pem = read_pem(path)
    try:
        x509.load_pem_x509_certificates(pem)
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"{path} holds no certificate of an authority that can be read: write them in PEM form."
        ) from error
    return pem


def _load_pair(files: TlsFiles, chain: bytes) -> tuple[ssl.SSLContext, list[str]]:
    """Load a certificate that is valid now, with its key; return it and its DNS names."""
    from cryptography import x509  # noqa: PLC0415 - only where there is TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password="")  # else OpenSSL asks
        certificate = x509.load_pem_x509_certificates(chain)[0]
        names = dns_names(chain)
    except (ValueError, OSError) as error:  # SSLError, or a file that went away meanwhile
        reason = getattr(error, "reason", None) or "encrypted or damaged"
        raise TlsError(
            f"{files.cert} and {files.key} are not a certificate and its key"
            f" ({str(reason).replace('_', ' ').lower()}): give a pair that belongs together, in PEM"
            " form and without a password."
        ) from error
    now = datetime.now(UTC)
    for wrong, reason in (
        (now < certificate.not_valid_before_utc, "certificate is not yet valid"),
        (now > certificate.not_valid_after_utc, "certificate has expired"),
    ):
        if wrong:
            raise TlsError(f"The certificate in {files.cert} cannot be used ({reason}): renew it.")
    return context, names
