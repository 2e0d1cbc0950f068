"""Attacks by reads that are expensive, slow, or never end, and by requests that are sent slowly."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from itertools import count as numbers
from typing import Any, Final

import grpc

from chaos.attacks.calls import PEER, STORE, hold, identity
from chaos.attacks.http2 import MESSAGE_HEAD, Connection, Target, connected
from storenode.sds.codec import encode
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
    GetCausalHistoryRequest,
    GetSdsMessagesRequest,
    PublishRequest,
    ScanRequest,
)
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

_TOPIC: Final = "/hostile/1/unread/proto"
_TOPICS: Final = 100
_MESSAGES: Final = 20_000
_PAYLOAD_BYTES: Final = 1_024
_BATCH: Final = 1_000
_HOLD_S: Final = 20.0
_DRIP_S: Final = 8.0
_PAUSE_S: Final = 0.05
_SENT_BYTES: Final = 64 * 1024
_TAKEN_BYTES: Final = 64
_SENT: Final = (PEER + "Reconcile", PEER + "Transfer", PEER + "Gossip", STORE + "Publish")
_FILTER: Final = ContentFilter(content_topics=[_TOPIC])
_CHANNEL: Final = "unread"
_CROWDED: Final = "crowded"
_IDS: Final = 400
_CLAIMANTS: Final = 16
_PARENTS: Final = 20
_HEADS: Final = 100
_DEADLINE_S: Final = 120.0
_ENTRIES: Final = [HistoryEntry(message_id=str(number)) for number in range(_BATCH)]
_READ: Final = {
    STORE + "Scan": ScanRequest(filter=_FILTER, include_data=True).SerializeToString(),
    STORE + "Follow": FollowRequest(
        filter=_FILTER, from_beginning=True, include_data=True
    ).SerializeToString(),
    STORE + "GetSdsMessages": GetSdsMessagesRequest(
        channel_id=_CHANNEL, entries=_ENTRIES
    ).SerializeToString(),
    STORE + "GetCausalHistory": GetCausalHistoryRequest(
        channel_id=_CHANNEL, heads=_ENTRIES[-1:]
    ).SerializeToString(),
}


async def unread_scans(target: Target, rng: random.Random, count: int) -> str:
    """Open many scans over one connection and read none; the budget of unsent answers ends them."""
    await _plant(target, rng)
    return await _hold(target, count, lambda store: store.Scan(ScanRequest(include_data=True)))


async def unread_follows(target: Target, rng: random.Random, count: int) -> str:
    """Follow everything many times and read nothing; the budget of unsent answers ends them.

    Each has a filter of its own with many topics, so that no queued answer is shared.
    """
    await _plant(target, rng)
    names = numbers()

    def follow(store: Any) -> Any:  # noqa: ANN401 - a stub of grpc.aio, and its call
        topics = [_TOPIC, *(f"/hostile/1/{next(names)}/proto" for _ in range(_TOPICS - 1))]
        wanted = ContentFilter(content_topics=topics)
        return store.Follow(FollowRequest(filter=wanted, from_beginning=True, include_data=True))

    return await _hold(target, count, follow)


async def dripping_streams(target: Target, rng: random.Random, count: int) -> str:
    """Send and read a few bytes now and then on streams of every kind; they get few places."""
    await _plant(target, rng)
    each = count // (len(_SENT) + len(_READ))
    ended = await asyncio.gather(
        *(_send(target, rng, path, each) for path in _SENT),
        *(_read(target, path, request, each) for path, request in _READ.items()),
    )
    names = [path.rpartition("/")[2] for path in (*_SENT, *_READ)]
    shown = ", ".join(f"{number} {name}" for name, number in zip(names, ended, strict=True))
    return f"of {each} streams of each kind the node ended {shown}"


async def walks(target: Target, rng: random.Random, count: int) -> str:
    """Start many causal walks over IDs with many claimants and parents; places limit them."""
    options = (("grpc.max_receive_message_length", -1),)
    heads = [HistoryEntry(message_id=f"id-{number}") for number in range(_HEADS)]
    wanted = GetCausalHistoryRequest(channel_id=_CROWDED, heads=heads)
    payloads = (
        encode(
            _CROWDED,
            f"id-{number % _IDS}",
            lamport=number,
            parents=[(f"id-{rng.randrange(_IDS)}", None) for _ in range(_PARENTS)],
            content=rng.randbytes(8),
        )
        for number in range(_IDS * _CLAIMANTS)
    )
    async with grpc.aio.insecure_channel(target["listen"], options=options) as channel:
        store = StoreStub(channel)
        await _publish(store, "/hostile/1/walks/proto", payloads)

        async def walk() -> str:
            call = store.GetCausalHistory(wanted, timeout=_DEADLINE_S)
            try:
                messages = sum([len(page.messages) async for page in call])
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return f"OK with {messages} messages"

        ended = Counter(await asyncio.gather(*(walk() for _ in range(count))))
    return "; ".join(f"{number} of {count} walks: {how}" for how, number in sorted(ended.items()))


async def _plant(target: Target, rng: random.Random) -> None:
    """Publish 20 MiB of SDS messages, each with the one before as parent, unless they are held."""
    async with grpc.aio.insecure_channel(target["listen"]) as channel:
        store = StoreStub(channel)
        wanted = StoreQueryRequest(content_topics=[_TOPIC], pagination_limit=1)
        if (await store.Query(wanted)).messages:
            return
        payloads = (
            encode(
                _CHANNEL,
                str(number),
                lamport=number,
                parents=[(str(number - 1), None)] if number else [],
                content=rng.randbytes(_PAYLOAD_BYTES),
            )
            for number in range(_MESSAGES)
        )
        await _publish(store, _TOPIC, payloads)


async def _publish(
    store: Any,  # noqa: ANN401 - a stub of grpc.aio
    content_topic: str,
    payloads: Iterator[bytes],
) -> None:
    now_ns = numbers(time.time_ns())
    while batch := [*islice(payloads, _BATCH)]:
        request = PublishRequest()
        for payload in batch:
            item = request.messages.add(pubsub_topic="/waku/2/rs/1/0")
            item.message.content_topic = content_topic
            item.message.payload = payload
            item.message.timestamp = next(now_ns)
        await store.Publish(request)


async def _hold(target: Target, count: int, begin: Callable[[Any], Any]) -> str:
    """Begin calls, read nothing for a while, and describe how they ended."""
    options = (("grpc.max_receive_message_length", -1),)
    async with grpc.aio.insecure_channel(target["listen"], options=options) as channel:
        store = StoreStub(channel)
        calls = [begin(store) for _ in range(count)]
        # Few calls do not fill the budget that ends them, however long they are held.
        await hold(min(_HOLD_S, count / 4), lambda: all(call.done() for call in calls))
        ended = Counter([(await call.code()).name for call in calls if call.done()])
        for call in calls:
            call.cancel()
    kept = count - ended.total()
    return "; ".join(
        [f"{kept} of {count} calls still open", *(f"{n} ended {code}" for code, n in ended.items())]
    )


async def _send(target: Target, rng: random.Random, path: str, count: int) -> int:
    """Send bytes slowly into calls of one kind; return how many the node ended."""
    is_peer = path.startswith(PEER)
    async with connected(target["peer"] if is_peer else target["listen"]) as connection:
        streams = []
        for _ in range(count):
            fields = identity(rng) if is_peer else ()
            streams.append(connection.open(path, chain.from_iterable(fields)))
            connection.send(streams[-1], MESSAGE_HEAD.pack(False, _SENT_BYTES))
        return await _drip(connection, streams, lambda each: connection.send(each, b"\n"))


async def _read(target: Target, path: str, request: bytes, count: int) -> int:
    """Read answers of one kind slowly; return how many calls the node ended."""
    async with connected(target["listen"]) as connection:
        streams = [connection.open(path) for _ in range(count)]
        for each in streams:
            data = MESSAGE_HEAD.pack(False, len(request)) + request
            connection.send(each, data, last=True)
        return await _drip(connection, streams, lambda each: connection.take(each, _TAKEN_BYTES))


async def _drip(connection: Connection, streams: list[int], drop: Callable[[int], None]) -> int:
    until_s = time.monotonic() + _DRIP_S
    while time.monotonic() < until_s and not connection.lost.is_set():
        for each in streams:
            drop(each)
        await connection.drain()
        await asyncio.sleep(_PAUSE_S)
    return connection.ended
