"""``PublishStream``: requests of a stream to durable messages.

Rules of the stream: requests are judged in order, stored side by side (the writer puts what comes
together into shared transactions) and answered in order, each when its batch is durable. At most
`STREAM_WINDOW_BYTES` of them have no answer that was taken; then the stream is not read. A request
that fails ends the stream, after the answers to all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from store.rpc.call import RpcCall
from store.serving.methods.publish import PublishBatch, admit, confirm, publish_response, store
from store.serving.queue import FairQueue

STREAM_WINDOW_BYTES: Final = 16 * 1024 * 1024
LEAST_REQUEST_BYTES: Final = STREAM_WINDOW_BYTES // 32
"""Requests of one ``PublishStream`` that are under way at the same time, and what one counts at
least: some are written together, and those that follow are judged meanwhile."""


async def publish_stream(call: RpcCall) -> None:
    """Serve ``PublishStream``."""
    await _Stream(call).run()


class _Stream:
    """A task that reads and judges, and the call's own, which answers."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call
        self._window = FairQueue(STREAM_WINDOW_BYTES)
        self._answers: asyncio.Queue[tuple[asyncio.Task[bytes], int] | None] = asyncio.Queue()

    async def run(self) -> None:
        call, reader = self._call, asyncio.create_task(self._read())
        next_answer: tuple[asyncio.Task[bytes], int] | None = None
        try:
            while (next_answer := await self._answers.get()) is not None:
                await call.send(await next_answer[0])
                self._window.release(call.connection, next_answer[1])
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, *self._cancel_answers(), return_exceptions=True)
            # The error of a task has this frame in its traceback: as long as the frame has the
            # task, none of them is freed, nor the request.
            del reader, next_answer

    def _cancel_answers(self) -> Iterator[asyncio.Task[bytes]]:
        while not self._answers.empty():
            waiting = self._answers.get_nowait()
            if waiting is not None:
                waiting[0].cancel()
                yield waiting[0]

    async def _read(self) -> None:
        call = self._call
        try:
            while True:
                with call.node.drain.endless():
                    request = await call.next_request()
                if request is None:
                    return
                call.charge_next(len(request))
                size = max(len(request), LEAST_REQUEST_BYTES)
                await self._window.acquire(call.connection, size)
                self._answers.put_nowait((await self._accept(request), size))
                del request
        finally:
            self._answers.put_nowait(None)

    async def _accept(self, request: bytes) -> asyncio.Task[bytes]:
        """Judge a request when there is memory for it, and begin to store it."""
        call, memory, size = self._call, self._call.node.requests, len(request)
        await memory.acquire(call.connection, size)
        try:
            batch = await admit(call, request)
        except BaseException:
            memory.release(call.connection, size)
            raise
        answer = asyncio.create_task(self._respond(batch))
        # Not by the task itself, which may be cancelled before it begins.
        answer.add_done_callback(lambda _: memory.release(call.connection, size))
        return answer

    async def _respond(self, batch: PublishBatch) -> bytes:
        stored = await store(self._call, batch)
        confirmations = await confirm(self._call, batch, stored)
        return publish_response(batch.published, stored, confirmations)
