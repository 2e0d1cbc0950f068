"""Callers under invented names that reconcile and never transfer; their sessions give way."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any, Final

from bench.hostile.peers import channel_to, reconcile, transfer
from bench.hostile.target import Target

COUNT = 400
SHORT = 40

_AT_ONCE: Final = 4
_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.25


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Attack, and say when an honest peer has reconciled and transferred meanwhile."""
    outcomes: Counter[bool] = Counter()
    names = iter([f"invented-{rng.getrandbits(64):x}" for _ in range(count)])
    async with channel_to(target.peer_address) as channel:

        async def invent() -> None:
            for name in names:
                outcomes[bool(await reconcile(channel, name))] += 1

        for _ in range(_AT_ONCE):
            outcomes[bool(await reconcile(channel, next(names)))] += 1
        inventing = [asyncio.create_task(invent()) for _ in range(_AT_ONCE)]
        waited_s = await honest(target.peer_address)
        await asyncio.gather(*inventing)
    seen = f"an honest peer transferred after {waited_s:.1f} s"
    if waited_s >= _PATIENCE_S:
        seen = f"an honest peer got no place in {_PATIENCE_S:.0f} s"
    return f"{outcomes[True]} of {count} invented peers reconciled; {seen}"


async def honest(address: str) -> float:
    """Reconcile and transfer once; returns the seconds until the transfer had begun."""
    began_s = time.monotonic()
    async with channel_to(address) as channel:
        while (passed_s := time.monotonic() - began_s) < _PATIENCE_S:
            if await _once(channel):
                return time.monotonic() - began_s
            await asyncio.sleep(_PAUSE_S)
    return passed_s


async def _once(channel: Any) -> bool:  # noqa: ANN401 - grpc.aio's
    session_id = await reconcile(channel, "honest-peer")
    return bool(session_id) and await transfer(channel, "honest-peer", session_id)
