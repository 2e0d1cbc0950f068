"""A publisher that batches what it is given, with a bound on what is not acknowledged yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple, Self

from storenode.client.errors import PublishError
from storenode.client.message import Message, Published, encode_message
from storenode.client.messages import publish_requests
from storenode.client.node import NodeClient
from storenode.common.errors import ArgumentError, ClientClosedError
from storenode.connection.arguments import check_kind
from storenode.wire.storenode.v1.store_pb2 import PublishRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

DEFAULT_MAX_PENDING: Final = 10_000
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Messages, and their bytes, that are unacknowledged when `AsyncPublisher.send` waits."""

_CLOSED: Final = "The publisher is closed: make a new one."


class _Item(NamedTuple):
    """A message that waits for its answer."""

    message: Message
    encoded: WakuMessageAndTopic
    size_bytes: int
    answer: asyncio.Future[Published]


class AsyncPublisher:
    """Publishes messages in batches; made by `AsyncClient.publisher`, used as a context manager.

    `send` waits while ``max_pending`` messages or 64 MiB are unacknowledged. Leaving the block
    waits until everything is acknowledged. When the node is away, unacknowledged messages are sent
    again, which may turn STORED into DUPLICATE.
    """

    def __init__(
        self,
        calls: NodeClient,
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
        strict: bool = True,
    ) -> None:
        check_kind("max_pending", max_pending, int, "a number of messages")
        if max_pending < 1:
            raise ArgumentError(f"max_pending={max_pending}: allow at least one message.")
        self._calls = calls
        self._grouped = partial(
            publish_requests, min_confirms=min_confirms, confirm_timeout_s=confirm_timeout_s
        )
        self._strict = strict
        self._room = asyncio.Semaphore(max_pending)
        self._pending_bytes = 0
        self._turn = asyncio.Lock()
        self._waiting: deque[_Item] = deque()
        self._sent: deque[list[_Item]] = deque()
        self._pending: set[asyncio.Future[Published]] = set()
        self._changed = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._refused: PublishError | None = None
        self._failure: Exception | None = None
        self.acknowledged = 0
        """Messages that the node has answered for, rejected ones included."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        assert self._task is not None
        if error is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._abandon()
            return
        self._closing = True
        self._changed.set()
        await self._task
        failure = self._failure or (self._refused if self._strict else None)
        if failure is not None:
            raise failure

    async def send(self, message: Message) -> asyncio.Future[Published]:
        """Queue a message; the future that is returned has the node's answer.

        The future need not be awaited: unless the publisher was made with ``strict=False``, leaving
        the block raises for the first message that was rejected or not confirmed.

        Raises:
            NodeError: Publishing failed for good; unacknowledged futures have the same error.
            ClientClosedError: The block was left already.
        """
        encoded = encode_message(message)
        size_bytes = encoded.ByteSize()
        await self._room.acquire()  # in order: each place that is free wakes one sender
        try:
            async with self._turn:  # in order, too: a change wakes the first one only
                while self._pending and self._pending_bytes + size_bytes > MAX_PENDING_BYTES:
                    await self._change()
            if self._task is None or self._closing or self._task.done():
                raise self._failure or ClientClosedError(_CLOSED)
        except BaseException:
            self._room.release()
            raise
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._pending.add(answer)
        self._pending_bytes += size_bytes
        self._waiting.append(_Item(message, encoded, size_bytes, answer))
        self._changed.set()
        return answer

    async def flush(self) -> None:
        """Wait until everything that was sent is acknowledged.

        Raises:
            NodeError: Publishing failed for good.
            ClientClosedError: The block was left meanwhile, before that.
        """
        # Answers come in order; the futures may have been cancelled by the program.
        sent = self.acknowledged + len(self._pending)
        while self._pending and self.acknowledged < sent:
            await self._change()
        if self._failure is not None or self.acknowledged < sent:
            raise self._failure or ClientClosedError(_CLOSED)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _run(self) -> None:
        try:
            async with aclosing(self._calls.publish_stream(self._requests())) as answers:
                async for _, response in answers:
                    for item, result in zip(self._sent.popleft(), response.results, strict=True):
                        self._settle(item, Published.decode(result))
                    self._changed.set()
        except Exception as error:  # noqa: BLE001 - it is raised by `send`, `flush` and the block
            self._failure = error
        finally:
            self._abandon()

    async def _requests(self) -> AsyncGenerator[PublishRequest]:
        """Yield batches of all that waits, so that a slow node gets larger ones."""
        while True:
            while not self._waiting:
                if self._closing:
                    return
                await self._change()
            request = next(self._grouped(item.encoded for item in self._waiting))
            self._sent.append([self._waiting.popleft() for _ in request.messages])
            yield request

    def _settle(self, item: _Item, result: Published) -> None:
        self.acknowledged += 1
        self._pending.discard(item.answer)
        self._pending_bytes -= item.size_bytes
        self._room.release()
        if not item.answer.done():
            item.answer.set_result(result)
        try:
            result.check(item.message)
        except PublishError as error:
            self._refused = self._refused or error

    def _abandon(self) -> None:
        """Fail all that wait for an answer or for room: nothing more is acknowledged."""
        for answer in self._pending:
            self._room.release()
            if self._failure is None or answer.done():
                answer.cancel()
            else:
                answer.set_exception(self._failure)
                answer.exception()  # it need not be awaited: the block raises the same
        self._pending.clear()
        self._changed.set()
