"""``PublishStream``: requests of a stream to durable messages.

Rules of the stream: requests are judged in order, stored side by side (the writer puts what comes
together into shared transactions) and answered in order, each when its batch is durable. At most
`STREAM_WINDOW_REQUESTS` and `STREAM_WINDOW_BYTES` are under way; then the stream is not read. A
request that fails ends the stream, after the answers to all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from store.rpc.call import RpcCall
from store.serving.methods.publish import (
    PublishBatch,
    admit,
    confirm,
    publish_response,
    store,
)
from store.serving.queue import FairQueue, memory_queue

STREAM_WINDOW_REQUESTS: Final = 32
STREAM_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Requests of one ``PublishStream`` that are under way at one time: some are written together, and
those that follow are judged meanwhile."""


async def publish_stream(call: RpcCall) -> None:
    """Serve ``PublishStream``."""
    await _Stream(call).run()


class _Stream:
    """A task that reads and judges, and the call's own, which answers."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call
        self._slots = asyncio.Semaphore(STREAM_WINDOW_REQUESTS)
        self._window = memory_queue(STREAM_WINDOW_BYTES)
        self._answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        answer: asyncio.Task[bytes] | None = None
        try:
            while (answer := await self._answers.get()) is not None:
                await self._call.send(await answer)
                self._slots.release()
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, *self._cancel_answers(), return_exceptions=True)
            # The error of a task has this frame in its traceback: as long as the frame has the
            # task, none of them is freed, nor the request.
            del reader, answer

    def _cancel_answers(self) -> Iterator[asyncio.Task[bytes]]:
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            if answer is not None:
                answer.cancel()
                yield answer

    async def _read(self) -> None:
        call = self._call
        try:
            while True:
                await self._slots.acquire()
                with call.node.drain.endless():
                    request = await self._call.next_request()
                if request is None:
                    return
                call.charge(len(request), counted=False)
                await self._accept(request)
        finally:
            self._answers.put_nowait(None)

    async def _accept(self, request: bytes) -> None:
        size, connection = len(request), self._call.connection
        taken: list[FairQueue] = []

        def release() -> None:
            while taken:
                taken.pop().release(connection, size)

        try:
            for queue in (self._window, self._call.node.in_flight):
                await queue.acquire(connection, size)
                taken.append(queue)
            batch = await admit(self._call, request)
        except BaseException:
            release()
            raise

        async def respond(batch: PublishBatch) -> bytes:
            try:
                stored = await store(self._call, batch)
            finally:
                release()
            found = await confirm(self._call, batch, stored)
            return publish_response(batch.published, stored, found)

        answer = asyncio.create_task(respond(batch))
        # A task that is cancelled before it begins gives nothing back by itself.
        answer.add_done_callback(lambda _: release())
        self._answers.put_nowait(answer)
