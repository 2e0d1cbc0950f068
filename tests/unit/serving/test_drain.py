import asyncio

import pytest

from store.serving.drain import Drain
from store.serving.failure import CallError


async def wait_for_ever(drain: Drain, began: asyncio.Event) -> None:
    with drain.endless():
        began.set()
        await asyncio.Event().wait()


async def test_endless_calls_end_when_the_node_drains() -> None:
    drain, began = Drain(), asyncio.Event()
    call = asyncio.create_task(wait_for_ever(drain, began))
    await began.wait()
    drain.begin()
    with pytest.raises(CallError, match="shutting down"):
        await call
    assert not call.cancelled()


async def test_a_call_that_begins_later_ends_at_once() -> None:
    drain = Drain()
    drain.begin()
    assert drain.begun.is_set()
    with pytest.raises(CallError, match="shutting down"):
        await wait_for_ever(drain, asyncio.Event())


async def test_the_caller_s_own_cancellation_stays_one() -> None:
    drain, began = Drain(), asyncio.Event()
    call = asyncio.create_task(wait_for_ever(drain, began))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_both_at_once_count_as_the_caller_s() -> None:
    drain, began = Drain(), asyncio.Event()
    call = asyncio.create_task(wait_for_ever(drain, began))
    await began.wait()
    drain.begin()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_what_has_ended_is_left_alone() -> None:
    drain = Drain()
    with drain.endless():
        pass
    drain.begin()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
