"""``PublishStream``: requests of a stream to durable messages.

Rules of the stream: requests are judged in order, stored side by side (the writer puts what comes
together into shared transactions) and answered in order, each when its batch is durable. At most
`STREAM_WINDOW_REQUESTS` and `STREAM_WINDOW_BYTES` are under way; then the stream is not read. A
request that fails ends the stream, after the answers to all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from store.rpc.call import Call, Context, send
from store.rpc.limits import STREAM_WINDOW_BYTES, STREAM_WINDOW_REQUESTS
from store.serving.methods.encode import publish_response
from store.serving.methods.publish import Publisher
from store.serving.publishing import Batch
from store.serving.window import Budget


async def publish_stream(publisher: Publisher, call: Call, context: Context) -> None:
    """Answer ``PublishStream``."""
    await _Stream(publisher, call, context).run()


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
            found = await self._publisher.confirmed(self._call, batch, stored)
            return publish_response(batch.published, stored, found)


def _give_back(held: list[Budget], size_bytes: int) -> None:
    while held:
        held.pop().give_back(size_bytes)
