"""One ``PublishStream`` for all channels at a node: requests go in turn, answers find their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import grpc

from storenode.connection.ending import Ending
from storenode.sds.aio.transport import TransportError, Verdict
from storenode.wire.storenode.v1 import store_pb2

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[store_pb2.PublishRequest, store_pb2.PublishResponse]


class Answers:
    """The answers to one channel's requests, in their order."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[Sequence[Verdict] | TransportError] = asyncio.Queue()

    def put(self, answer: Sequence[Verdict] | TransportError) -> None:
        """An answer, or why there will be none."""
        self._came.put_nowait(answer)

    async def next(self) -> Sequence[Verdict]:
        """The next answer.

        Raises:
            TransportError: the stream has ended.
        """
        answer = await self._came.get()
        if isinstance(answer, TransportError):
            raise answer
        return answer


Judge = Callable[[store_pb2.PublishResponse], Sequence[Verdict]]
"""Reads a response to one request; raises `TransportError` where it does not fit."""


class SharedPublishing:
    """The stream, which is opened when something is published and again after it has failed."""

    def __init__(
        self,
        name: str,
        opened: Callable[[], Call],
        translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._name = name
        self._opened = opened
        self._translated = translated
        self._turn = asyncio.Lock()
        self._call: Call | None = None
        self._sent: deque[tuple[Judge, Answers]] = deque()
        self._reader: asyncio.Task[None] | None = None

    async def write(
        self, request: store_pb2.PublishRequest, judge: Judge, answers: Answers
    ) -> None:
        """Send a request; its answer, or the failure of the stream, comes to ``answers``."""
        async with self._turn:
            if self._call is None:
                self._call = self._opened()
                self._reader = asyncio.create_task(self._read(self._call))
            # Listed before it is written: the answer may be quicker than this task.
            self._sent.append((judge, answers))
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                # The call is over; the reader learns why, and tells all that wait.
                return

    async def close(self) -> None:
        """End the stream."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def _read(self, call: Call) -> None:
        failure = TransportError(f"The node at {self._name} ended the stream of publishing.")
        ending = Ending(call)
        try:
            with self._translated():
                try:
                    async for response in call:
                        self._answer(response)
                except grpc.aio.AioRpcError as error:
                    if (told := await ending.failure(error)) is not None:
                        raise told from error
        except TransportError as error:
            failure = error
        finally:
            call.cancel()
            self._call = None
            waiting = [answers for _, answers in self._sent]
            self._sent.clear()
            for answers in dict.fromkeys(waiting):
                answers.put(failure)

    def _answer(self, response: store_pb2.PublishResponse) -> None:
        if not self._sent:
            raise TransportError(f"The node at {self._name} answered what was not published.")
        judge, answers = self._sent[0]
        verdicts = judge(response)
        self._sent.popleft()
        answers.put(verdicts)
