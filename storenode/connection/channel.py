"""Connections: addresses, TLS, and the rule that a token never leaves the machine in clear."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from storenode.connection.arguments import check_bytes, check_text, is_loopback, parse_address
from storenode.connection.errors import (
    ClientOptionError,
    NodeError,
    NodeUnreachableError,
    TlsHandshakeError,
    node_error,
)

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""The largest response that a node may be set to send."""

PROBE_TIMEOUT_S: Final = 1.0
"""The time to wait for the reason why a listener closes a connection at once."""

Metadata = tuple[tuple[str, str], ...]

_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # An idle stream whose node is gone silently ends after both.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # An idle stream is pinged for as long as it lasts.
    ("grpc.http2.max_pings_without_data", 0),
    # Two clients of one process must not share a connection and its flow control.
    ("grpc.use_local_subchannel_pool", 1),
]

# A proxy named by the environment would carry what is in clear away from the machine.
_CLEAR_OPTIONS: Final[list[tuple[str, Any]]] = [*_OPTIONS, ("grpc.enable_http_proxy", 0)]


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """PEM texts for a connection by TLS.

    ``ca`` verifies the node (``None``: gRPC's own roots); ``cert`` and ``key`` identify the caller
    to it and go together.
    """

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            if (pem := getattr(self, name)) is not None:
                check_bytes(name, pem, "Path(...).read_bytes()")
        if (self.cert is None) != (self.key is None):
            raise ClientOptionError(
                "A client certificate and its key go together: give both or neither."
            )


def open_channel(
    address: str,
    token: str | None,
    tls: TlsIdentity | None,
    *,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
) -> tuple[grpc.aio.Channel, Metadata]:
    """Open a channel, and the metadata that each call on it carries. Connects lazily.

    A larger response than ``max_response_bytes`` ends its call with RESOURCE_EXHAUSTED.

    Raises:
        ClientOptionError: The address is none, the token is no header value, or it would travel
            in clear beyond loopback.
    """
    host, metadata = check_connection(address, token, tls)
    bound = [("grpc.max_receive_message_length", max_response_bytes)]
    if tls is not None:
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
        return grpc.aio.secure_channel(address, credentials, options=[*_OPTIONS, *bound]), metadata
    options = [*(_CLEAR_OPTIONS if is_loopback(host) else _OPTIONS), *bound]
    return grpc.aio.insecure_channel(address, options=options), metadata


def check_connection(
    address: str, token: str | None, tls: TlsIdentity | None
) -> tuple[str, Metadata]:
    """Return the host of an address and the metadata of its calls; raise as `open_channel`."""
    check_text("address", address)
    host, port = "", 0
    with suppress(ValueError):
        host, port = parse_address(address)
    if not port:
        raise ClientOptionError(
            f"{address!r} is not the address of a node: write HOST:PORT, such as 127.0.0.1:7420 "
            "or [::1]:7420."
        )
    metadata = _authorization(token)
    if tls is not None and not isinstance(tls, TlsIdentity):
        raise ClientOptionError(
            f"tls is {tls!r}: give a TlsIdentity, such as "
            "TlsIdentity(ca=Path('ca.pem').read_bytes())."
        )
    if token is not None and tls is None and not is_loopback(host):
        raise ClientOptionError(
            f"The token is not sent to {address}, since it would travel in clear: give the node's "
            "certificate authority, or connect over loopback."
        )
    return host, metadata


def _authorization(token: str | None) -> Metadata:
    if token is None:
        return ()
    check_text("token", token)
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ClientOptionError(
            "The token is empty or holds spaces, control or non-ASCII characters: give the one "
            "line that the operator of the node issued."
        )
    return (("authorization", f"Bearer {token}"),)


async def explain_failure(
    error: grpc.aio.AioRpcError | NodeError, address: str, tls: TlsIdentity | None
) -> NodeError:
    """Return the error of a call as the caller sees it, with the cause of a closed connection."""
    failure = node_error(error, address) if isinstance(error, grpc.RpcError) else error
    is_closed = isinstance(failure, NodeUnreachableError) and failure.is_closed
    if is_closed and tls is None and await _speaks_tls(address):
        return TlsHandshakeError(
            failure.code, f"The node at {address} demands TLS: give its certificate authority."
        )
    return failure


async def _speaks_tls(address: str) -> bool:
    """Return True if a TLS handshake succeeds at an address; nothing else is sent."""
    host, port = parse_address(address)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError:  # TimeoutError and ssl.SSLError are kinds of it
        return False
    writer.transport.abort()
    return True
