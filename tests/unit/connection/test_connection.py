"""The status of a call as its callee gave it, and blocking calls with their interruptions."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from storenode.connection.call_status import Ending, cancelled
from storenode.connection.event_loop import call_on_loop, run_blocking
from tests.support.breaking_call import BROKEN, ENDED, ORDERS, REFUSED, BreakingCall, Status
from tests.support.virtual_time import virtual_time


def error_of(status: Status) -> AioRpcError:
    """Return the error of gRPC for a status."""
    return AioRpcError(status[0], Metadata(), Metadata(), status[1], "what gRPC tells developers")


async def broken(before: list[Status], after: list[Status]) -> Ending:
    """Return the status of a call of which a write has failed."""
    call = BreakingCall(before, after)
    known = Ending(call)
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"")
    return known


@pytest.mark.parametrize(("before", "after"), ORDERS)
async def test_the_callee_s_own_status_is_what_a_call_failed_with(
    before: list[Status], after: list[Status]
) -> None:
    known = await broken(before, after)
    assert await known.status() == REFUSED
    failure = await known.failure(error_of(BROKEN))
    assert failure is not None
    assert (failure.code(), failure.details()) == REFUSED


@pytest.mark.parametrize("statuses", [[ENDED, BROKEN], [BROKEN, ENDED]])
async def test_a_call_that_the_callee_ended_well_has_not_failed(statuses: list[Status]) -> None:
    known = await broken(statuses, [])
    assert await known.failure(error_of(BROKEN)) is None


@virtual_time
async def test_what_nothing_explains_stays_as_it_is() -> None:
    known = await broken([BROKEN], [])
    assert await known.status() == BROKEN
    error = error_of(BROKEN)
    assert await known.failure(error) is error


async def test_an_error_that_says_the_same_stays_as_it_is() -> None:
    away: Status = (grpc.StatusCode.UNAVAILABLE, "failed to connect")
    error = error_of(away)
    assert await (await broken([away], [])).failure(error) is error


async def test_who_is_cancelled_while_a_writer_ends_is_cancelled() -> None:
    ending_slowly, may_end = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending_slowly.set()
            await may_end.wait()

    writer = asyncio.create_task(write())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(cancelled(writer))
    await ending_slowly.wait()
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()
    may_end.set()
    await asyncio.wait({writer})
    assert writer.cancelled()


async def test_what_a_writer_failed_with_is_raised() -> None:
    async def write() -> None:
        raise LookupError("no such request")

    writer = asyncio.create_task(write())
    await asyncio.sleep(0)
    with pytest.raises(LookupError, match="no such request"):
        await cancelled(writer)


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
