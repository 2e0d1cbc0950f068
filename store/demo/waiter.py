"""Waits that end when something is complete, and are given up only when nothing changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from store.demo.limits import LOOK_EVERY_S


class Waiter:
    """Waits until counts are zero.

    A wait is given up when its count has not changed for ``patience_s``, or ``limit_s`` after the
    beginning. `given_up` lists such waits.
    """

    def __init__(self, patience_s: float, limit_s: float) -> None:
        self._patience_s = patience_s
        self._end_s = time.monotonic() + limit_s
        self.given_up: list[str] = []

    @property
    def left_s(self) -> float:
        """The time until the limit."""
        return max(self._end_s - time.monotonic(), 0.0)

    async def until_none(self, what: str, count: Callable[[], int]) -> bool:
        """Wait until nothing is left of what is counted; return False when that was given up."""
        last, changed_s = count(), time.monotonic()
        while last:
            now_s = time.monotonic()
            if now_s - changed_s > self._patience_s:
                self.given_up.append(
                    f"{what}: {last:,} left, and no change for {self._patience_s:.0f} s"
                )
                return False
            if not self.left_s:
                self.given_up.append(f"{what}: {last:,} left when the time limit was reached")
                return False
            await asyncio.sleep(LOOK_EVERY_S)
            if (left := count()) != last:
                last, changed_s = left, time.monotonic()
        return True
