"""Waits of the demo end by what is counted; time only bounds how long nothing may change."""

from __future__ import annotations

from store.demo.waiter import Waiter


async def test_a_wait_goes_on_for_as_long_as_its_count_changes() -> None:
    waiter, left = Waiter(patience_s=0.5, limit_s=60.0), iter(range(12, -1, -1))
    # Each look comes 0.1 s after the one before: together they take more than the patience.
    assert await waiter.until_none("lines", lambda: next(left))
    assert waiter.given_up == []


async def test_a_wait_without_change_is_given_up_and_said() -> None:
    waiter = Waiter(patience_s=0.0, limit_s=60.0)
    assert not await waiter.until_none("lines", lambda: 3)
    assert waiter.given_up == ["lines: 3 left, and no change for 0 s"]


async def test_the_limit_ends_every_wait() -> None:
    waiter, counts = Waiter(patience_s=60.0, limit_s=0.0), iter(range(9, 0, -1))
    assert not await waiter.until_none("lines", lambda: next(counts))
    assert waiter.given_up == ["lines: 9 left when the time limit was reached"]
