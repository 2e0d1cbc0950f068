"""Blocking calls: their results, their errors, and interruptions that come at a bad moment."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storenode.connection.event_loop import call_on_loop, run_blocking

BEFORE_SLEEP_S = 0.05
"""Time in which the calling thread falls asleep; a slower one is interrupted while awake."""

GIVE_UP_S = 20.0


@contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_call_returns_its_result_or_raises_its_error() -> None:
    async def divide(one: int, *, by: int) -> float:
        return one / by

    assert run_blocking(divide, 1, by=2) == 0.5
    with pytest.raises(ZeroDivisionError):
        run_blocking(divide, 1, by=0)
    with pytest.raises(TypeError):
        run_blocking(divide)  # type: ignore[call-arg] # the mistake
    assert call_on_loop(threading.get_ident) != threading.get_ident()


def test_a_signal_that_does_not_wake_the_waiting_thread_ends_its_call() -> None:
    # As one that comes just before the thread sleeps: this one goes to another thread.
    ends: list[str] = []

    async def interrupt_and_wait() -> None:
        await asyncio.sleep(BEFORE_SLEEP_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        try:
            await asyncio.sleep(GIVE_UP_S)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        ends.append("given up")

    with interrupted_by(signal.SIGUSR1), pytest.raises(KeyboardInterrupt):
        run_blocking(interrupt_and_wait)
    assert ends == ["cancelled"]
