"""The table of attacks, and how one is carried out in a process of its own."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chaos.attacks import broken, calls, reads
from chaos.attacks.http2 import Target


@dataclass(frozen=True, slots=True)
class Attack:
    """A program against a node that describes the outcome; tests use ``short`` as its ``count``.

    The node's memory may grow by ``max_mib``: a container of 1 GiB has room for twice as much. An
    attack that takes longer than ``deadline_s`` is stopped.
    """

    run: Callable[[Target, random.Random, int], Awaitable[str]]
    count: int
    short: int
    max_mib: float = 400.0
    deadline_s: float = 300.0


ATTACKS: Final[Mapping[str, Attack]] = {
    "unread_scans": Attack(reads.unread_scans, 300, 24),
    "unread_follows": Attack(reads.unread_follows, 1_000, 24),
    "dripping_streams": Attack(reads.dripping_streams, 240, 60),
    "unfinished_requests": Attack(calls.UNFINISHED_REQUESTS.run, 64, 24, max_mib=350),
    "unfinished_streams": Attack(calls.UNFINISHED_STREAMS.run, 64, 32),
    "silent_calls": Attack(calls.SILENT_CALLS.run, 30_000, 6_000, max_mib=150),
    "crowded_calls": Attack(calls.CROWDED_CALLS.run, 40_000, 1_000, max_mib=600),
    "rapid_resets": Attack(calls.RAPID_RESETS.run, 200_000, 10_000),
    "compressed_requests": Attack(calls.compressed_requests, 200, 8, max_mib=50),
    "idle_connections": Attack(calls.idle_connections, 10_000, 100),
    "walks": Attack(reads.walks, 40, 6),
    "false_announcements": Attack(calls.false_announcements, 2_000_000, 100_000),
    "broken_requests": Attack(broken.broken_requests, 100_000, 2_500, 256, math.inf),
}
"""The attacks by name."""


def carry_out(name: str, target: Target, seed: int, count: int) -> tuple[str, str]:
    """Run an attack to its end or its deadline.

    Returns:
        What it has seen, and how it failed; the latter is empty if it did not.
    """

    async def run() -> str:
        async with asyncio.timeout(ATTACKS[name].deadline_s):
            return await ATTACKS[name].run(target, random.Random(seed), count)

    try:
        return asyncio.run(run()), ""
    except TimeoutError:
        return f"the attack was stopped after {ATTACKS[name].deadline_s:.0f} s", ""
    # It runs in a process of its own, and not every error passes from there to its caller.
    except Exception as error:  # noqa: BLE001
        return "", f"the attack failed: {type(error).__name__}: {error}"
