"""Statuses of calls as their callee gave them, and blocking calls with their interruptions."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from store.domain.ports import PeerAddress
from store.rpc.peer_calls import PeerCall, PeerCallError
from store.serving.context import NodeIdentity
from store.sync.errors import MAX_PEER_TEXT_CHARS, shown
from storenode.cli.client.session import run_session
from storenode.cli.errors import OK
from storenode.client import Message, Publisher
from storenode.common.errors import ArgumentError
from storenode.connection.call_status import Ending, cancelled
from storenode.connection.event_loop import call_on_loop, iterate_blocking, run_blocking
from tests.support.virtual_time import virtual_time

Status = tuple[grpc.StatusCode, str]
BROKEN: Final[Status] = (grpc.StatusCode.INTERNAL, "Internal error from Core")
AWAY: Final[Status] = (grpc.StatusCode.UNAVAILABLE, "failed to connect")
ENDED: Final[Status] = (grpc.StatusCode.OK, "")
REFUSED: Final[Status] = (grpc.StatusCode.ABORTED, "the other one goes first")
ORDERS: Final[tuple[tuple[list[Status], list[Status]], ...]] = (
    ([REFUSED, BROKEN], []),
    ([BROKEN, REFUSED], []),
    ([BROKEN], [REFUSED]),
    ([REFUSED], [BROKEN]),
    ([], [BROKEN, REFUSED]),
)
"""The statuses of a call before and after a failed write."""


class BreakingCall:
    """The status of the failed write takes the place of the peer's, or the peer's that of it."""

    def __init__(self, before: list[Status], after: list[Status]) -> None:
        self._before, self._after = before, after
        self._status = ENDED
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def write(self, _: object) -> None:
        for status in self._before:
            self._set(status)
        for status in self._after:
            asyncio.get_running_loop().call_soon(self._set, status)
        raise asyncio.InvalidStateError

    def _set(self, status: Status) -> None:
        self._status = status
        for callback in self._callbacks:
            callback(self)


def error_of(status: Status) -> AioRpcError:
    """Return the error of gRPC for a status."""
    return AioRpcError(status[0], Metadata(), Metadata(), status[1], "what gRPC tells developers")


@pytest.mark.parametrize(
    ("before", "after", "status", "failure"),
    [(*order, REFUSED, REFUSED) for order in ORDERS]
    + [
        ([ENDED, BROKEN], [], ENDED, None),
        ([BROKEN, ENDED], [], ENDED, None),
        # Nothing explains the failed write, or the error says what its status does.
        ([BROKEN], [], BROKEN, BROKEN),
        ([AWAY], [], AWAY, AWAY),
    ],
)
@virtual_time
async def test_the_callee_s_own_status_is_what_a_call_failed_with(
    before: list[Status], after: list[Status], status: Status, failure: Status | None
) -> None:
    call = BreakingCall(before, after)
    known = Ending(call)
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"")
    assert await known.status() == status
    error = error_of(AWAY if AWAY in before else BROKEN)
    found = await known.failure(error)
    assert (found and (found.code(), found.details())) == failure
    assert (found is error) == (failure in (BROKEN, AWAY))


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


def test_a_collection_of_garbage_runs_no_callback_of_a_call() -> None:
    # Python swallows an interruption that comes in one.
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    async def refer_to_itself() -> None:
        own: list[object] = [asyncio.current_task()]
        own.append(own)

    gc.collect()
    gc.disable()
    run_blocking(refer_to_itself)
    sys.setprofile(note)
    gc.collect()
    sys.setprofile(None)
    gc.enable()
    assert "_remove" not in called  # of `asyncio.all_tasks`; other tests have callbacks too


def test_the_loop_closes_an_iterator_that_is_garbage_and_does_not_wait_for_itself() -> None:
    closed = threading.Event()

    async def count() -> AsyncIterator[int]:
        yield 1

    items = iterate_blocking(count(), AsyncMock(side_effect=closed.set))
    garbage: list[object] = [items, next(items)]
    garbage.append(garbage)
    del items, garbage
    call_on_loop(gc.collect)
    assert closed.wait(GIVE_UP_S)


def test_a_callback_of_the_loop_may_not_make_a_blocking_call() -> None:
    with pytest.raises(ArgumentError, match="use a thread"):
        call_on_loop(call_on_loop, threading.get_ident)


def test_a_future_that_the_program_cancels_is_settled_once() -> None:
    answer = call_on_loop(asyncio.get_running_loop).create_future()
    publisher = Publisher(Mock(send=AsyncMock(return_value=answer)))
    assert publisher.send(Message(b"", "/a/1/b/c")).cancel()
    assert call_on_loop(answer.cancelled)


def test_texts_of_peers_are_cut_and_made_printable() -> None:
    assert shown("plain text: über") == "plain text: über"
    assert shown("a\nb\x1b[31m") == "a\ufffdb\ufffd[31m"
    cut = shown("x" * 10_000)
    assert len(cut) == MAX_PEER_TEXT_CHARS
    assert cut.endswith("…")


async def named(_call: PeerCall) -> NodeIdentity:
    return NodeIdentity("b.example", "b", "0.1.0")


@pytest.mark.parametrize(
    ("statuses", "sentence", "code"),
    [
        ([BROKEN, REFUSED], "the other one goes first", grpc.StatusCode.ABORTED),
        ([BROKEN, ENDED], "before its end", grpc.StatusCode.UNKNOWN),
        ([BROKEN], "while a frame was sent", grpc.StatusCode.UNAVAILABLE),
    ],
)
@virtual_time
async def test_a_write_that_fails_gives_the_status_of_the_peer(
    statuses: list[Status], sentence: str, code: grpc.StatusCode
) -> None:
    call = PeerCall(PeerAddress("127.0.0.1", 1), BreakingCall(statuses, []), named)
    with pytest.raises(PeerCallError, match=sentence) as failure:
        await call.write(b"")
    assert failure.value.code is code


@pytest.mark.parametrize("interrupt_ends", [False, True])
def test_a_signal_that_does_not_wake_the_thread_ends_the_session(*, interrupt_ends: bool) -> None:
    # As one that comes just before the event loop sleeps: this one goes to another thread.
    ends: list[str] = []

    def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def wait() -> int:
        timer = threading.Timer(BEFORE_SLEEP_S, interrupt)
        timer.start()
        # Runs if the event loop does not wake before.
        asyncio.get_running_loop().call_later(GIVE_UP_S, ends.append, "given up")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        finally:
            timer.join()
        return OK

    if interrupt_ends:
        assert run_session(wait(), interrupt_ends=True) == OK
    else:
        with pytest.raises(KeyboardInterrupt):
            run_session(wait(), interrupt_ends=False)
    assert ends == ["cancelled"]
