"""What attacks by streams that are not read share: messages to be read, and calls kept open."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import grpc

from bench.hostile.target import Target
from storenode.wire.storenode.v1.store_pb2 import PublishRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

TOPIC: Final = "/hostile/1/unread/proto"

_MESSAGES: Final = 20_000
_PAYLOAD_BYTES: Final = 1_024
_BATCH: Final = 1_000
_HOLD_S: Final = 20.0
_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)


async def planted(target: Target, rng: random.Random) -> None:
    """Publish 20 MiB, which each of the calls is to be sent."""
    async with grpc.aio.insecure_channel(target.address) as channel:
        for start in range(0, _MESSAGES, _BATCH):
            request, now_ns = PublishRequest(), time.time_ns()
            for number in range(_BATCH):
                item = request.messages.add(pubsub_topic="/waku/2/rs/1/0")
                item.message.content_topic = TOPIC
                item.message.payload = rng.randbytes(_PAYLOAD_BYTES)
                item.message.timestamp = now_ns + start + number
            await StoreStub(channel).Publish(request)


async def hold(target: Target, count: int, begin: Callable[[Any], Any]) -> str:
    """Begin calls, read nothing for a while, and say how they have ended."""
    async with grpc.aio.insecure_channel(target.address, options=_OPTIONS) as channel:
        store = StoreStub(channel)
        calls = [begin(store) for _ in range(count)]
        await asyncio.sleep(_HOLD_S)
        ended = Counter([(await call.code()).name for call in calls if call.done()])
        for call in calls:
            call.cancel()
    kept = count - ended.total()
    return "; ".join(
        [f"{kept} of {count} calls still open", *(f"{n} ended {code}" for code, n in ended.items())]
    )
