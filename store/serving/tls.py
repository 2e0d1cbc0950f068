"""Certificates: read, checked before a listener uses them, and read again when they change.

A certificate that is renewed in place is used by the next connection; a renewal that cannot be
used is logged, and the listener goes on with what it has.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from store.observe.logging import get_logger

_LOG = get_logger("store.serving.tls")

_T = TypeVar("_T")

RELOAD_INTERVAL_S: Final = 1.0
"""The files are looked at for a new connection, but no more often than this."""

MAX_PEM_BYTES: Final = 1024 * 1024

Stamp: TypeAlias = tuple[tuple[int, int, int], ...]
"""Time of change, size and number of each file."""


class TlsError(Exception):
    """A certificate or key that cannot be used; one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a listener's certificate chain, its key and, with mutual TLS, its authorities are."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(path for path in (self.cert, self.key, self.client_ca) if path is not None)


def check(files: TlsFiles) -> None:
    """Make sure that a listener can use the files.

    Raises:
        TlsError: A file cannot be read or used.
    """
    subject_names(files.cert, files.key)
    if files.client_ca is not None:
        authorities(files.client_ca)


def first_dns_name(cert: Path, key: Path) -> str:
    """The first DNS name of a certificate: the node ID with TLS (contract, "Peers").

    Raises:
        TlsError: The files cannot be used, or the certificate names no DNS name.
    """
    for kind, name in subject_names(cert, key):
        if kind == "DNS":
            return name
    raise TlsError(
        f"The certificate in {cert} has no DNS name, and the first one is the node's ID: issue one"
        " with a subject alternative name of type DNS."
    )


class Reloader(Generic[_T]):
    """Keeps what a listener makes of its certificates, as they were last seen on disk."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], _T]) -> None:
        """``make`` may raise `TlsError`."""
        self._files = files
        self._make = make
        self._stamp = stamp_of(files)
        self._looked_s = time.monotonic()
        self.current = make(files)

    def fetch(self) -> _T | None:
        """Look before a handshake; None: nothing changed that can be used."""
        now_s = time.monotonic()
        if now_s - self._looked_s < RELOAD_INTERVAL_S:
            return None
        self._looked_s = now_s
        try:
            stamp = stamp_of(self._files)
            if stamp == self._stamp:
                return None
            self.current = self._make(self._files)
        except TlsError as error:
            _LOG.warning("certificate_not_reloaded", reason=str(error))
            return None
        self._stamp = stamp
        _LOG.info("certificate_reloaded", cert=str(self._files.cert))
        return self.current


def renewing_context(files: TlsFiles) -> ssl.SSLContext:
    """A server's context that takes what the files hold at each handshake.

    Raises:
        TlsError: A file cannot be read or used.
    """
    source = Reloader(files, _server_context)
    context = source.current

    def renew(handshake: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: object) -> None:
        source.fetch()
        handshake.context = source.current

    context.sni_callback = renew
    return context


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    subject_names(files.cert, files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key)
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authorities(files.client_ca).decode("ascii"))
    return context


def stamp_of(files: TlsFiles) -> Stamp:
    """What changes when one of the files does.

    Raises:
        TlsError: A file cannot be looked at.
    """
    try:
        found = [path.stat() for path in files.paths()]
    except OSError as error:
        raise _unreadable(Path(error.filename), error) from error
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def read_pem(path: Path) -> bytes:
    """What a PEM file holds.

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


def _unreadable(path: Path, error: OSError) -> TlsError:
    return TlsError(f"{path} cannot be read ({error.strerror}): name a readable PEM file.")


def authorities(path: Path) -> bytes:
    """Certificates of authorities, as PEM.

    Raises:
        TlsError: The file cannot be read or used.
    """
    pem = read_pem(path)
    try:
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"{path} holds no certificate of an authority that can be read: write them in PEM form."
        ) from error
    return pem


def subject_names(cert: Path, key: Path) -> list[tuple[str, str]]:
    """Names of a certificate that is valid now and belongs to the key.

    Found by a handshake of the certificate with itself in memory: the standard library shows the
    names of a certificate only to who has verified it.
    """
    chain = read_pem(cert)
    read_pem(key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(cert, key, password=_no_password)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(cadata=chain.decode("ascii"))
        found = _handshake(client, server).getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        raise TlsError(
            f"The certificate in {cert} cannot be used ({error.verify_message}): renew it."
        ) from error
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "encrypted or damaged"
        raise TlsError(
            f"{cert} and {key} are not a certificate and its key"
            f" ({str(reason).replace('_', ' ').lower()}): give a pair that belongs together, in PEM"
            " form and without a password."
        ) from error
    names = found.get("subjectAltName", ())
    assert isinstance(names, tuple)
    return [(str(kind), str(name)) for kind, name in names]


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [near, far]
    while waiting:
        for end in tuple(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    return near
