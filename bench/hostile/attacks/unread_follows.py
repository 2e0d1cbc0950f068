"""Many followers of everything that never read; the budget of unsent answers ends them.

Each has a filter of its own with many topics, so that nothing that waits for them is shared.
"""

from __future__ import annotations

import random
from itertools import count as numbers
from typing import Any

from bench.hostile.target import Target
from bench.hostile.unread import TOPIC, hold, planted
from storenode.wire.storenode.v1.store_pb2 import ContentFilter, FollowRequest

COUNT = 1_000
SHORT = 100

_TOPICS = 100


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Attack and say how the calls ended."""
    await planted(target, rng)
    names = numbers()

    def follow(store: Any) -> Any:  # noqa: ANN401 - a stub of grpc.aio, and its call
        topics = [TOPIC, *(f"/hostile/1/{next(names)}/proto" for _ in range(_TOPICS - 1))]
        wanted = ContentFilter(content_topics=topics)
        return store.Follow(FollowRequest(filter=wanted, from_beginning=True, include_data=True))

    return await hold(target, count, follow)
