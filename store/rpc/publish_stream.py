"""``PublishStream``: requests of a stream to durable messages.

Rules of the stream: requests are judged in order, stored side by side (the writer puts what comes
together into shared transactions) and answered in order, each when its batch is durable. Where
`STREAM_WINDOW_BYTES` of them have no answer that was taken, the stream is not read. Answers that
wait for their turn or for their reader count in the budget of unsent answers. A request that fails
ends the stream, after the answers to all before it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from store.rpc.call import RpcCall
from store.serving.answers import COPIES
from store.serving.methods.publish import admit, respond

STREAM_WINDOW_BYTES: Final = 16 * 1024 * 1024
LEAST_REQUEST_BYTES: Final = STREAM_WINDOW_BYTES // 32
"""Requests of one ``PublishStream`` that are under way when no further one is read, and what one
counts at least: some are written together, and those that follow are judged meanwhile."""


async def publish_stream(call: RpcCall) -> None:
    """Serve ``PublishStream``."""
    with call.sender:
        await _Stream(call).run()


class _Stream:
    """A task that reads and judges, and the call's own, which answers."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call
        self._unanswered_bytes = 0
        self._answered = asyncio.Event()
        self._answers: asyncio.Queue[tuple[asyncio.Task[bytes], int] | None] = asyncio.Queue()

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        next_answer: tuple[asyncio.Task[bytes], int] | None = None
        try:
            while (next_answer := await self._answers.get()) is not None:
                answer = await next_answer[0]
                await self._call.sender.deliver(answer, self._call.send)
                self._call.sender.add(-COPIES * len(answer))
                self._unanswered_bytes -= next_answer[1]
                self._answered.set()
                next_answer, answer = None, b""  # else held while the next request is awaited
            await reader
        finally:
            left = [self._answers.get_nowait() for _ in range(self._answers.qsize())]
            tasks = [reader, *(each[0] for each in left if each is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # The error of a task has this frame in its traceback: as long as the frame has the
            # task, none of them is freed, nor the request.
            del reader, next_answer, left, tasks, task

    async def _read(self) -> None:
        call = self._call
        try:
            while True:
                while self._unanswered_bytes >= STREAM_WINDOW_BYTES:
                    self._answered.clear()
                    await self._answered.wait()
                with call.node.drain.endless():
                    request = await call.next_request()
                if request is None:
                    return
                call.charge_next(len(request))
                size = max(len(request), LEAST_REQUEST_BYTES)
                self._unanswered_bytes += size
                self._answers.put_nowait((await self._accept(request), size))
                del request
        finally:
            self._answers.put_nowait(None)

    async def _accept(self, request: bytes) -> asyncio.Task[bytes]:
        """Judge a request when there is memory for it, and begin to store it."""
        call, memory, size = self._call, self._call.node.requests, len(request)
        now_ns = call.node.now_ns()
        if size + memory.waiting_units > memory.limit:
            raise memory.full(memory.limit, "this node")
        await memory.acquire(call.connection, size)
        try:
            batch = await admit(call, request, now_ns)
        except BaseException:
            memory.release(call.connection, size)
            raise
        answer = asyncio.create_task(respond(call, batch))
        # Not by the task itself, which may be cancelled before it begins.
        answer.add_done_callback(lambda _: memory.release(call.connection, size))
        return answer
