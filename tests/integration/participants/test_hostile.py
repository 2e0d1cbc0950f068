"""A node that lies: it loses its turn, and nothing else happens.

The node is a server of ours that speaks the schema and follows no rule. Its feed shows the last
message of a conversation; what that depends on is to be had from an honest bus, which is asked
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, repeat
from typing import Any

import grpc
import pytest

from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import Fetched, Route
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue
from tests.support.bus import Bus, BusTransport
from tests.support.conversation import Said, conversation
from tests.support.participant import SHAPE, config_of, until

PATIENCE_S = 90.0
ROOM = "den"
CONTENT = f"/sds/1/{ROOM}/proto"
ROUTE = Route(ROOM, DEFAULT_PUBSUB_TOPIC, CONTENT)
NEWEST_NS = 1_763_625_600_000_000_000
MESSAGES = 12


def stored(
    said: Said, *, content_topic: str = CONTENT, payload: bytes = b""
) -> WakuMessageKeyValue:
    message = WakuMessage(
        payload=payload or said.payload, content_topic=content_topic, timestamp=said.timestamp_ns
    )
    return WakuMessageKeyValue(
        message_hash=said.hint, message=message, pubsub_topic=DEFAULT_PUBSUB_TOPIC
    )


def past(room: str = ROOM) -> list[Said]:
    return list(
        conversation(
            room,
            MESSAGES,
            pubsub_topic=DEFAULT_PUBSUB_TOPIC,
            content_topic=CONTENT,
            newest_ns=NEWEST_NS,
            shape=SHAPE,
        )
    )


class Liar(store_pb2_grpc.StoreServicer):
    """A node that by default holds nothing but the last message; methods are replaced by lies."""

    def __init__(self) -> None:
        self.said = past()
        self.asked = 0

    async def Follow(self, request: Any, context: Any) -> AsyncIterator[store_pb2.FollowPage]:  # noqa: ANN401, ARG002, N802
        yield store_pb2.FollowPage(cursor=b"c", live=True)
        yield store_pb2.FollowPage(messages=[stored(self.said[-1])], cursor=b"d", live=True)
        await asyncio.Event().wait()

    async def Scan(self, request: Any, context: Any) -> AsyncIterator[store_pb2.ScanPage]:  # noqa: ANN401, ARG002, N802
        for page in self.scan():
            yield page

    async def Query(self, request: Any, context: Any) -> StoreQueryResponse:  # noqa: ANN401, ARG002, N802
        self.asked += 1
        return await self.query()

    async def GetSdsMessages(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401, ARG002, N802
        for page in self.by_id():
            yield page

    async def GetCausalHistory(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401, ARG002, N802
        for page in self.closure():
            yield page

    async def PublishStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401, ARG002, N802
        async for _ in requests:
            yield self.verdict()

    def scan(self) -> Any:  # noqa: ANN401
        return ()

    async def query(self) -> StoreQueryResponse:
        return StoreQueryResponse(status_code=200)

    def by_id(self) -> Any:  # noqa: ANN401
        return ()

    def closure(self) -> Any:  # noqa: ANN401
        return ()

    def verdict(self) -> Any:  # noqa: ANN401
        return store_pb2.PublishResponse()


def answers(*messages: WakuMessageKeyValue, more: bool = False) -> StoreQueryResponse:
    cursor = b"x" * 32 if more else None
    return StoreQueryResponse(status_code=200, messages=messages, pagination_cursor=cursor)


def sds_page(said: Said, item: WakuMessageKeyValue) -> store_pb2.SdsStoredMessage:
    entry = HistoryEntry(message_id=said.message_id, retrieval_hint=said.hint)
    return store_pb2.SdsStoredMessage(entry=entry, stored=item)


class WrongBytes(Liar):
    """A node that gives other bytes for a hash or an ID."""

    async def query(self) -> StoreQueryResponse:
        return answers(*(stored(each, payload=b"something else") for each in self.said))

    def by_id(self) -> Any:  # noqa: ANN401
        items = [sds_page(each, stored(each, payload=self.said[0].payload)) for each in self.said]
        yield store_pb2.SdsMessagesPage(messages=items)


class OtherChannels(Liar):
    """Messages of another channel and of another topic, under their right hashes."""

    async def query(self) -> StoreQueryResponse:
        return answers(*map(stored, past("lair")), stored(self.said[-2], content_topic="/other"))

    def by_id(self) -> Any:  # noqa: ANN401
        items = [
            sds_page(wanted, stored(other))
            for wanted, other in zip(self.said, past("lair"), strict=True)
        ]
        yield store_pb2.SdsMessagesPage(messages=items)


class PagesWithoutEnd(Liar):
    """A node whose answers go on for ever, and bring nothing new."""

    async def query(self) -> StoreQueryResponse:
        return answers(stored(self.said[-1]), more=True)

    def by_id(self) -> Any:  # noqa: ANN401
        return repeat(store_pb2.SdsMessagesPage())

    def closure(self) -> Any:  # noqa: ANN401
        return repeat(store_pb2.CausalHistoryPage())


class TheSameForEver(Liar):
    """A node whose answers repeat one message that is known."""

    def by_id(self) -> Any:  # noqa: ANN401
        last = self.said[-1]
        return repeat(store_pb2.SdsMessagesPage(messages=[sds_page(last, stored(last))] * 1_000))

    def closure(self) -> Any:  # noqa: ANN401
        last = self.said[-1]
        return repeat(store_pb2.CausalHistoryPage(messages=[sds_page(last, stored(last))] * 1_000))


class TooLarge(Liar):
    """An answer that is larger than any that is accepted."""

    async def query(self) -> StoreQueryResponse:
        return answers(stored(self.said[-2], payload=bytes(20 * 1024 * 1024)))


class Silent(Liar):
    """A node that never answers."""

    async def query(self) -> StoreQueryResponse:
        await asyncio.Event().wait()
        raise AssertionError


class Refusing(Liar):
    """Statuses of its own making."""

    async def query(self) -> StoreQueryResponse:
        return StoreQueryResponse(status_code=418, status_desc="I am a teapot")


class BackInTime(Liar):
    """A scan that goes on for ever, back in time: its feed loses its turn."""

    def scan(self) -> Any:  # noqa: ANN401
        for number in count():
            yield store_pb2.ScanPage(messages=[stored(self.said[-1 - number % MESSAGES])])


@asynccontextmanager
async def serving(liar: Liar) -> AsyncIterator[str]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    store_pb2_grpc.add_StoreServicer_to_server(liar, server)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def honest_bus(said: list[Said]) -> BusTransport:
    bus = Bus()
    for each in said:
        bus.add(ROUTE, Fetched(each.payload, each.hint, each.timestamp_ns))
    return bus.transport("honest")


@pytest.mark.parametrize(
    "lie",
    [
        WrongBytes,
        OtherChannels,
        PagesWithoutEnd,
        TheSameForEver,
        TooLarge,
        Silent,
        Refusing,
        BackInTime,
    ],
)
async def test_a_lying_node_stops_no_participant(
    lie: Callable[[], Liar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storenode.sds.aio.node.CALL_TIMEOUT_S", 2.0)
    liar = lie()
    async with (
        serving(liar) as address,
        Channel.join(
            [address, honest_bus(liar.said)],
            ROOM,
            "alice",
            content_topic=CONTENT,
            config=config_of(ROOM, "alice"),
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        await until(alice, MESSAGES)
        assert [m.message_id for m in await alice.log()] == [m.message_id for m in liar.said]
        assert alice.status.lost == 0
        # What it answers to publishing is no answer: the bus takes the message.
        sent = await alice.send(b"in spite of it")
        await alice.wait_for(lambda status: not status.unpublished)
        assert (await alice.log(1))[0].message_id == sent
        participant = alice._participant
        participant.core.check()
        assert len(participant.core.incoming.waiting) == 0
