import asyncio

import pytest

from store.serving.failure import CallFailure
from store.serving.window import Budget


class Taking:
    """One `Budget.take`, stepped by hand, so that nothing depends on the event loop's turns."""

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        self._steps = budget.take(size_bytes)
        self._turn: asyncio.Future[None] | None = None
        try:
            self._turn = self._steps.send(None)
        except StopIteration:
            return

    def served(self) -> bool:
        return self._turn is None or self._turn.done()

    def cancel(self) -> None:
        """What a task does that is cancelled while it waits for its turn."""
        assert self._turn is not None
        self._turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            self._steps.throw(asyncio.CancelledError())

    def close(self) -> None:
        """Take note of being served."""
        if self._turn is not None:
            with pytest.raises(StopIteration):
                self._steps.send(None)


def refused(budget: Budget) -> None:
    with pytest.raises(CallFailure, match="limit of 10 bytes of requests"), budget.room(1):
        raise AssertionError


async def test_what_fits_is_taken_at_once() -> None:
    budget = Budget(10)
    await budget.take(6)
    with budget.room(4):
        refused(budget)
        budget.give_back(6)
        assert budget.used_bytes == 4
    assert budget.used_bytes == 0


async def test_waiters_are_served_in_turn() -> None:
    budget = Budget(10)
    await budget.take(10)
    large, small = Taking(budget, 8), Taking(budget, 1)
    budget.give_back(5)
    assert not large.served()
    assert not small.served()
    refused(budget)
    budget.give_back(5)
    assert large.served()
    assert small.served()
    assert budget.used_bytes == 9
    large.close()
    small.close()


async def test_one_request_above_the_limit_passes_alone() -> None:
    budget = Budget(10)
    await budget.take(50)
    waiting = Taking(budget, 1)
    assert not waiting.served()
    budget.give_back(50)
    assert waiting.served()
    assert budget.used_bytes == 1
    waiting.close()


async def test_a_waiter_that_gives_up_lets_the_next_one_pass() -> None:
    budget = Budget(10)
    await budget.take(8)
    large, small = Taking(budget, 5), Taking(budget, 2)
    large.cancel()
    assert small.served()
    assert budget.used_bytes == 10
    small.close()


async def test_a_waiter_that_is_cancelled_when_it_is_served_gives_back() -> None:
    budget = Budget(10)
    await budget.take(10)
    waiting = Taking(budget, 10)
    budget.give_back(10)
    assert budget.used_bytes == 10
    waiting.cancel()
    assert budget.used_bytes == 0


async def test_giving_back_too_much_is_noticed() -> None:
    with pytest.raises(AssertionError):
        Budget(10).give_back(1)
