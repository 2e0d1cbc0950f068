"""Seventy streams of gossip under invented names; half of the places are not theirs, and the
streams that bring nothing give way.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Any, Final

import grpc

from bench.hostile.peers import answer, begin, channel_to
from bench.hostile.target import Target

COUNT = 70
SHORT = 70

_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 1.0
_TRY_S: Final = 0.2
"""All call from one address, so nothing but trying more often is in the honest peer's favour."""

_AGAIN_S: Final = (3.0, 7.0)
"""In step with each other they would meet the moment at which places may be taken, or miss it."""


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Attack, and say when an honest peer has a stream meanwhile."""
    names = [f"invented-{rng.getrandbits(64):x}" for _ in range(count)]
    async with channel_to(target.peer_address) as channel:
        joined: set[str] = set()
        holding = [asyncio.create_task(_hold(channel, name, joined, rng)) for name in names]
        await asyncio.sleep(_PAUSE_S)
        waited_s = await honest(target.peer_address)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
    seen = f"an honest peer had a stream after {waited_s:.1f} s"
    if waited_s >= _PATIENCE_S:
        seen = f"an honest peer had no stream in {_PATIENCE_S:.0f} s"
    return f"{len(joined)} of {count} invented peers had a stream; {seen}"


async def honest(address: str) -> float:
    """Have a stream once; returns the seconds until the node has sent something on it."""
    began_s = time.monotonic()
    async with channel_to(address) as channel:
        while (passed_s := time.monotonic() - began_s) < _PATIENCE_S:
            call = begin(channel, "Gossip", "honest-peer")
            is_joined = await answer(call) is not None
            call.cancel()
            if is_joined:
                return time.monotonic() - began_s
            await asyncio.sleep(_TRY_S)
    return passed_s


async def _hold(
    channel: Any,  # noqa: ANN401 - grpc.aio's
    name: str,
    joined: set[str],
    rng: random.Random,
) -> None:
    """Keep a stream that says nothing, and begin it again when it is ended."""
    task = asyncio.current_task()
    # A cancellation may come out of a call as the error with which the call ended meanwhile.
    while task is not None and not task.cancelling():
        call = begin(channel, "Gossip", name)
        try:
            with suppress(grpc.aio.AioRpcError):
                while isinstance(await call.read(), bytes):
                    joined.add(name)
            await asyncio.sleep(rng.uniform(*_AGAIN_S))
        finally:
            call.cancel()
