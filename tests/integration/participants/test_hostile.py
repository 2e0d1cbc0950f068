"""A node that lies: it loses its turn, and nothing else happens.

The node is a server of ours that speaks the schema and follows no rule. Its feed shows the last
message of a conversation; what that depends on is to be had from an honest bus, which is asked
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count, repeat
from typing import Any, Final

import pytest

from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import Fetched, Route
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue
from tests.support.bus import Bus, BusTransport
from tests.support.participant import SHAPE, Said, config_of, conversation, until
from tests.support.stand_in import Behaviour, serving

PATIENCE_S = 90.0
ROOM = "den"
CONTENT = f"/sds/1/{ROOM}/proto"
ROUTE = Route(ROOM, DEFAULT_PUBSUB_TOPIC, CONTENT)
NEWEST_NS = 1_763_625_600_000_000_000
MESSAGES = 12


def past(room: str = ROOM) -> list[Said]:
    topics = {"pubsub_topic": DEFAULT_PUBSUB_TOPIC, "content_topic": CONTENT}
    return list(conversation(room, MESSAGES, newest_ns=NEWEST_NS, shape=SHAPE, **topics))  # type: ignore[arg-type]


PAST: Final = past()
ELSEWHERE: Final = past("lair")


def stored(
    said: Said, *, content_topic: str = CONTENT, payload: bytes = b""
) -> WakuMessageKeyValue:
    message = WakuMessage(
        payload=payload or said.payload, content_topic=content_topic, timestamp=said.timestamp_ns
    )
    return WakuMessageKeyValue(
        message_hash=said.hint, message=message, pubsub_topic=DEFAULT_PUBSUB_TOPIC
    )


def found(*messages: WakuMessageKeyValue, more: bool = False) -> StoreQueryResponse:
    cursor = b"x" * 32 if more else None
    return StoreQueryResponse(status_code=200, messages=messages, pagination_cursor=cursor)


def sds(said: Said, item: WakuMessageKeyValue) -> store_pb2.SdsStoredMessage:
    entry = HistoryEntry(message_id=said.message_id, retrieval_hint=said.hint)
    return store_pb2.SdsStoredMessage(entry=entry, stored=item)


KNOWN: Final = [sds(PAST[-1], stored(PAST[-1]))] * 1_000

Lie = Callable[[], Iterable[Any] | None]
"""The pages of an answer, or None for no answer."""

LIES: Final[dict[str, dict[str, Lie]]] = {
    "wrong bytes for a hash or an ID": {
        "Query": lambda: [found(*(stored(each, payload=b"something else") for each in PAST))],
        "GetSdsMessages": lambda: [
            store_pb2.SdsMessagesPage(
                messages=[sds(each, stored(each, payload=PAST[0].payload)) for each in PAST]
            )
        ],
    },
    "messages of another channel and topic": {
        "Query": lambda: [found(*map(stored, ELSEWHERE), stored(PAST[-2], content_topic="/other"))],
        "GetSdsMessages": lambda: [
            store_pb2.SdsMessagesPage(
                messages=[sds(*each) for each in zip(PAST, map(stored, ELSEWHERE), strict=True)]
            )
        ],
    },
    "pages without end that bring nothing": {
        "Query": lambda: [found(stored(PAST[-1]), more=True)],
        "GetSdsMessages": lambda: repeat(store_pb2.SdsMessagesPage()),
        "GetCausalHistory": lambda: repeat(store_pb2.CausalHistoryPage()),
    },
    "pages without end of what is known": {
        "GetSdsMessages": lambda: repeat(store_pb2.SdsMessagesPage(messages=KNOWN)),
        "GetCausalHistory": lambda: repeat(store_pb2.CausalHistoryPage(messages=KNOWN)),
    },
    "too large": {"Query": lambda: [found(stored(PAST[-2], payload=bytes(20 * 1024 * 1024)))]},
    "silent": {"Query": lambda: None},
    "a status of its own making": {
        "Query": lambda: [StoreQueryResponse(status_code=418, status_desc="I am a teapot")]
    },
    "a scan back in time for ever, which costs the feed its turn": {
        "Scan": lambda: (
            store_pb2.ScanPage(messages=[stored(PAST[-1 - number % MESSAGES])])
            for number in count()
        )
    },
}
ANSWERS: Final[dict[str, Lie]] = {
    "Follow": lambda: [
        store_pb2.FollowPage(cursor=b"c", live=True),
        store_pb2.FollowPage(messages=[stored(PAST[-1])], cursor=b"d", live=True),
    ],
    "Query": lambda: [found()],
    "Publish": lambda: [store_pb2.PublishResponse()],
}


def lying(lies: dict[str, Lie]) -> Behaviour:
    """Return the behaviour of a node with the last message alone, that lies in some answers."""

    async def answer(method: str, _requests: object, _context: object) -> AsyncIterator[bytes]:
        pages = (ANSWERS | lies).get(method, tuple)()
        for page in pages or ():
            yield page.SerializeToString()
        if pages is None or method == "Follow":
            await asyncio.Event().wait()

    return answer


def honest_bus() -> BusTransport:
    bus = Bus()
    for each in PAST:
        bus.add(ROUTE, Fetched(each.payload, each.hint, each.timestamp_ns))
    return bus.transport("honest")


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_node_stops_no_participant(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storenode.sds.aio.node.CALL_TIMEOUT_S", 2.0)
    config = config_of(ROOM, "alice")
    async with (
        serving(lying(LIES[lie])) as address,
        Channel.join(
            [address, honest_bus()], ROOM, "alice", content_topic=CONTENT, config=config
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        await until(alice, MESSAGES)
        assert [m.message_id for m in await alice.log()] == [m.message_id for m in PAST]
        assert alice.status.lost == 0
        # What it answers to publishing is no answer: the bus takes the message.
        sent = await alice.send(b"in spite of it")
        await alice.wait_for(lambda status: not status.unpublished)
        assert (await alice.log(1))[0].message_id == sent
        participant = alice._participant
        participant.core.check()
        assert len(participant.core.incoming.waiting) == 0
