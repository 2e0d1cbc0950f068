"""Polling of a process or a database until a condition holds.

There is a pause between two looks. Without one they would take the processor from what is waited
for, and from all other tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 120.0
PAUSE_S = 0.03

_T = TypeVar("_T")


def eventually(look: Callable[[], _T | None]) -> _T:
    """Ask until the answer is true; that answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(PAUSE_S)
    return found


async def until(check: Callable[[], Awaitable[object]]) -> None:
    """Ask until the answer is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await check():  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)


async def settle() -> None:
    """Let tasks that wait for nothing but each other go on until they stand."""
    for _ in range(5):
        await asyncio.sleep(0)
