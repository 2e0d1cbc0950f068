"""A peer brings a message of each day since 1970, and nothing is dropped: partitions are few."""

from __future__ import annotations

import random
import time
from typing import Final

from bench.hostile.peers import channel_to, give
from bench.hostile.target import Target
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

COUNT = 20_000
SHORT = 400

OPTIONS = ("--retention", "off")

_DAY_NS: Final = 86_400 * 10**9


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Transfer as many messages, as far apart as there is time."""
    now_ns = time.time_ns()
    days = rng.sample(range(1, now_ns // _DAY_NS), min(count, now_ns // _DAY_NS - 1))
    async with channel_to(target.peer_address) as channel:
        stored, refused = await give(channel, "years", [_message(now_ns, day) for day in days])
    return f"{stored:,} of {len(days):,} messages were stored, {refused:,} refused"


def _message(now_ns: int, day: int) -> WakuMessageAndTopic:
    item = WakuMessageAndTopic(pubsub_topic="/waku/2/rs/1/0")
    item.message.content_topic = "/hostile/1/years/proto"
    item.message.timestamp = now_ns - day * _DAY_NS
    return item
