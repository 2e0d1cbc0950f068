"""``Publish`` and ``PublishStream``: from the bytes of a request to durable messages.

Rules of the stream: requests are judged in order, stored side by side (the writer puts what comes
together into shared transactions) and answered in order, each when its batch is durable. At most
`STREAM_WINDOW_REQUESTS` and `STREAM_WINDOW_BYTES` are under way; then the stream is not read. A
request that fails ends the stream, after the answers to all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from store.domain.ports import Services
from store.messages.transfer import MalformedMessage
from store.rpc.call import Call, Context, send
from store.rpc.decode import clip
from store.rpc.encode import publish_response
from store.rpc.failure import malformed
from store.rpc.limits import (
    COUNTED_REQUEST_BYTES,
    STREAM_WINDOW_BYTES,
    STREAM_WINDOW_REQUESTS,
)
from store.serving.publishing import Batch, Publishing, take_room
from store.serving.window import Budget
from storenode.wire.storenode.internal.v1.publish_raw_pb2 import RawPublishRequest

MESSAGES_FIELD: Final = 1
"""Number of ``PublishRequest.messages``."""

_NO_REQUEST: Final = "the request is no storenode.v1.PublishRequest: encode it as the schema says"

_NS_PER_S: Final = 1e9


class Publisher:
    """The handlers of the two methods."""

    def __init__(self, services: Services) -> None:
        self._publishing = Publishing(services)

    async def publish(self, call: Call, request: bytes) -> bytes:
        """Answer ``Publish``."""
        take_room(call, len(request))
        try:
            batch = await self.admit(call, request)
            stored = await self.store(call, batch)
        finally:
            call.node.in_flight.give_back(len(request))
        return await self.answer(call, batch, stored)

    async def publish_stream(self, call: Call, context: Context) -> None:
        """Answer ``PublishStream``."""
        await _Stream(self, call, context).run()

    async def admit(self, call: Call, request: bytes) -> Batch:
        """Judge the messages of a request."""
        decoded = _decode(request, call.node.limits.batch_messages)
        timeout_s = None
        if decoded.HasField("confirm_timeout"):
            given = decoded.confirm_timeout
            timeout_s = float(given.seconds) + given.nanos / _NS_PER_S
        try:
            return await self._publishing.admit(
                call,
                decoded.messages,
                len(request),
                min_confirms=decoded.min_confirms,
                timeout_s=timeout_s,
            )
        except MalformedMessage:
            raise malformed(_NO_REQUEST) from None

    async def store(self, call: Call, batch: Batch) -> Sequence[bool]:
        """Store what was accepted; what of it was new."""
        return await self._publishing.store(call, batch)

    async def answer(self, call: Call, batch: Batch, stored: Sequence[bool]) -> bytes:
        """The response, once other stores have confirmed what was stored, where that is wanted."""
        found = await self._publishing.confirmed(call, batch, stored)
        return publish_response(batch.published, stored, found)


class _Stream:
    """One ``PublishStream``: a task that reads and judges, and this one, which answers."""

    def __init__(self, publisher: Publisher, call: Call, context: Context) -> None:
        self._publisher = publisher
        self._call = call
        self._context = context
        self._slots = asyncio.Semaphore(STREAM_WINDOW_REQUESTS)
        self._room = Budget(STREAM_WINDOW_BYTES)
        self._answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        answer: asyncio.Task[bytes] | None = None
        try:
            while (answer := await self._answers.get()) is not None:
                await send(self._context, await answer)
                self._slots.release()
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, *self._left(), return_exceptions=True)
            # The error of a task has this frame in its traceback: as long as the frame has the
            # task, none of them is freed, nor the request.
            del reader, answer

    def _left(self) -> Iterator[asyncio.Task[bytes]]:
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            if answer is not None:
                answer.cancel()
                yield answer

    async def _read(self) -> None:
        try:
            while (request := await self._next()) is not None:
                self._call.charge(len(request), counted=False)
                self._call.check_ready()
                await self._accept(request)
        finally:
            self._answers.put_nowait(None)

    async def _next(self) -> bytes | None:
        await self._slots.acquire()
        with self._call.node.drain.endless():
            return await self._call.next_request(self._context)

    async def _accept(self, request: bytes) -> None:
        size, budgets = len(request), (self._room, self._call.node.in_flight)
        held: list[Budget] = []
        try:
            for budget in budgets:
                await budget.take(size)
                held.append(budget)
            batch = await self._publisher.admit(self._call, request)
        except BaseException:
            _give_back(held, size)
            raise
        answer = asyncio.create_task(self._respond(batch, held, size))
        # A task that is cancelled before it begins gives nothing back by itself.
        answer.add_done_callback(lambda _: _give_back(held, size))
        self._answers.put_nowait(answer)

    async def _respond(self, batch: Batch, held: list[Budget], size: int) -> bytes:
        with self._call.part("request", messages=len(batch.published.batch)):
            try:
                stored = await self._publisher.store(self._call, batch)
            finally:
                _give_back(held, size)
            return await self._publisher.answer(self._call, batch, stored)


def _give_back(held: list[Budget], size_bytes: int) -> None:
    while held:
        held.pop().give_back(size_bytes)


def _decode(request: bytes, most_messages: int) -> RawPublishRequest:
    if len(request) > COUNTED_REQUEST_BYTES:
        request = clip(request, MESSAGES_FIELD, most_messages + 1)
    try:
        return RawPublishRequest.FromString(request)
    except DecodeError:
        raise malformed(_NO_REQUEST) from None
