"""Streams that the gateway opens: a subscriber takes pushes, refuses them, or gives them up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast
from unittest.mock import AsyncMock, Mock

import pytest

from store.gateway import connector
from store.gateway.addresses import PeerMultiaddr
from store.gateway.connection import Handler, WakuConnection
from store.gateway.connector import WakuConnector
from store.gateway.faults import StreamEndedError
from store.gateway.feed import NodeFeed
from store.gateway.filter import FILTER_PUSH, FILTER_SUBSCRIBE, Filter
from store.gateway.metrics import GatewayMetrics
from store.gateway.multistream import ByteReader
from store.gateway.node import UpstreamNode
from store.gateway.streams import Stream
from store.gateway.wire import bytes_field, encode_status, fields, number_field
from storenode.wire.storenode.v1.store_pb2 import FollowPage
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.unit.gateway.memory_pair import connected_pair, until

PUBSUB: Final = "/waku/2/rs/7/0"
TOPIC: Final = "/a/1/b/proto"
SUBSCRIBE: Final = (
    bytes_field(1, b"r")
    + number_field(2, 1)
    + bytes_field(10, PUBSUB.encode())
    + bytes_field(11, TOPIC.encode())
)


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


@asynccontextmanager
async def subscribed(
    handlers: dict[str, Handler], *, is_mplex: bool = True
) -> AsyncIterator[tuple[WakuConnection, FakeNode, Filter]]:
    """Subscribe a client, which serves the streams that the gateway opens by its handlers."""
    node, metrics = FakeNode(), GatewayMetrics("0")
    feed = NodeFeed(cast("UpstreamNode", node))
    found = Filter(feed, metrics, frozenset({PUBSUB}))
    served, work = {FILTER_SUBSCRIBE: found.serve}, (feed.run(), found.run())
    async with connected_pair(metrics, served, handlers, *work, is_mplex=is_mplex) as (own, peer):
        async with peer.opened(FILTER_SUBSCRIBE) as stream:
            await stream.send_delimited(SUBSCRIBE, 60)
            assert await ByteReader(stream).delimited(1_000) == encode_status(b"r", 200, "OK")
        assert len(found) == 1
        yield own, node, found
        found.check()
    assert len(found) == 0
    client = own.client
    assert client.unsent.used_bytes == client.unread.used_bytes == client.criteria == 0


@pytest.mark.parametrize("is_mplex", [True, False])
async def test_messages_are_pushed_on_one_stream_until_the_client_ends_it(is_mplex: bool) -> None:
    taken: list[list[bytes]] = []

    async def take_two(stream: Stream, reader: ByteReader, connection: WakuConnection) -> None:
        del stream, connection
        taken.append([])
        for _ in range(2):
            pushed = dict(fields(await reader.delimited(1_000)))
            message = WakuMessage.FromString(cast("bytes", pushed[1]))
            assert (pushed[2], message.content_topic) == (PUBSUB.encode(), TOPIC)
            taken[-1].append(message.payload)
        raise StreamEndedError

    async with subscribed({FILTER_PUSH: take_two}, is_mplex=is_mplex) as (own, node, found):
        node.publish(b"one")
        await until(lambda: taken == [[b"one"]])
        node.publish(b"two")
        await until(lambda: any(each.has_failed for each in own._streams.values()))
        node.publish(b"three")
        await until(lambda: taken == [[b"one", b"two"], [b"three"]])
        assert len(found) == 1


async def end_at_once(stream: Stream, reader: ByteReader, connection: WakuConnection) -> None:
    del stream, reader, connection
    raise StreamEndedError


@pytest.mark.parametrize("handlers", [{}, {FILTER_PUSH: end_at_once}], ids=["unknown", "ended"])
async def test_a_client_that_takes_no_push_has_no_subscription(
    handlers: dict[str, Handler],
) -> None:
    async with subscribed(handlers) as (_, node, found):
        (pushing,) = (each.pushing for each in found._subscribers.values())
        assert pushing is not None
        for _ in range(3):
            node.publish(b"one")
        await asyncio.wait({pushing})
        assert len(found) == 0


async def test_a_cancellation_counts_though_the_connection_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined, ended = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        await ended.wait()
        raise StreamEndedError

    monkeypatch.setattr(asyncio, "open_connection", AsyncMock(return_value=(Mock(), Mock())))
    monkeypatch.setattr(connector, "begin_handshake", AsyncMock())
    monkeypatch.setattr(connector, "WakuConnection", lambda *_: Mock(run=run))
    kept = WakuConnector(Mock(), {"peer": [lambda _: joined.set()]})
    keeping = asyncio.create_task(kept.keep(PeerMultiaddr("192.0.2.1", 1, "peer")))
    await joined.wait()
    ended.set()
    await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait({keeping}, timeout=5)
    assert keeping.cancelled()
