"""The identity of a caller: the metadata, the address and the certificate of a call.

Metadata that is read: ``authorization``, ``x-request-id``, and of peers ``storenode-node-id``,
``storenode-store-id``, ``storenode-version``, ``storenode-cluster`` and ``storenode-time``.
Source: the contract, "Clients" and "Peers".
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import grpc

from store.domain.access import Principal, Right
from store.serving.context import NodeIdentity
from store.serving.failure import CallError, Code, malformed
from store.serving.sockets import Remote
from store.serving.tls import dns_names

MAX_PEER_FIELD_CHARS: Final = 253
"""Node ID (a DNS name), store ID and version in a peer's metadata."""

AUTHORIZATION: Final = "authorization"
REQUEST_ID: Final = "x-request-id"
RETRY_AFTER_MS: Final = "1000"
NODE_ID: Final = "storenode-node-id"
STORE_ID: Final = "storenode-store-id"
VERSION: Final = "storenode-version"

CLUSTER: Final = "storenode-cluster"
"""The number of the sender's cluster; may be missing."""

TIME: Final = "storenode-time"
"""The sender's clock, in Unix nanoseconds; may be missing."""

PEER_RIGHTS: Final = frozenset({Right.READ, Right.FOLLOW})

WANTED: Final = frozenset({AUTHORIZATION, NODE_ID, STORE_ID, VERSION, CLUSTER, TIME})
PEER_FIELD: Final = re.compile(rf"[!-~]{{1,{MAX_PEER_FIELD_CHARS}}}")

_dns_names: Final = lru_cache(maxsize=256)(dns_names)
_NAMES_ALONE: Final = (
    "this node has a token file, and in clear a node's name alone proves nothing: give both nodes "
    "certificates, or name the node by --allow-peer on loopback"
)


@dataclass(frozen=True, slots=True)
class PeerRules:
    """The rules that say who may call as a peer.

    ``tls``: the listener demands client certificates, whose first DNS name is the node ID; without
    it the ID in the metadata is accepted, from loopback, or from anywhere with ``insecure``.
    ``allowed``: node IDs that may call; without TLS, empty allows every one. ``tokens``: clients
    need tokens, so that metadata alone make no caller a peer.
    """

    tls: bool = False
    insecure: bool = False
    allowed: frozenset[str] = frozenset()
    tokens: bool = False

    @property
    def trusted(self) -> bool:
        """True if a caller has proven its identity, or the operator has named it."""
        return self.tls or bool(self.allowed)

    @property
    def names_suffice(self) -> bool:
        """True if the name that a caller in clear gives is accepted."""
        return self.trusted or not self.tokens

    def accept_in_clear(self, origin: Remote) -> bool:
        """Return True if a caller in clear that names a node, and sends no token, is a peer."""
        return not self.tls and self.names_suffice and (origin.loopback or self.insecure)


def identify_peer(
    metadata: dict[str, str],
    context: grpc.aio.ServicerContext[bytes, bytes],
    rules: PeerRules,
) -> Principal:
    """Return the peer that calls a method, as a client with the rights of one.

    Raises:
        CallError: metadata are missing or malformed, or the caller may not call.
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
    return Principal(f"peer {node_id}", PEER_RIGHTS, named=bool(rules.allowed))


def refuse_client(metadata: dict[str, str], rules: PeerRules | None) -> CallError:
    """Return the error of a client that uses what is for peers only."""
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
    """Return the metadata by which this node identifies itself to peers."""
    return (
        (NODE_ID, identity.node_id),
        (STORE_ID, identity.store_id),
        (VERSION, identity.version),
        *(() if identity.cluster is None else ((CLUSTER, str(identity.cluster)),)),
    )


def _certified_name(context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
    """Return the first DNS name of a caller's certificate.

    gRPC gives names to Python only up to the first NUL, so that ``b.example`` followed by one, and
    by another domain, would pass for ``b.example``. The certificate itself comes whole.
    """
    for pem in context.auth_context().get("x509_pem_cert", ()):
        with suppress(ValueError):
            for name in _dns_names(pem):
                return name
    raise CallError(
        Code.UNAUTHENTICATED,
        "the client certificate has no DNS name: issue one whose first DNS name is the node ID",
    )


def _forbidden(sentence: str) -> CallError:
    return CallError(Code.PERMISSION_DENIED, sentence)
