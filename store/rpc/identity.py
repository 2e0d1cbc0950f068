"""Who calls: the metadata, the address and the certificate of a call.

Metadata that is read: ``authorization``, ``x-request-id``, ``traceparent``, ``tracestate``, and of
peers ``storenode-node-id``, ``storenode-store-id``, ``storenode-version`` and ``storenode-time``.
Source: the contract, "Clients" and "Peers".
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, cast

import grpc

from store.domain.access import Client, Right
from store.domain.quota import ClientLimits
from store.rpc.context import PeerRules
from store.rpc.limits import MAX_PEER_FIELD_CHARS
from store.serving.call import REQUEST_IDS, is_request_id
from store.serving.context import NodeIdentity
from store.serving.failure import CallFailure, Code, malformed
from store.serving.remote import Remote

AUTHORIZATION: Final = "authorization"
REQUEST_ID: Final = "x-request-id"
RETRY_AFTER_MS: Final = "1000"
NODE_ID: Final = "storenode-node-id"
STORE_ID: Final = "storenode-store-id"
VERSION: Final = "storenode-version"

TIME: Final = "storenode-time"
"""The sender's clock, in Unix nanoseconds; may be missing."""

PEER_RIGHTS: Final = frozenset({Right.READ, Right.FOLLOW})

_WANTED: Final = frozenset({AUTHORIZATION, NODE_ID, STORE_ID, VERSION, TIME})
_TRACE: Final = frozenset({"traceparent", "tracestate"})
PEER_FIELD: Final = re.compile(rf"[!-~]{{1,{MAX_PEER_FIELD_CHARS}}}")

_NAMES_ALONE: Final = (
    "this node has a token file, and in clear a node's name alone proves nothing: give both nodes "
    "certificates, or name the node by --allow-peer on loopback"
)


@dataclass(slots=True)
class CallMetadata:
    """The metadata of a call that are read, taken apart once.

    ``told``: those that tell who calls, by name; ``repeated`` is one of them that is given twice.
    ``request_id``: the caller's if it is fit for a log, else one of this node's. ``trace``: the
    caller's place in a trace (W3C Trace Context), as it is given.
    """

    told: dict[str, str] = field(default_factory=dict)
    repeated: str = ""
    request_id: str = ""
    trace: dict[str, str] = field(default_factory=dict)


def read_metadata(context: grpc.aio.ServicerContext[bytes, bytes]) -> CallMetadata:
    """Read the metadata of a call."""
    found = CallMetadata()
    # A tuple of pairs, whatever the type stubs say.
    for name, value in cast("Iterable[tuple[str, str]]", context.invocation_metadata() or ()):
        if name in _WANTED:
            if name in found.told:
                found.repeated = found.repeated or name
            else:
                found.told[name] = value
        elif name in _TRACE:
            found.trace[name] = value
        elif name == REQUEST_ID and not found.request_id and is_request_id(value):
            found.request_id = str(value)
    if not found.request_id:
        found.request_id = next(REQUEST_IDS)
    return found


def is_believed_peer(metadata: dict[str, str], rules: PeerRules, origin: Remote) -> bool:
    """True when a call without a token on a clear-text listener counts as a peer's."""
    return (
        NODE_ID in metadata
        and AUTHORIZATION not in metadata
        and not rules.tls
        and rules.names_suffice
        and (origin.loopback or rules.insecure)
    )


def identify_peer(
    metadata: dict[str, str],
    context: grpc.aio.ServicerContext[bytes, bytes],
    rules: PeerRules,
    limits: ClientLimits,
) -> Client:
    """The peer that calls a method, as a client with the rights of one.

    Raises:
        CallFailure: metadata are missing or malformed, or it is nobody who may call.
    """
    for name in (NODE_ID, STORE_ID, VERSION):
        if not PEER_FIELD.fullmatch(metadata.get(name, "")):
            raise malformed(
                f"the metadata `{name}` is missing or malformed: a peer sends {NODE_ID}, "
                f"{STORE_ID} and {VERSION}"
            )
    node_id = metadata[NODE_ID]
    if rules.tls and node_id != (certified := _certified_name(context)):
        raise _forbidden(
            f"the metadata `{NODE_ID}` does not name {certified}, as the certificate does: "
            "send the certificate's first DNS name"
        )
    if (rules.tls or rules.allowed) and node_id not in rules.allowed:
        raise _forbidden(
            f"node {node_id} may not call this node: its operator allows it by --allow-peer"
        )
    if not (rules.tls or rules.names_suffice):
        raise _forbidden(_NAMES_ALONE)
    return Client(f"peer {node_id}", PEER_RIGHTS, limits=limits, named=bool(rules.allowed))


def not_a_peer(metadata: dict[str, str], rules: PeerRules | None) -> CallFailure:
    """Why a caller may not use what is for peers only, on a listener that clients share."""
    if NODE_ID not in metadata:
        return malformed(
            f"the metadata `{NODE_ID}` is missing: only store nodes make this call, and say who "
            "they are"
        )
    if rules is not None and not rules.names_suffice:
        return _forbidden(_NAMES_ALONE)
    return _forbidden(
        "peers call in clear over loopback only, and without a token: give both nodes "
        "certificates, or allow it here with --insecure peer"
    )


def own_metadata(identity: NodeIdentity) -> tuple[tuple[str, str], ...]:
    """What this node tells a peer about itself."""
    return (
        (NODE_ID, identity.node_id),
        (STORE_ID, identity.store_id),
        (VERSION, identity.version),
    )


def _certified_name(context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
    for pem in context.auth_context().get("x509_pem_cert", ()):
        name = first_dns_name(pem)
        if name is not None:
            return name
    raise CallFailure(
        Code.UNAUTHENTICATED,
        "the client certificate has no DNS name: issue one whose first DNS name is the node ID",
    )


def _forbidden(sentence: str) -> CallFailure:
    return CallFailure(Code.PERMISSION_DENIED, sentence)


_CACHED_CERTIFICATES: Final = 256
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_ALTERNATIVE_NAMES: Final = bytes((0x55, 0x1D, 0x11))
"""2.5.29.17, RFC 5280, 4.2.1.6."""


@lru_cache(maxsize=_CACHED_CERTIFICATES)
def first_dns_name(pem: bytes) -> str | None:
    """Return the first DNS name of a certificate; bytes that are no ASCII are replaced.

    gRPC gives names to Python only up to the first NUL, so that ``b.example`` followed by one, and
    by a domain of somebody else, would pass for ``b.example``. The certificate itself comes whole.
    Its encoding (DER, ITU-T X.690) has been checked by the handshake.
    """
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
    """Return the content of the one value in some bytes."""
    return next(_parts(data))[1]


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tags and contents of the values that follow one another."""
    at = 0
    while at < len(data):
        kind, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        yield kind, data[at : at + size]
        at += size
