"""gRPC servers: made with one set of options, bound to an address, stopped in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from store.rpc.credentials import server_credentials
from store.rpc.grpc_server import ServiceHandler, make_server
from store.rpc.limits import (
    HANDSHAKE_TIMEOUT_MS,
    IDLE_CONNECTION_MS,
    LOOKAHEAD_BYTES,
    MAX_PEER_FRAME_BYTES,
    MAX_PENDING_CALLS,
    MAX_STREAMS_PER_CONNECTION,
)
from store.serving.addresses import ListenAddress, bind_error
from store.serving.tls import TlsFiles
from storenode.message.limits import MAX_REQUEST_BYTES

MAX_METADATA_BYTES: Final = 16 * 1024

KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""A peer that does not answer pings for this long is gone: what its calls hold is freed."""

MIN_PING_INTERVAL_MS: Final = 10_000
"""Clients may ping this often without data; those that ping more are disconnected."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A server that listens; `address` has the real port."""

    server: grpc.aio.Server
    address: str
    _stopping: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def start(self) -> None:
        """Begin to answer."""
        await self.server.start()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let calls under way end within `grace_s`, then cancel them.

        May be called again, and waits then for the first call: two at a time would have gRPC end
        calls of a server that it has freed, which ends the process.
        """
        async with self._stopping:
            await self.server.stop(grace_s)


def bind(
    where: ListenAddress,
    handlers: Sequence[ServiceHandler],
    tls: TlsFiles | None = None,
    *,
    connections: int,
    peers: bool = False,
) -> Listener:
    """Make a server on an address, which queues connections until it is started.

    `connections`: further ones are closed at once. `peers`: the larger requests of other nodes are
    let in.

    Raises:
        BindError: The address is in use, not this machine's, or not allowed.
        TlsError: The certificate cannot be used.
    """
    server = make_server(handlers, _options(connections, peers=peers))
    credentials = None if tls is None else server_credentials(tls)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(where))
        else:
            port = server.add_secure_port(str(where), credentials)
    except RuntimeError as error:
        raise bind_error(where.option, where.host, where.port) from error
    return Listener(server, where.with_port(port))


def _options(connections: int, *, peers: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_PEER_FRAME_BYTES if peers else MAX_REQUEST_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS),
        # Without a bound of ours the windows grow with the bandwidth of who sends.
        ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # gRPC would unpack a request before its size is known; without this bit it refuses it.
        ("grpc.compression_enabled_algorithms_bitset", 1 << grpc.Compression.NoCompression),
        # A second node on the same port must fail instead of taking half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ]
