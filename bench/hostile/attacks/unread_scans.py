"""Many scans over one connection that are never read; the budget of unsent answers ends them."""

from __future__ import annotations

import random

from bench.hostile.target import Target
from bench.hostile.unread import hold, planted
from storenode.wire.storenode.v1.store_pb2 import ScanRequest

COUNT = 300
SHORT = 60


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Attack and say how the calls ended."""
    await planted(target, rng)
    return await hold(target, count, lambda store: store.Scan(ScanRequest(include_data=True)))
