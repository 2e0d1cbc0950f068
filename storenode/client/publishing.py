"""The pipelined ``PublishStream``: requests in flight, answers in order, again after a loss.

Publishing is idempotent, since a message is named by its hash: a request whose answer was lost is
sent again, and what it stored the first time comes back as DUPLICATE.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import grpc

from storenode.client.limits import MAX_REQUESTS_IN_FLIGHT
from storenode.client.nodes import Node, Nodes
from storenode.client.retry import Attempts, Retry
from storenode.connection.ending import Ending, cancelled
from storenode.connection.errors import NodeError, node_error

if TYPE_CHECKING:
    from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResponse

    Requests = Iterable[PublishRequest] | AsyncIterable[PublishRequest]
    Call = grpc.aio.StreamStreamCall[PublishRequest, PublishResponse]

_END: Final = None


class PublishPipeline:
    """One run through a source of requests, over as many calls as it takes."""

    def __init__(self, nodes: Nodes, retry: Retry, open_call: Callable[[Node], Call]) -> None:
        self._nodes = nodes
        self._retry = retry
        self._open_call = open_call
        self._ready: asyncio.Queue[PublishRequest | None] = asyncio.Queue(1)
        self._window = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)
        self._sent: deque[PublishRequest] = deque()
        self._unanswered = 0
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
        attempts = Attempts(self._retry, self._nodes)
        try:
            while True:
                node = self._nodes.current
                call = self._open_call(node)
                ending = Ending(call)
                sender = asyncio.create_task(self._send(call))
                try:
                    async for response in call:
                        attempts.progressed()
                        yield self._answered(), response
                    break
                except grpc.aio.AioRpcError as error:
                    failure = await ending.failure(error)
                    if failure is None:
                        break
                    await attempts.failed(node, node_error(failure, node.address))
                finally:
                    call.cancel()
                    await cancelled(sender)
            self._check_finished()
        finally:
            await cancelled(source)

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
            # The end stays in the queue for the sender of a next call.
            self._ready.put_nowait(_END)
            await call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            # The call is over; whoever reads its answers learns why.
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
