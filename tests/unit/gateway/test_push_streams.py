"""Streams that the gateway opens: a subscriber takes pushes, refuses them, or gives them up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

from store.gateway.clients import ClientRules, Clients
from store.gateway.connection import Secured, Surroundings, WakuConnection
from store.gateway.feed import NodeFeed
from store.gateway.filter import FILTER_PUSH, FILTER_SUBSCRIBE, Filter
from store.gateway.metrics import GatewayMetrics
from store.gateway.mplex import Mplex
from store.gateway.multiplexing import DataReceived, Event, Opened
from store.gateway.multistream import MULTISTREAM, ByteReader
from store.gateway.node import UpstreamNode
from store.gateway.noise import SecurePipe, StaticKey
from store.gateway.wire import bytes_field, delimited, fields, number_field
from storenode.wire.storenode.v1.store_pb2 import FollowPage
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

PUBSUB: Final = "/waku/2/rs/7/0"
TOPIC: Final = "/a/1/b/proto"


class MemoryPipe:
    """A connection in memory, both ways."""

    peer_id = "peer"

    def __init__(self) -> None:
        self.to_gateway: asyncio.Queue[bytes] = asyncio.Queue()
        self.to_client: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(self) -> bytes:
        return await self.to_gateway.get()

    async def send(self, data: bytes) -> None:
        self.to_client.put_nowait(data)


class FakeNode:
    """A node that is followed: its first page is empty, and the others are put in."""

    def __init__(self) -> None:
        self.pages: asyncio.Queue[FollowPage] = asyncio.Queue()
        self.pages.put_nowait(FollowPage(cursor=b"0", live=True))

    async def follow(self, cursor: bytes) -> AsyncGenerator[bytes, None]:
        del cursor
        while True:
            yield (await self.pages.get()).SerializeToString()

    def publish(self, payload: bytes) -> None:
        page = FollowPage(cursor=b"1", live=True)
        message = WakuMessage(payload=payload, content_topic=TOPIC, timestamp=2**62)
        page.messages.add(pubsub_topic=PUBSUB).message.MergeFrom(message)
        self.pages.put_nowait(page)


def line(text: str) -> bytes:
    return delimited(text.encode() + b"\n")


class Peer:
    """The client's side of a connection; `Mplex` reads the gateway's streams as a gateway would."""

    def __init__(self, pipe: MemoryPipe) -> None:
        self.pipe = pipe
        self.multiplexer = Mplex()
        self.events: list[Event] = []
        self.data: dict[int, bytes] = {}

    def send(self, frame: bytes) -> None:
        self.pipe.to_gateway.put_nowait(frame)

    def subscribe(self) -> None:
        request = (
            bytes_field(1, b"r")
            + number_field(2, 1)
            + bytes_field(10, PUBSUB.encode())
            + bytes_field(11, TOPIC.encode())
        )
        opened, frame = self.multiplexer.open()
        self.send(frame)
        spoken = line(MULTISTREAM) + line(FILTER_SUBSCRIBE) + delimited(request)
        self.send(self.multiplexer.data(opened, spoken))

    async def until(self, wanted: Event) -> None:
        while wanted not in self.events:
            for event in self.multiplexer.feed(await self.pipe.to_client.get()):
                self.events.append(event)
                if isinstance(event, DataReceived):
                    self.data[event.stream] = self.data.get(event.stream, b"") + event.data

    async def payload(self, stream: int) -> bytes:
        """Return the payload of the next message on a stream, after the negotiation."""
        greeting = line(MULTISTREAM) + line(FILTER_PUSH)
        while len(self.data.get(stream, b"")) <= len(greeting):
            for event in self.multiplexer.feed(await self.pipe.to_client.get()):
                if isinstance(event, DataReceived):
                    self.data[event.stream] = self.data.get(event.stream, b"") + event.data
        data = self.data[stream]
        assert data.startswith(greeting)
        pushed = dict(fields(data[len(greeting) + 1 :]))
        self.data[stream] = greeting
        message = WakuMessage.FromString(cast("bytes", pushed[1]))
        assert (pushed[2], message.content_topic) == (PUBSUB.encode(), TOPIC)
        return message.payload


@asynccontextmanager
async def subscribed() -> AsyncIterator[tuple[Peer, FakeNode, Filter]]:
    node, metrics, pipe = FakeNode(), GatewayMetrics("0"), MemoryPipe()
    feed = NodeFeed(cast("UpstreamNode", node))
    found = Filter(feed, metrics, frozenset({PUBSUB}))
    client = Clients(ClientRules(10, 10, 10)).arrive("192.0.2.1", 0)
    secured = Secured(cast("SecurePipe", pipe), ByteReader(pipe), Mplex())
    handlers = {FILTER_SUBSCRIBE: found.serve}
    around = Surroundings(cast("StaticKey", None), handlers, metrics, 8)
    connection, peer = WakuConnection(secured, client, around), Peer(pipe)
    tasks = [asyncio.create_task(each) for each in (feed.run(), found.run(), connection.run())]
    try:
        async with asyncio.timeout(60):
            peer.subscribe()
            # The answer and the end of the stream are those of a success.
            answer = bytes_field(1, b"r") + number_field(10, 200) + bytes_field(11, b"OK")
            await peer.until(DataReceived(-1, delimited(answer)))
            assert len(found) == 1
            yield peer, node, found
            found.check()
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert len(found) == 0
        assert client.unsent.used_bytes == client.unread.used_bytes == client.criteria == 0


async def test_messages_are_pushed_on_one_stream_until_the_client_ends_it() -> None:
    async with subscribed() as (peer, node, found):
        node.publish(b"one")
        await peer.until(Opened(0))
        peer.send(peer.multiplexer.data(0, line(MULTISTREAM) + line(FILTER_PUSH)))
        assert await peer.payload(0) == b"one"
        node.publish(b"two")
        assert await peer.payload(0) == b"two"
        peer.send(peer.multiplexer.aborted(0))
        node.publish(b"three")
        await peer.until(Opened(1))
        peer.send(peer.multiplexer.data(1, line(MULTISTREAM) + line(FILTER_PUSH)))
        assert await peer.payload(1) == b"three"
        assert len(found) == 1


async def test_a_client_that_does_not_speak_the_protocol_has_no_subscription() -> None:
    async with subscribed() as (peer, node, found):
        (pushing,) = (each.pushing for each in found._subscribers.values())
        assert pushing is not None
        node.publish(b"one")
        await peer.until(Opened(0))
        peer.send(peer.multiplexer.data(0, line(MULTISTREAM) + line("na")))
        await asyncio.wait({pushing})
        assert len(found) == 0


async def test_a_client_that_gives_each_stream_up_has_no_subscription() -> None:
    async with subscribed() as (peer, node, found):
        (pushing,) = (each.pushing for each in found._subscribers.values())
        assert pushing is not None
        node.publish(b"one")
        await peer.until(Opened(0))
        peer.send(peer.multiplexer.aborted(0))
        await asyncio.wait({pushing})
        assert len(found) == 0
