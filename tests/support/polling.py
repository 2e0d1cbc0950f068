"""Polling of a process or a database until a condition holds.

There is a pause between two looks. Without one they would take the processor from what is waited
for, and from all other tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from chaos.tasks import PATIENCE_S, PAUSE_S, eventually

__all__ = ["PATIENCE_S", "PAUSE_S", "eventually", "settle", "until"]


async def until(check: Callable[[], Awaitable[object]]) -> None:
    """Ask until the answer is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await check():  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)


async def settle() -> None:
    """Let tasks that wait for nothing but each other continue until they stand."""
    for _ in range(5):
        await asyncio.sleep(0)
