"""Peers under invented names say that they hold millions of messages that nobody has published:
what is remembered of each is bounded, and who does not deliver is slowed, then cut off.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any, Final

import grpc

from bench.hostile.peers import begin, channel_to
from bench.hostile.target import Target
from storenode.wire.storenode.v1.peer_pb2 import GossipFrame, Inventory

COUNT = 2_000_000
SHORT = 100_000

_AT_ONCE: Final = 24
_FRAME_IDS: Final = 4_096
_PATIENCE_S: Final = 40.0
_PAUSE_S: Final = 0.5


class _Told:
    """How many IDs were announced, by how many names, and how many streams were ended."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ids = self.names = self.ended = 0


async def attack(target: Target, rng: random.Random, count: int) -> str:
    """Announce until all is said, or the time is up."""
    told = _Told(count)
    async with channel_to(target.peer_address) as channel:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.gather(*(_names(channel, rng, told) for _ in range(_AT_ONCE)))
    return (
        f"{told.ids:,} IDs were announced under {told.names:,} names, whose streams the node ended "
        f"{told.ended:,} times"
    )


async def _names(channel: Any, rng: random.Random, told: _Told) -> None:  # noqa: ANN401 - grpc.aio's
    while told.ids < told.count:
        told.names += 1
        call = begin(channel, "Gossip", f"invented-{rng.getrandbits(64):x}")
        try:
            while told.ids < told.count:
                ids = [rng.randbytes(32) for _ in range(_FRAME_IDS)]
                await call.write(GossipFrame(inv=Inventory(ids=ids)).SerializeToString())
                told.ids += len(ids)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            told.ended += 1
            await asyncio.sleep(_PAUSE_S)
        finally:
            call.cancel()
