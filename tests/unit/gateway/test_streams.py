"""A stream: bounded in what it holds, and in what it sends before the client takes more."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from store.gateway.clients import ByteBudget
from store.gateway.connection import WakuConnection
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import CHUNK_BYTES, MAX_STREAM_UNREAD_BYTES, MIN_CHUNK_BYTES, WINDOW_BYTES
from store.gateway.mplex import Mplex
from store.gateway.multiplexing import DataReceived, Multiplexer
from store.gateway.streams import Stream
from store.gateway.yamux import Yamux


class Carrier:
    def __init__(self, multiplexer: Multiplexer) -> None:
        self.multiplexer = multiplexer
        self.sent: list[bytes] = []

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)


def stream_of(multiplexer: Multiplexer, limit_bytes: int = 1_000) -> tuple[Stream, list[bytes]]:
    carrier = Carrier(multiplexer)
    return Stream(1, cast("WakuConnection", carrier), ByteBudget(limit_bytes)), carrier.sent


def test_unread_bytes_are_bounded_by_stream_and_in_all() -> None:
    budget = ByteBudget(MAX_STREAM_UNREAD_BYTES + 10)
    connection = cast("WakuConnection", Carrier(Mplex()))
    stream, other = (Stream(each, connection, budget) for each in (1, 3))
    stream.feed(bytes(MAX_STREAM_UNREAD_BYTES))
    for subject, size_bytes, reason in ((stream, 1, "too_large"), (other, 11, "busy")):
        with pytest.raises(RefusalError) as caught:
            subject.feed(bytes(size_bytes))
        assert caught.value.reason == reason
    for subject in (stream, other):
        subject.discard()
    assert budget.used_bytes == 0


async def test_a_window_of_yamux_is_kept_and_opened_by_the_client() -> None:
    stream, sent = stream_of(Yamux())
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 500)))

    def sent_bytes() -> int:
        client = Yamux()
        events = [event for frame in sent for event in client.feed(frame)]
        return sum(len(each.data) for each in events if isinstance(each, DataReceived))

    for _ in range(20):
        await asyncio.sleep(0)
    assert (sent_bytes(), sending.done()) == (WINDOW_BYTES, False)
    stream.credit(500)
    await sending
    assert sent_bytes() == WINDOW_BYTES + 500
    stream.credit(2**32 - 1)
    with pytest.raises(RefusalError):
        stream.credit(1)


async def test_a_window_that_opens_byte_by_byte_is_not_used_byte_by_byte() -> None:
    stream, sent = stream_of(Yamux())
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 10_000)))
    for _ in range(10_000):
        await asyncio.sleep(0)
        stream.credit(1)
    await sending
    assert len(sent) <= WINDOW_BYTES // CHUNK_BYTES + 10_000 // MIN_CHUNK_BYTES + 2


async def test_a_stream_that_the_client_gave_up_ends_each_wait_on_it() -> None:
    stream, _ = stream_of(Yamux())
    sending = stream.send(bytes(2 * WINDOW_BYTES))
    waiting = asyncio.gather(stream.receive(), sending, return_exceptions=True)
    await asyncio.sleep(0)
    stream.fail()
    assert [type(each) for each in await waiting] == [StreamEndedError] * 2
