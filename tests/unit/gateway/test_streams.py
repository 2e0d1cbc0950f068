"""A stream: bounded in what it holds, and in what it sends before the client takes more."""

from __future__ import annotations

import asyncio

import pytest

from store.gateway.clients import ByteBudget
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import CHUNK_BYTES, MAX_STREAM_UNREAD_BYTES, MIN_CHUNK_BYTES, WINDOW_BYTES
from store.gateway.mplex import Mplex
from store.gateway.multiplexing import DataReceived, Multiplexer
from store.gateway.streams import Stream
from store.gateway.yamux import Yamux


class Carrier:
    """A connection that keeps what is sent."""

    def __init__(self, multiplexer: Multiplexer) -> None:
        self.multiplexer = multiplexer
        self.sent: list[bytes] = []

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)


def test_what_is_not_read_is_bounded_by_stream_and_by_all() -> None:
    budget = ByteBudget(MAX_STREAM_UNREAD_BYTES + 10)
    stream, other = (Stream(each, Carrier(Mplex()), budget) for each in (1, 3))
    stream.feed(bytes(MAX_STREAM_UNREAD_BYTES))
    with pytest.raises(RefusalError) as caught:
        stream.feed(b"a")
    assert caught.value.reason == "too_large"
    with pytest.raises(RefusalError) as caught:
        other.feed(bytes(11))
    assert caught.value.reason == "busy"
    for each in (stream, other):
        each.discard()
    assert budget.used_bytes == 0


async def test_a_window_of_yamux_is_kept_and_opened_by_the_client() -> None:
    carrier = Carrier(Yamux())
    stream = Stream(1, carrier, ByteBudget(1_000))
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 500)))

    def sent_bytes() -> int:
        client = Yamux()
        events = [event for frame in carrier.sent for event in client.feed(frame)]
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
    carrier = Carrier(Yamux())
    stream = Stream(1, carrier, ByteBudget(1_000))
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 10_000)))
    for _ in range(10_000):
        await asyncio.sleep(0)
        stream.credit(1)
    await sending
    assert len(carrier.sent) <= WINDOW_BYTES // CHUNK_BYTES + 10_000 // MIN_CHUNK_BYTES + 2


async def test_a_stream_that_the_client_gave_up_ends_who_waits_on_it() -> None:
    stream = Stream(1, Carrier(Yamux()), ByteBudget(1_000))
    waiting = [
        asyncio.create_task(stream.receive()),
        asyncio.create_task(stream.send(bytes(2 * WINDOW_BYTES))),
    ]
    await asyncio.sleep(0)
    stream.fail()
    for each in waiting:
        with pytest.raises(StreamEndedError):
            await each
