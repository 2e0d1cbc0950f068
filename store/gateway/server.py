"""Connections that clients make, within their limits, and those that are made to peers."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from store.gateway.addresses import ListenAddress, PeerMultiaddr, network_of
from store.gateway.clients import ClientAddress, Clients
from store.gateway.connection import Surroundings, WakuConnection, begin_handshake, shake_hands
from store.gateway.faults import GatewayError, RefusalError, StreamEndedError
from store.gateway.limits import GOODBYE_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, MAX_HANDSHAKES, READ_BYTES
from store.gateway.links import Link, TcpLink, WebSocketLink
from store.gateway.multiplexing import FrameType
from store.observe.logging import get_logger
from storenode.common.backoff import Backoff

_BACKLOG: Final = 1024
_NO_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S: Final = 0.2
"""Before the next attempt to accept where the system has no more of what that takes."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STEADY_S: Final = 60.0
"""A connection that lasted so long makes the next pause the first again."""

_REQUESTS_PER_S: Final = 1_000

_log = get_logger("store.gateway")

Join = Callable[[WakuConnection], None]
"""A service that uses each connection of a peer."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A bound socket, and what is spoken on it."""

    address: ListenAddress
    socket: socket.socket


def bind(address: ListenAddress) -> Listening:
    """Bind an address.

    Raises:
        GatewayError: It is taken, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sends small frames at once (TCP_NODELAY) only where the socket names its protocol.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address.host, address.port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise GatewayError(
            f"--listen {address} cannot be bound ({error.strerror}): end the program that uses the"
            " port, or choose another address."
        ) from error
    bound.setblocking(False)
    return Listening(address.bound_to(bound.getsockname()[1]), bound)


class Server:
    """The connections of all listeners."""

    def __init__(
        self,
        around: Surroundings,
        clients: Clients,
        tls: ssl.SSLContext | None,
        max_connections: int,
    ) -> None:
        self._around = around
        self._clients = clients
        self._tls = tls
        self._max_connections = max_connections
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[WakuConnection] = set()

    async def accept(self, listening: Listening) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (host, *_) = await loop.sock_accept(listening.socket)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    _log.warning("cannot_accept", reason=error.strerror)
                    await asyncio.sleep(_PAUSE_S)
                continue
            try:
                client = self._admit(network_of(host))
            except RefusalError as fault:
                self._around.metrics.refused(fault.reason)
                accepted.close()
                continue
            task = asyncio.create_task(self._serve(listening.address, accepted, client))
            self._tasks.add(task)
            self._shaking[task] = None
            task.add_done_callback(self._forget)

    async def drain(self, timeout_s: float) -> None:
        """Let streams end for a while, then end all connections."""
        deadline = time.monotonic() + timeout_s
        while any(each.busy for each in self._connections) and time.monotonic() < deadline:
            await asyncio.wait(self._tasks, timeout=_PAUSE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _admit(self, network: str) -> ClientAddress:
        """Admit a connection of a network.

        Raises:
            RefusalError: There is none.
        """
        full = len(self._tasks) >= self._max_connections
        if full and not self._shaking:
            raise RefusalError("connections", "too many connections")
        client = self._clients.arrive(network, time.monotonic_ns())
        if full or len(self._shaking) >= MAX_HANDSHAKES:
            # Of those that have proven nothing, the one that takes longest.
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
            self._around.metrics.refused("connections")
        return client

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._shaking.pop(task, None)

    async def _serve(
        self, address: ListenAddress, accepted: socket.socket, client: ClientAddress
    ) -> None:
        self._around.metrics.open_connections.inc()
        try:
            await self._converse(address, accepted, client)
        except RefusalError as fault:
            self._around.metrics.refused(fault.reason)
            _log.debug("connection_refused", client=client.network, reason=str(fault))
        except TimeoutError:
            self._around.metrics.refused("timeout")
        except (StreamEndedError, OSError):
            pass
        except Exception:  # noqa: BLE001 - the others go on
            _log.exception("connection_failed", client=client.network)
        finally:
            self._clients.leave(client)
            self._around.metrics.open_connections.dec()

    async def _converse(
        self, address: ListenAddress, accepted: socket.socket, client: ClientAddress
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        writer = None
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                reader, writer = await self._opened(address, accepted)
                link = await _link(address, TcpLink(reader, writer))
                secured = await shake_hands(link, self._around.key)
            self._shaking.pop(task, None)
            await self._run(WakuConnection(*secured, client, self._around), link)
        finally:
            if writer is None:
                accepted.close()
            else:
                # Closing would wait for a client that does not read.
                is_stuck = writer.transport.get_write_buffer_size() > 0
                writer.transport.abort() if is_stuck else writer.close()

    async def _run(self, connection: WakuConnection, link: Link) -> None:
        self._connections.add(connection)
        try:
            await connection.run()
        except asyncio.CancelledError:
            with suppress(StreamEndedError, OSError, TimeoutError):
                async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                    await connection.send(FrameType.GOODBYE)
            raise
        finally:
            self._connections.discard(connection)
            link.close()

    async def _opened(
        self, address: ListenAddress, accepted: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls: dict[str, Any] = {}
        if "tls" in address.over_tcp:
            tls = {"ssl": self._tls, "ssl_shutdown_timeout": GOODBYE_TIMEOUT_S}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, **tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _link(address: ListenAddress, below: TcpLink) -> Link:
    if not address.over_tcp:
        return below
    link = WebSocketLink(below)
    await link.accept()
    return link


async def keep_connected(peer: PeerMultiaddr, around: Surroundings, joins: Sequence[Join]) -> None:
    """Connect to a peer, again and again, until cancelled."""
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        began_s, reason = time.monotonic(), "the connection ended"
        try:
            await _connect(peer, around, joins)
        except TimeoutError:
            reason = "no answer in time"
        except (RefusalError, StreamEndedError, OSError) as error:
            reason = str(error) or reason
        if time.monotonic() - began_s >= STEADY_S:
            backoff.reset()
        _log.warning("peer_away", peer=str(peer), reason=reason)
        await asyncio.sleep(backoff.take())


async def _connect(peer: PeerMultiaddr, around: Surroundings, joins: Sequence[Join]) -> None:
    """Serve one connection until it ends.

    Raises:
        RefusalError, StreamEndedError: The peer speaks something else, or is another.
        OSError, TimeoutError: It cannot be reached.
    """
    client = Clients(1, 1, _REQUESTS_PER_S).arrive(peer.host, time.monotonic_ns())
    writer = None
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
            secured = await begin_handshake(TcpLink(reader, writer), around.key, peer.peer_id)
        connection = WakuConnection(*secured, client, around)
        running = asyncio.create_task(connection.run())
        try:
            # One turn of the loop, in which the connection begins to read.
            await asyncio.sleep(0)
            for join in joins:
                join(connection)
            await asyncio.wait({running})
        finally:
            running.cancel()
            # Not awaited itself: its error would take the place of a cancellation of this task.
            await asyncio.wait({running})
        running.result()
    finally:
        if writer is not None:
            writer.close()
