"""Connections that clients make, within their limits, and those that are made to peers."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from store.gateway import limits
from store.gateway.addresses import ListenAddress, PeerMultiaddr, network_of
from store.gateway.clients import ClientAddress, Clients
from store.gateway.connection import (
    Join,
    Surroundings,
    WakuConnection,
    begin_handshake,
    count_end,
    shake_hands,
)
from store.gateway.faults import GatewayError, RefusalError
from store.gateway.pipes import TcpLink, WebSocketLink
from store.observe.logging import get_logger
from storenode.common.backoff import Backoff

_BACKLOG: Final = 1024
_NO_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_S: Final = 0.2
"""The pause before the next attempt to accept when the system is out of resources."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STEADY_S: Final = 60.0
"""A connection that lasted so long makes the next pause the first again."""

_log = get_logger("store.gateway")


def bind(address: ListenAddress) -> tuple[ListenAddress, socket.socket]:
    """Bind an address, and return it with its port; raise GatewayError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        bound = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise GatewayError(
            f"--listen {address} cannot be bound ({os.strerror(error.errno or 0)}): end the program"
            " that uses the port, or choose another address."
        ) from error
    _tune(bound)  # accepted sockets inherit it
    bound.setblocking(False)
    return replace(address, port=bound.getsockname()[1]), bound


def _tune(opened: socket.socket) -> None:
    """Make the kernel send at once, and end a connection whose other side has vanished."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    in_ms = int(limits.SEND_TIMEOUT_S * 1_000)
    options = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_USER_TIMEOUT": in_ms}
    for name in options.keys() & vars(socket):  # the last three are Linux's
        opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), options[name])


def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection without waiting for a peer that does not read."""
    is_stuck = writer.transport.get_write_buffer_size() > 0
    writer.transport.abort() if is_stuck else writer.close()


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
        self._tasks: dict[asyncio.Task[None], WakuConnection | None] = {}

    async def accept(self, address: ListenAddress, listening: socket.socket) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, (host, *_) = await loop.sock_accept(listening)
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
            task = asyncio.create_task(self._serve(address, accepted, client))
            self._tasks[task] = None
            self._shaking[task] = None
            # Not by the task itself, which may be cancelled before it begins.
            task.add_done_callback(partial(self._forget, client))
            self._around.metrics.open_connections.set(len(self._tasks))

    async def drain(self, timeout_s: float) -> None:
        """Let streams end for a while, then end all connections."""
        deadline = time.monotonic() + timeout_s
        while (
            any(each is not None and each.busy for each in self._tasks.values())
            and time.monotonic() < deadline
        ):
            await asyncio.wait(self._tasks, timeout=_PAUSE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _admit(self, network: str) -> ClientAddress:
        """Admit a connection of a network; raise RefusalError if there are too many."""
        full = len(self._tasks) >= self._max_connections
        if full and not self._shaking:
            raise RefusalError("connections", "too many connections")
        client = self._clients.arrive(network, time.monotonic_ns())
        if full or len(self._shaking) >= limits.MAX_HANDSHAKES:
            # Of those that have proven nothing, the one that takes longest.
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
            self._around.metrics.refused("connections")
        return client

    def _forget(self, client: ClientAddress, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._shaking.pop(task, None)
        self._clients.leave(client, time.monotonic_ns())
        self._around.metrics.open_connections.set(len(self._tasks))

    async def _serve(
        self, address: ListenAddress, accepted: socket.socket, client: ClientAddress
    ) -> None:
        with count_end(self._around.metrics, "connection_failed", client):
            task = asyncio.current_task()
            assert task is not None
            writer = None
            try:
                async with asyncio.timeout(limits.HANDSHAKE_TIMEOUT_S):
                    reader, writer = await self._opened(address, accepted)
                    link = (WebSocketLink if address.over_tcp else TcpLink)(reader, writer)
                    if isinstance(link, WebSocketLink):
                        await link.accept()
                    secured = await shake_hands(link, self._around.identity)
                self._shaking.pop(task, None)
                connection = self._tasks[task] = WakuConnection(*secured, client, self._around)
                try:
                    await connection.run()
                finally:
                    if isinstance(link, WebSocketLink):
                        link.close()
            finally:
                if writer is None:
                    accepted.close()
                else:
                    _close(writer)

    async def _opened(
        self, address: ListenAddress, accepted: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=limits.READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls: dict[str, Any] = {}
        if "tls" in address.over_tcp:
            tls = {"ssl": self._tls, "ssl_shutdown_timeout": limits.GOODBYE_TIMEOUT_S}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, **tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def keep_connected(peer: PeerMultiaddr, around: Surroundings, joins: Sequence[Join]) -> None:
    """Connect to a peer, again and again, until cancelled."""
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        began_s, reason = time.monotonic(), "the connection ended"
        try:
            await _connect(peer, around, joins)
        except TimeoutError:
            reason = "no answer in time"
        except (RefusalError, OSError) as error:
            reason = str(error) or reason
        if time.monotonic() - began_s >= STEADY_S:
            backoff.reset()
        _log.warning("peer_away", peer=str(peer), reason=reason)
        await asyncio.sleep(backoff.take())


async def _connect(peer: PeerMultiaddr, around: Surroundings, joins: Sequence[Join]) -> None:
    """Serve one connection until it ends.

    Raises:
        RefusalError: The peer speaks something else, or is another.
        OSError: It cannot be reached, or has gone.
    """
    client = Clients(1, 1, 1_000).arrive(peer.host, time.monotonic_ns())
    writer = None
    try:
        async with asyncio.timeout(limits.HANDSHAKE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(peer.host, peer.port)
            _tune(writer.get_extra_info("socket"))
            secured = await begin_handshake(TcpLink(reader, writer), around.identity, peer.peer_id)
        await WakuConnection(*secured, client, around).run(joins)
    finally:
        if writer is not None:
            _close(writer)
