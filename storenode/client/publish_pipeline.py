"""The pipelined ``PublishStream``: requests in flight, answers in order, sent again after a loss.

Publishing is idempotent, since a message is named by its hash: a request whose answer was lost is
sent again, and what it stored the first time comes back as DUPLICATE.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Final

import grpc

from storenode.client.nodes import Node, Nodes
from storenode.client.retry import HEDGE_DELAY_S, Attempts, Retry
from storenode.connection.call_status import Ending, cancelled
from storenode.connection.errors import CallTimeoutError, NodeError, silent_node

if TYPE_CHECKING:
    from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResponse

    Requests = Iterable[PublishRequest] | AsyncIterable[PublishRequest]
    Call = grpc.aio.StreamStreamCall[PublishRequest, PublishResponse]

_END: Final = None

MAX_REQUESTS_IN_FLIGHT: Final = 8
"""Requests that are sent or ready, and not yet answered."""


class PublishPipeline:
    """A run through a source of requests, over as many calls as it takes."""

    def __init__(
        self, nodes: Nodes, retry: Retry, timeout_s: float | None, open_call: Callable[[Node], Call]
    ) -> None:
        self._nodes = nodes
        self._retry = retry
        self._timeout_s = timeout_s
        self._open_call = open_call
        self._ready: asyncio.Queue[PublishRequest | None] = asyncio.Queue(1)
        self._window = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        self._sent: deque[PublishRequest] = deque()
        self._unanswered = 0
        self._active_s = 0.0
        """The time at which the last request was written or the last answer received."""
        self._exhausted = False
        self._fault: Exception | None = None

    async def run(
        self, requests: Requests
    ) -> AsyncGenerator[tuple[PublishRequest, PublishResponse], None]:
        """Yield each request with its answer, in order.

        Raises:
            NodeError: The stream failed for good; what was not yielded is not acknowledged.
            Exception: What the source raised, after the answers to what came before.
        """
        source = asyncio.create_task(self._fill(requests))
        attempts = Attempts(self._nodes, self._retry, self._timeout_s)
        patience_s = HEDGE_DELAY_S
        try:
            while True:
                node = await attempts.connected()
                call = self._open_call(node)
                ending = Ending(call)
                sender = asyncio.create_task(self._send(call))
                answers = aiter(call)
                try:
                    while (response := await self._next(node, answers, patience_s)) is not None:
                        attempts.progressed()
                        yield self._answered(), response
                    break
                except grpc.aio.AioRpcError as error:
                    failure = await ending.failure(error)
                    if failure is None:
                        break
                    await attempts.failed(node, failure)
                except CallTimeoutError as error:
                    if self._is_patient(patience_s):
                        await attempts.failed(node, error)
                    else:
                        # Busy or hung: the next node gets its turn, and each one more time.
                        self._nodes.failed(node)
                        patience_s *= 2
                finally:
                    call.cancel()
                    await cancelled(sender)
            self._check_finished()
        finally:
            await cancelled(source)

    async def _next(
        self, node: Node, answers: AsyncIterator[PublishResponse], patience_s: float
    ) -> PublishResponse | None:
        """Return the next answer; None at the end of the stream.

        Raises:
            CallTimeoutError: The node has not answered in time what was sent to it.
        """
        clock = asyncio.get_running_loop().time
        following = asyncio.ensure_future(anext(answers, None))
        self._active_s = clock()
        try:
            while True:
                limit_s = self._limit_s(patience_s)
                silent_s = clock() - self._active_s if self._sent else 0.0
                left_s = None if limit_s is None else limit_s - silent_s
                if left_s is not None and left_s <= 0:
                    raise silent_node(node.address, limit_s)
                await asyncio.wait({following}, timeout=left_s)
                if following.done():
                    if following.cancelled():
                        self._nodes.check()  # closing a channel cancels its calls
                    return following.result()
        finally:
            following.cancel()

    def _limit_s(self, patience_s: float) -> float | None:
        """Return how long the node may take for its next answer."""
        if not self._is_patient(patience_s):
            return patience_s
        if self._timeout_s is None:
            return None
        first = self._sent[0] if self._sent else None
        return self._timeout_s + (first.confirm_timeout.ToSeconds() if first else 0)

    def _is_patient(self, patience_s: float) -> bool:
        """Return True if another node need not be tried before the time limit."""
        is_confirmed = bool(self._sent) and self._sent[0].min_confirms > 0
        is_late = self._timeout_s is not None and patience_s >= self._timeout_s
        return len(self._nodes) == 1 or is_confirmed or is_late

    async def _fill(self, requests: Requests) -> None:
        # A task of its own: cancelling the sender of a lost call must not end the source.
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self._offer(request)
            else:
                for request in requests:
                    await self._offer(request)
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is raised by `run`
            self._fault = fault
        self._exhausted = True
        await self._ready.put(_END)

    async def _offer(self, request: PublishRequest) -> None:
        await self._window.acquire()
        self._unanswered += 1
        await self._ready.put(request)

    async def _send(self, call: Call) -> None:
        try:
            for request in tuple(self._sent):
                await call.write(request)
            while (request_or_end := await self._ready.get()) is not _END:
                # Listed before it is written: a failure in between must not lose it.
                self._sent.append(request_or_end)
                await call.write(request_or_end)
                self._active_s = asyncio.get_running_loop().time()
            # The end stays in the queue for the sender of a next call.
            self._ready.put_nowait(_END)
            await call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            # The call is over; the reader of its answers gets the reason.
            return
        except Exception:
            call.cancel()
            raise

    def _answered(self) -> PublishRequest:
        if not self._sent:
            raise NodeError(
                "INTERNAL", f"The node at {self._nodes.current.address} answered what was not sent."
            )
        self._window.release()
        self._unanswered -= 1
        return self._sent.popleft()

    def _check_finished(self) -> None:
        if self._unanswered or not self._exhausted:
            raise NodeError(
                "INTERNAL",
                "The node ended the stream before it had answered every request: publish again "
                "what is not acknowledged.",
            )
        if self._fault is not None:
            raise self._fault
