"""The names in a certificate that a caller has shown.

gRPC gives them to Python only up to the first NUL, so that ``b.example`` followed by one, and by a
domain of somebody else, would pass for ``b.example``. The certificate itself comes whole. Its
encoding (DER, ITU-T X.690) has been checked by the handshake; here it is only taken apart.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_CACHED_CERTIFICATES: Final = 256
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_ALTERNATIVE_NAMES: Final = bytes((0x55, 0x1D, 0x11))
"""2.5.29.17, RFC 5280, 4.2.1.6."""


@lru_cache(maxsize=_CACHED_CERTIFICATES)
def first_dns_name(pem: bytes) -> str | None:
    """The first DNS name of a certificate; bytes that are no ASCII are replaced."""
    certificate = _only(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
    _, signed = next(_parts(certificate))
    for kind, content in _parts(signed):
        if kind == _EXTENSIONS:
            for _, extension in _parts(_only(content)):
                fields = [value for _, value in _parts(extension)]
                if fields[0] == _ALTERNATIVE_NAMES:
                    return _first(_only(fields[-1]))
    return None


def _first(names: bytes) -> str | None:
    found = (name for kind, name in _parts(names) if kind == _DNS_NAME)
    name = next(found, None)
    return None if name is None else name.decode("ascii", "replace")


def _only(data: bytes) -> bytes:
    """The content of the one value in some bytes."""
    return next(_parts(data))[1]


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of the values that follow one another."""
    at = 0
    while at < len(data):
        kind, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        yield kind, data[at : at + size]
        at += size
