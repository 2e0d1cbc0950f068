"""Waits end by what is counted; time only bounds how long nothing may change."""

from __future__ import annotations

import pytest

from chaos.waiter import StuckError, Waiter


async def test_a_wait_goes_on_for_as_long_as_its_count_changes() -> None:
    waiter, left = Waiter(patience_s=0.5, limit_s=60.0), iter(range(12, -1, -1))
    # Each look comes 0.1 s after the one before: together they take more than the patience.
    await waiter.until_none("lines", lambda: next(left))


async def test_a_wait_without_change_is_given_up() -> None:
    with pytest.raises(StuckError, match="lines: 3 left, and no change for 0 s"):
        await Waiter(patience_s=0.0).until_none("lines", lambda: 3)


async def test_the_limit_ends_every_wait() -> None:
    waiter, counts = Waiter(patience_s=60.0, limit_s=0.0), iter(range(9, 0, -1))
    with pytest.raises(StuckError, match="lines: 9 left when the time limit was reached"):
        await waiter.until_none("lines", lambda: next(counts))


async def test_a_condition_may_be_asked_for() -> None:
    answers = iter([False, True])

    async def is_so() -> bool:
        return next(answers)

    await Waiter(patience_s=60.0).until("it", is_so)
