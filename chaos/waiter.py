"""Waits that end by what is counted, and are given up only when nothing changes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

_LOOK_EVERY_S: Final = 0.1


class StuckError(Exception):
    """A wait was given up; the text says what is left."""


class Waiter:
    """Waits until counts are zero.

    A wait is given up when its count has not changed for ``patience_s``, or ``limit_s`` after the
    waiter was made.
    """

    def __init__(self, patience_s: float, limit_s: float = math.inf) -> None:
        self._patience_s = patience_s
        self._end_s = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """The time until the limit."""
        return max(self._end_s - time.monotonic(), 0.0)

    async def until_none(self, what: str, count: Callable[[], int]) -> None:
        """Wait until nothing is left of what is counted.

        Raises:
            StuckError: The wait was given up.
        """
        last, changed_s = count(), time.monotonic()
        while last:
            now_s = time.monotonic()
            if now_s - changed_s > self._patience_s:
                raise StuckError(
                    f"{what}: {last:,} left, and no change for {self._patience_s:.0f} s"
                )
            if not self.left_s:
                raise StuckError(f"{what}: {last:,} left when the time limit was reached")
            await asyncio.sleep(_LOOK_EVERY_S)
            if (left := count()) != last:
                last, changed_s = left, time.monotonic()
