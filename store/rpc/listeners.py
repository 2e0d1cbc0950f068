"""gRPC servers: made with one set of options, bound to an address, stopped in order.

grpcio decodes the name of a method that is not registered where it accepts calls: one that is no
UTF-8 would end all calls. Here methods are registered, and other calls end UNIMPLEMENTED unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined] # compiled

from store.serving.addresses import ListenerAddress, bind_error
from store.serving.arrivals import LOOKAHEAD_BYTES, MAX_PEER_FRAME_BYTES
from store.serving.tls import Reloader, TlsCredentials, TlsFiles
from storenode.message.limits import MAX_REQUEST_BYTES

MAX_STREAMS_PER_CONNECTION: Final = 100
"""Calls under way over one connection, those included that were dropped and not yet cleared away.
gRPC's clients keep further ones until one has ended."""

MAX_PENDING_CALLS: Final = 32_768
"""Calls of one method, of all connections, that the process has not taken up. Beyond this gRPC
turns any call away with CANCELLED: 300 full connections do not come so far."""

HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""The time limit of TLS and the first frame of HTTP/2, from the connection on."""

IDLE_CONNECTION_MS: Final = 300_000
"""A connection without a call is closed after this; gRPC's clients connect again when they call."""

MAX_METADATA_BYTES: Final = 16 * 1024

KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""A caller that does not answer pings for this long is gone: what its calls hold is freed."""

MIN_PING_INTERVAL_MS: Final = 10_000
"""Clients may ping this often without data; those that ping more are disconnected."""

_NOT_FOUND: Final = "this listener does not serve such a method: see its reflection service"

Services = Mapping[str, Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]]
"""The handlers of methods, by the full name of their service."""


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    context.set_details(_NOT_FOUND)


class _Server(cygrpc.AioServer):  # type: ignore[misc] # compiled, without types
    """A server whose methods each take up their calls: grpcio waits for all of them after each."""

    def __init__(self, *given: Any) -> None:  # noqa: ANN401
        super().__init__(*given)
        self._handlers = {"": grpc.stream_stream_rpc_method_handler(_refuse)}
        self._calls = set[asyncio.Task[None]]()

    def add_registered_method_handlers(self, handlers: dict[str, Any]) -> None:
        super().add_registered_method_handlers(handlers)
        self._handlers |= handlers

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._take_up(method or b""))

    async def _take_up(self, method: bytes) -> None:
        """Serve the calls of a method, or refuse those of no method, until the server stops."""
        loop, name, calls = asyncio.get_running_loop(), method.decode(), self._calls
        resolver = cygrpc._MethodResolver([], self._handlers)
        while True:
            call = await (self._request_registered_call(method) if name else self._request_call())
            serving = cygrpc._handle_rpc(name, resolver, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(serving, call, loop, name))
            calls.add(task)
            task.add_done_callback(calls.discard)


def _make_server(options: Sequence[tuple[str, int]]) -> Any:  # noqa: ANN401 - its stubs are older
    usual = cygrpc.AioServer
    cygrpc.AioServer = _Server
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = usual


@dataclass(frozen=True, slots=True)
class Listener:
    """A server that listens; ``address`` has the real port."""

    server: grpc.aio.Server
    address: str
    _stopping: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def start(self) -> None:
        """Begin to answer."""
        await self.server.start()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let calls under way end within ``grace_s``, then cancel them.

        May be called again, and waits then for the first call: two at a time would have gRPC end
        calls of a server that it has freed, which ends the process.
        """
        async with self._stopping:
            await self.server.stop(grace_s)


def bind(
    where: ListenerAddress,
    services: Callable[[int], Services],
    tls: TlsFiles | None = None,
    *,
    connections: int,
    peers: bool = False,
) -> Listener:
    """Make a server on an address, which queues connections until it is started.

    ``services``: those of a listener on this port. ``connections``: further ones are closed at
    once. ``peers``: nodes send larger requests.

    Raises:
        BindError: The address is in use, not this machine's, or not allowed.
        TlsError: The certificate cannot be used.
    """
    server = _make_server(_options(connections, peers=peers))
    credentials = None if tls is None else _server_credentials(tls)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(where))
        else:
            port = server.add_secure_port(str(where), credentials)
    except RuntimeError as error:
        raise bind_error(where) from error
    for name, methods in services(port).items():
        server.add_registered_method_handlers(name, dict(methods))
    return Listener(server, where.with_port(port))


def _server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials that demand client certificates if there are authorities for them."""

    def make(found: TlsCredentials) -> grpc.ServerCertificateConfiguration:
        pair = found.key, found.chain
        return grpc.ssl_server_certificate_configuration(
            [pair], root_certificates=found.authorities
        )

    source = Reloader(files, make)
    return grpc.dynamic_ssl_server_credentials(
        source.current,
        # The stubs leave out that the library takes None for "no change".
        cast("Callable[[], grpc.ServerCertificateConfiguration]", source.fetch),
        require_client_authentication=files.client_ca is not None,
    )


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
        # Without a bound of ours the windows grow with the bandwidth of the sender.
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
