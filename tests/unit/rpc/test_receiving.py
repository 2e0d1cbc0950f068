"""Places for requests that have not come in full."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from store.rpc import receiving
from store.rpc.receiving import NoRequest, Receiving
from store.serving.failure import CallFailure, Code


class Caller:
    """The context of a call whose request comes when the test says so; None: it never comes."""

    def __init__(self, connection: str = "ipv4:192.0.2.1:1", request: object = None) -> None:
        self.asked = asyncio.Event()
        self.request: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._connection = connection
        if request is not None:
            self.request.set_result(request)

    def peer(self) -> str:
        """The address and port that the call comes from."""
        return self._connection

    async def read(self) -> object:
        """The request."""
        self.asked.set()
        return await self.request


async def read(places: Receiving, caller: Caller, *, wait: bool = True) -> bytes:
    """Read a request as the wrapper of calls does."""
    return await places.request(cast("Any", caller), wait=wait)


async def test_a_request_that_is_there_is_read_at_once_however_many_come() -> None:
    places = Receiving(2)
    callers = [Caller(request=bytes([number])) for number in range(100)]
    found = await asyncio.gather(*(read(places, caller) for caller in callers))
    assert found == [bytes([number]) for number in range(100)]


async def test_no_more_are_read_at_one_time_than_there_are_places() -> None:
    places = Receiving(2)
    callers = [Caller() for _ in range(3)]
    tasks = [asyncio.create_task(read(places, caller)) for caller in callers]
    await asyncio.sleep(0)
    assert [caller.asked.is_set() for caller in callers] == [True, True, False]
    callers[0].request.set_result(b"x")
    assert await tasks[0] == b"x"
    await callers[2].asked.wait()
    callers[1].request.set_result(b"y")
    callers[2].request.set_result(b"z")
    assert await asyncio.gather(*tasks[1:]) == [b"y", b"z"]


async def test_who_keeps_a_place_loses_it_when_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "CROWDED_TIMEOUT_S", 0.05)
    places = Receiving(1)
    slow = asyncio.create_task(read(places, Caller()))
    await asyncio.sleep(0.2)
    assert not slow.done(), "nobody else wants the place"
    assert await read(places, Caller(request=b"x")) == b"x"
    with pytest.raises(CallFailure) as refused:
        await slow
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    assert refused.value.retry


async def test_a_request_has_its_time_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "REQUEST_TIMEOUT_S", 0.05)
    with pytest.raises(CallFailure) as refused:
        await read(Receiving(1), Caller())
    assert refused.value.code is Code.DEADLINE_EXCEEDED


async def test_a_connection_with_many_calls_does_not_keep_another_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "CROWDED_TIMEOUT_S", 0.05)
    places = Receiving(1)
    crowd = [asyncio.create_task(read(places, Caller("ipv4:192.0.2.1:1"))) for _ in range(40)]
    await asyncio.sleep(0)
    assert await read(places, Caller("ipv4:192.0.2.2:1", b"x")) == b"x"
    assert sum(task.done() for task in crowd) <= 3
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert await read(places, Caller(request=b"y")) == b"y"


async def test_places_come_back_whoever_leaves_and_how() -> None:
    places = Receiving(1)
    for _ in range(3):
        holder, waiter = (asyncio.create_task(read(places, Caller())) for _ in range(2))
        await asyncio.sleep(0)
        holder.cancel()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(holder, waiter, return_exceptions=True)
    with pytest.raises(NoRequest):
        await read(places, Caller(request=object()))
    assert await read(places, Caller(request=b"x"), wait=False) == b"x"


async def test_without_waiting_a_full_house_is_told_at_once() -> None:
    places = Receiving(1)
    holder = asyncio.create_task(read(places, Caller()))
    await asyncio.sleep(0)
    with pytest.raises(CallFailure) as refused:
        await read(places, Caller(request=b"x"), wait=False)
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)


async def test_of_too_many_that_wait_one_of_the_fullest_connection_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "MAX_WAITING_REQUESTS", 4)
    places, holder = Receiving(1), Caller()
    holding = asyncio.create_task(read(places, holder))
    crowd = [asyncio.create_task(read(places, Caller("ipv4:192.0.2.1:1"))) for _ in range(4)]
    await asyncio.sleep(0)
    alone = asyncio.create_task(read(places, Caller("ipv4:192.0.2.2:1", b"x")))
    done, _ = await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    assert [type(task.exception()) for task in done] == [CallFailure]
    holder.request.set_result(b"y")
    assert await holding == b"y"
    for task in crowd:
        task.cancel()
    assert await alone == b"x"
    await asyncio.gather(*crowd, return_exceptions=True)
    assert await read(places, Caller(request=b"z"), wait=False) == b"z"
