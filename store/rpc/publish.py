"""``Publish`` and ``PublishStream``: from the bytes of a request to durable messages.

Rules of the stream: requests are judged in order, stored side by side (the writer puts what comes
together into shared transactions) and answered in order, each when its batch is durable. At most
`STREAM_WINDOW_REQUESTS` and `STREAM_WINDOW_BYTES` are under way; then the stream is not read. A
request that fails ends the stream, after the answers to all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from store.domain.admission import Admission, Admitted
from store.domain.ports import Services, Source
from store.messages.fields import chunk_messages
from store.messages.record import RecordBatch
from store.messages.transfer import MalformedMessage
from store.rpc.call import Call, Context, send
from store.rpc.decode import clip
from store.rpc.encode import publish_response
from store.rpc.failure import RpcFailure, malformed, over_limit
from store.rpc.limits import (
    COUNTED_REQUEST_BYTES,
    STREAM_WINDOW_BYTES,
    STREAM_WINDOW_REQUESTS,
)
from store.rpc.window import Budget
from storenode.wire.storenode.internal.v1.publish_raw_pb2 import RawPublishRequest

MESSAGES_FIELD: Final = 1
"""Number of ``PublishRequest.messages``."""

_NO_REQUEST: Final = "the request is no storenode.v1.PublishRequest: encode it as the schema says"

_NS_PER_S: Final = 1e9
_SOURCE: Final = Source.CLIENT.value


@dataclass(frozen=True, slots=True)
class Batch:
    """A request whose messages are judged; it arrived at ``began_ns`` of the monotonic clock.

    ``timeout_s``: how long to wait for confirmations, None for the node's time.
    """

    published: Admitted
    min_confirms: int
    timeout_s: float | None
    began_ns: int


class Publisher:
    """The handlers of the two methods."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def publish(self, call: Call, request: bytes) -> bytes:
        """Answer ``Publish``."""
        budget, size = call.node.in_flight, len(request)
        if not budget.try_take(size):
            raise RpcFailure(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"limit of {budget.limit_bytes:,} bytes of requests under way on this node is "
                "reached: retry with backoff",
                retry=True,
            )
        try:
            batch = await self.admit(call, request)
            stored = await self.store(call, batch)
        finally:
            budget.give_back(size)
        if not batch.min_confirms:
            return publish_response(batch.published, stored)
        return await self.answer(call, batch, stored)

    async def publish_stream(self, call: Call, context: Context) -> None:
        """Answer ``PublishStream``."""
        await _Stream(self, call, context).run()

    async def admit(self, call: Call, request: bytes) -> Batch:
        """Judge the messages of a request, letting others have a turn now and then."""
        node = call.node
        began_ns = node.monotonic_ns()
        most = node.limits.batch_messages
        decoded = _decode(request, most)
        messages = decoded.messages
        count = len(messages)
        if count > most:
            raise over_limit(f"the request holds more than {most:,} messages: send fewer in one")
        call.charge_messages(count)
        admission = Admission(node.policy(), node.now_ns(), Source.CLIENT, call.client)
        step = chunk_messages(count, len(request))
        for start in range(0, count, step):
            if start:
                await asyncio.sleep(0)
            try:
                admission.admit(messages[start : start + step])
            except MalformedMessage:
                raise malformed(_NO_REQUEST) from None
        timeout_s = None
        if decoded.HasField("confirm_timeout"):
            given = decoded.confirm_timeout
            timeout_s = float(given.seconds) + given.nanos / _NS_PER_S
        return Batch(admission.admitted, decoded.min_confirms, timeout_s, began_ns)

    async def store(self, call: Call, batch: Batch) -> Sequence[bool]:
        """Store what was accepted; what of it was new, when all of it is durable."""
        published, metrics = batch.published, call.node.metrics
        stored: Sequence[bool] = ()
        metrics.publishes_in_flight.inc()
        try:
            if published.batch.hashes:
                stored = await self._services.writer.store(
                    published.batch, Source.CLIENT, batch.min_confirms
                )
        finally:
            metrics.publishes_in_flight.dec()
        if published.ephemerals:
            # After the commit: a batch that fails is sent again as a whole.
            self._services.feed.announce_ephemeral(published.ephemerals)
        counts = published.count(stored)
        metrics.count_intake(_SOURCE, counts.stored, counts.duplicate, counts.rejected)
        if counts.ephemeral:
            metrics.messages_ephemeral.inc(counts.ephemeral)
        elapsed_ns = call.node.monotonic_ns() - batch.began_ns
        metrics.publish_batch_seconds.observe(elapsed_ns / _NS_PER_S)
        return stored

    async def answer(self, call: Call, batch: Batch, stored: Sequence[bool]) -> bytes:
        """The response, once other stores have confirmed what was stored, where that is wanted."""
        published, wanted = batch.published, batch.min_confirms
        if not wanted or not published.batch.hashes:
            return publish_response(published, stored)
        hashes = published.batch.hashes
        # Nobody needs the bytes any more, and the wait may be long.
        published.batch = RecordBatch(hashes=hashes)
        with _part(call, "confirm", min_confirms=wanted):
            found = await call.node.confirmations.confirmed(hashes, stored, wanted, batch.timeout_s)
        return publish_response(published, stored, found)


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
        with _part(self._call, "request", messages=len(batch.published.batch)):
            try:
                stored = await self._publisher.store(self._call, batch)
            finally:
                _give_back(held, size)
            return await self._publisher.answer(self._call, batch, stored)


def _part(call: Call, name: str, **attributes: int) -> AbstractContextManager[None]:
    """A part of a call, where calls are traced."""
    tracing = call.node.tracing
    return nullcontext() if tracing is None else tracing.within(name, **attributes)


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
