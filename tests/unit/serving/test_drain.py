"""Endless calls end with the node, unless their own callers end them."""

import asyncio

import pytest

from store.serving.failure import CallError
from store.serving.tasks import Drain


async def wait_for_ever(drain: Drain, began: asyncio.Event) -> None:
    with drain.endless():
        began.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("drains", "cancels", "expected"),
    [
        (True, False, CallError),
        (False, True, asyncio.CancelledError),
        (True, True, asyncio.CancelledError),
    ],
)
async def test_the_callers_own_cancellation_counts_for_more(
    drains: bool, cancels: bool, expected: type[BaseException]
) -> None:
    drain, began = Drain(), asyncio.Event()
    call = asyncio.create_task(wait_for_ever(drain, began))
    await began.wait()
    if drains:
        drain.begin()
    if cancels:
        call.cancel()
    with pytest.raises(expected):
        await call


async def test_what_has_ended_is_left_alone() -> None:
    drain = Drain()
    with drain.endless():
        assert len(drain.blocks) == 1
    assert not drain.blocks
    drain.begin()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
