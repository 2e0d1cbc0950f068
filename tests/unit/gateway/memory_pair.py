"""A libp2p connection in memory, below the handshake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import cast

from store.gateway.clients import ClientRules, Clients
from store.gateway.connection import Handler, Secured, Surroundings, WakuConnection
from store.gateway.metrics import GatewayMetrics
from store.gateway.mplex import Mplex
from store.gateway.multiplexing import Multiplexer
from store.gateway.multistream import ByteReader
from store.gateway.noise import SecurePipe, StaticKey
from store.gateway.yamux import Yamux


class MemoryPipe:
    """An end of a connection, whose other side has a peer ID."""

    peer_id = "peer"

    def __init__(self, incoming: asyncio.Queue[bytes], outgoing: asyncio.Queue[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def send(self, data: bytes) -> None:
        self._outgoing.put_nowait(data)


@asynccontextmanager
async def connected_pair(
    metrics: GatewayMetrics,
    handlers: Mapping[str, Handler],
    handlers_of_peer: Mapping[str, Handler],
    *work: Coroutine[None, None, None],
    is_mplex: bool = False,
) -> AsyncIterator[tuple[WakuConnection, WakuConnection]]:
    """Yield the gateway's end and the peer's, and run other work beside them for a minute."""
    queues: list[asyncio.Queue[bytes]] = [asyncio.Queue(), asyncio.Queue()]
    clients, ends = Clients(ClientRules(10, 10, 10)), []
    for ways, served, is_own in ((queues, handlers, True), (queues[::-1], handlers_of_peer, False)):
        pipe = MemoryPipe(*ways)
        multiplexer: Multiplexer = Mplex() if is_mplex else Yamux(is_outbound=is_own)
        secured = Secured(cast("SecurePipe", pipe), ByteReader(pipe), multiplexer)
        around = Surroundings(cast("StaticKey", None), served, metrics, 8)
        client = clients.arrive("192.0.2.1" if is_own else "192.0.2.2", 0)
        ends.append(WakuConnection(secured, client, around))
    tasks = [asyncio.create_task(each) for each in (*(end.run() for end in ends), *work)]
    try:
        async with asyncio.timeout(60):
            yield ends[0], ends[1]
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(is_reached: Callable[[], bool]) -> None:
    """Wait for a state that has no event."""
    while not is_reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
