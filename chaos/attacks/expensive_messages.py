"""Attacks by messages that are expensive to store or to read."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import grpc

from chaos.attacks.catalog import Target
from storenode.sds.codec import encode
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import GetCausalHistoryRequest, PublishRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

_CHANNEL: Final = "crowded"
_IDS: Final = 400
_CLAIMANTS: Final = 16
_PARENTS: Final = 20
_HEADS: Final = 100
_BATCH: Final = 800
_DEADLINE_S: Final = 120.0
_PUBSUB: Final = "/waku/2/rs/1/0"


async def walks(target: Target, rng: random.Random, count: int) -> str:
    """Start many causal walks over IDs with many claimants and parents; places limit them."""
    options = (("grpc.max_receive_message_length", -1),)
    async with grpc.aio.insecure_channel(target.address, options=options) as channel:
        store = StoreStub(channel)
        for request in _crowd(rng):
            await store.Publish(request)
        heads = [HistoryEntry(message_id=_name(number)) for number in range(_HEADS)]
        wanted = GetCausalHistoryRequest(channel_id=_CHANNEL, heads=heads)

        async def walk() -> str:
            call = store.GetCausalHistory(wanted, timeout=_DEADLINE_S)
            try:
                messages = sum([len(page.messages) async for page in call])
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return f"OK with {messages} messages"

        ended = Counter(await asyncio.gather(*(walk() for _ in range(count))))
    return "; ".join(f"{number} of {count} walks: {how}" for how, number in sorted(ended.items()))


def _name(number: int) -> str:
    return f"id-{number}"


def _crowd(rng: random.Random) -> Iterator[PublishRequest]:
    """Yield requests with all claimants of all IDs, whose parents are among the same IDs."""
    request, now_ns = PublishRequest(), time.time_ns()
    for number in range(_IDS * _CLAIMANTS):
        parents = [(_name(rng.randrange(_IDS)), None) for _ in range(_PARENTS)]
        item = request.messages.add(pubsub_topic=_PUBSUB)
        item.message.content_topic = "/hostile/1/walks/proto"
        item.message.payload = encode(
            _CHANNEL,
            _name(number % _IDS),
            lamport=number,
            parents=parents,
            content=rng.randbytes(8),
        )
        item.message.timestamp = now_ns + number
        if len(request.messages) == _BATCH:
            yield request
            request = PublishRequest()
