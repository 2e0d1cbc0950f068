"""Starts a gateway, says that it serves, and shuts it down."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace

from store.gateway.clients import Clients
from store.gateway.config import GatewayConfig
from store.gateway.connection import Surroundings
from store.gateway.faults import GatewayError
from store.gateway.identity import Identity, kept_identity
from store.gateway.limits import DRAIN_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import Node
from store.gateway.noise import StaticKey
from store.gateway.protocols import Described, Metadata, StoreQuery, handlers
from store.gateway.server import Listening, Server, bind
from store.observe.http import ANY, MetricsListener
from store.observe.logging import get_logger
from store.serving.tls import TlsError, TlsFiles, renewing_context
from storenode.connection.channel import TlsIdentity, open_channel

_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The node behind the gateway: HOST:PORT, and who the gateway is to it."""

    address: str
    token: str | None
    tls: TlsIdentity | None


class Gateway:
    """One gateway; ``announce`` is given its ready line, of JSON, once."""

    def __init__(
        self,
        config: GatewayConfig,
        upstream: Upstream,
        version: str,
        announce: Callable[[str], None],
    ) -> None:
        self._config = config
        self._upstream = upstream
        self._version = version
        self._announce = announce
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Ask it to shut down."""
        self._stopped.set()

    async def run(self) -> None:
        """Serve until told to stop.

        Raises:
            GatewayError: It cannot start.
        """
        config, upstream = self._config, self._upstream
        identity = kept_identity(config.key_file)
        tls = _tls(config)
        metrics = GatewayMetrics(self._version)
        async with AsyncExitStack() as stack:
            channel, metadata = open_channel(upstream.address, upstream.token, upstream.tls)
            stack.push_async_callback(channel.close, None)
            node = Node(upstream.address, channel, metadata, metrics)
            bound = []
            for address in config.listen:
                bound.append(bind(address))
                stack.callback(bound[-1].socket.close)
            where = await self._open_metrics(metrics, node, stack)
            server = self._server(identity, bound, node, metrics, tls)
            tasks = [asyncio.create_task(server.accept(each)) for each in bound]
            tasks.append(asyncio.create_task(node.watch()))
            stack.push_async_callback(_cancelled, tasks)
            self._say_ready(identity, bound, where)
            await self._stopped.wait()
            await _cancelled(tasks)
            _log.info("gateway_stopping")
            await server.drain(DRAIN_TIMEOUT_S)

    async def _open_metrics(
        self, metrics: GatewayMetrics, node: Node, stack: AsyncExitStack
    ) -> str | None:
        address = self._config.metrics_listen
        if address is None:
            return None

        async def render() -> bytes:
            return metrics.render()

        listener = MetricsListener(render, None, lambda: node.unready, [ANY])
        try:
            bound = await listener.open(address.host, address.port)
        except OSError as error:
            raise GatewayError(
                f"--metrics-listen {address} cannot be bound ({error.strerror}): end the program"
                " that uses the port, or choose another address."
            ) from error
        stack.push_async_callback(listener.close)
        return str(replace(address, port=bound))

    def _server(
        self,
        identity: Identity,
        bound: list[Listening],
        node: Node,
        metrics: GatewayMetrics,
        tls: ssl.SSLContext | None,
    ) -> Server:
        config = self._config
        served = handlers(
            StoreQuery(node, metrics, config.max_request),
            Metadata(config.cluster, sorted(config.shard)),
            Described(identity, [each.address for each in bound], self._version),
        )
        around = Surroundings(StaticKey(identity), served, metrics, config.max_streams)
        return Server(around, Clients(config.rules), tls, config.max_connections)

    def _say_ready(self, identity: Identity, bound: list[Listening], metrics: str | None) -> None:
        addresses = [f"{each.address}/p2p/{identity.peer_id}" for each in bound]
        _log.info("gateway_ready", listen=addresses, node=self._upstream.address)
        ready = {"listen": addresses, "peer_id": identity.peer_id, "metrics": metrics}
        self._announce(json.dumps({name: each for name, each in ready.items() if each}))


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    if config.wss_cert is None or config.wss_key is None:
        return None
    try:
        return renewing_context(TlsFiles(config.wss_cert, config.wss_key))
    except TlsError as error:
        raise GatewayError(f"--wss-cert and --wss-key cannot be used: {error}") from error


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
