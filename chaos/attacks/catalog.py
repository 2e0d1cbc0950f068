"""The table of attacks, and how one is carried out in a process of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chaos.attacks import calls, reads
from chaos.attacks.http2 import Target


@dataclass(frozen=True, slots=True)
class Attack:
    """A program against a node that describes the outcome; tests use ``short`` as its ``count``."""

    run: Callable[[Target, random.Random, int], Awaitable[str]]
    count: int
    short: int


_DEADLINE_S: Final = 300.0
"""An attack that takes longer is stopped."""

ATTACKS: Final[Mapping[str, Attack]] = {
    "unread_scans": Attack(reads.unread_scans, 300, 24),
    "unread_follows": Attack(reads.unread_follows, 1_000, 24),
    "dripping_streams": Attack(reads.dripping_streams, 240, 60),
    "unfinished_requests": Attack(calls.UNFINISHED_REQUESTS.run, 64, 24),
    "unfinished_streams": Attack(calls.UNFINISHED_STREAMS.run, 64, 32),
    "silent_calls": Attack(calls.SILENT_CALLS.run, 30_000, 6_000),
    "crowded_calls": Attack(calls.CROWDED_CALLS.run, 40_000, 1_000),
    "rapid_resets": Attack(calls.RAPID_RESETS.run, 200_000, 10_000),
    "compressed_requests": Attack(calls.compressed_requests, 200, 8),
    "idle_connections": Attack(calls.idle_connections, 10_000, 100),
    "walks": Attack(reads.walks, 40, 6),
    "false_announcements": Attack(calls.false_announcements, 2_000_000, 100_000),
}
"""The attacks by name."""


def carry_out(name: str, target: Target, seed: int, count: int) -> str:
    """Run an attack to its end or its deadline, and return what it has seen."""

    async def run() -> str:
        async with asyncio.timeout(_DEADLINE_S):
            return await ATTACKS[name].run(target, random.Random(seed), count)

    try:
        return asyncio.run(run())
    except TimeoutError:
        return f"the attack was stopped after {_DEADLINE_S:.0f} s"
