"""Requests of 16 KB that unpack to 16 MiB; they are refused before anything is unpacked."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

import grpc

from bench.hostile.target import Target

COUNT = 200
SHORT = 50

_MESSAGE_BYTES: Final = 16 * 1024 * 1024 - 64
_DEADLINE_S: Final = 60.0


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack and say how the calls ended."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target.address, options=options) as channel:
        publish: Any = channel.unary_unary("/storenode.v1.Store/Publish", None, None)
        request = bytes(_MESSAGE_BYTES)

        async def call() -> str:
            made = publish(
                request,
                timeout=_DEADLINE_S,
                compression=grpc.Compression.Gzip,
            )
            return str((await made.code()).name)

        codes = Counter(await asyncio.gather(*(call() for _ in range(count))))
    return "; ".join(f"{number} of {count} ended {code}" for code, number in codes.items())
