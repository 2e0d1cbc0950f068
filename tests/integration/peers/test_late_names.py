"""Gossip with peers that name themselves in their first answer, as gRPC servers do by default."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from storenode.client.messages import hash_of
from storenode.wire.storenode.v1.peer_pb2 import GossipFrame, Inventory
from tests.integration.peers.hostile import METADATA, Late
from tests.support.fleet import Fleet, made, publish
from tests.support.polling import PATIENCE_S


class LatePeer:
    """A peer that never speaks first: it asks for everything that is announced to it.

    Attributes:
        announced: hashes that it was told of.
        got: hashes of the messages that it was sent.
    """

    def __init__(self) -> None:
        self.announced: set[bytes] = set()
        self.got: set[bytes] = set()
        self.streams = 0
        self._more = asyncio.Event()

    async def gossip(self, _: object, servicer: Any) -> None:  # noqa: ANN401 - grpc.aio's
        """Serve ``Gossip``."""
        context = Late(servicer, METADATA)
        self.streams += 1
        while isinstance(data := await context.read(), bytes):
            frame = GossipFrame.FromString(data)
            self.got |= {hash_of(each) for each in frame.events.messages}
            self._more.set()
            told = (*frame.inv.ids, *frame.sync_leaves.ids)
            asked = [each for each in told if each not in self.announced | self.got]
            self.announced |= set(asked)
            if asked:
                get = GossipFrame(get_events=Inventory(ids=asked))
                await context.write(get.SerializeToString())

    async def has(self, wanted: set[bytes]) -> None:
        """Wait until it was sent these."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted <= self.got:
                await self._more.wait()
                self._more.clear()


@asynccontextmanager
async def serving(peer: LatePeer) -> AsyncIterator[str]:
    """Its address."""
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(peer.gossip)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("storenode.v1.Peer", {"Gossip": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_a_peer_that_names_itself_late_gets_what_was_and_what_comes(fleet: Fleet) -> None:
    old, new = made(3, time.time_ns()), made(3, time.time_ns(), seed=2)
    peer = LatePeer()
    async with serving(peer) as address:
        node = fleet.start("--gossip", "on", "--sync-interval", "0", "--peer", address)
        await publish(node, old)
        await peer.has({hash_of(each) for each in old})
        await publish(node, new)
        await peer.has({hash_of(each) for each in new})
        assert peer.streams == 1
