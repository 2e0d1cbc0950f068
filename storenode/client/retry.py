"""Rounds of attempts: every node is tried, the next one after a second of silence, then a pause."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc

from storenode.client.nodes import Node, Nodes
from storenode.common.backoff import Backoff
from storenode.connection.channel import explain_failure
from storenode.connection.errors import (
    CallTimeoutError,
    ConnectionLostError,
    CursorRefusedError,
    LimitExceededError,
    NodeError,
    silent_node,
)
from storenode.message.text import printable

_R = TypeVar("_R")
_Q = TypeVar("_Q")
_P = TypeVar("_P")

_log = logging.getLogger("storenode")

HEDGE_DELAY_S: Final = 1.0
"""The silence of a node after which the next one is called too."""

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_UNSERVED = "CANCELLED"
"""The status with which gRPC ends a call that was not begun; the node itself never uses it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The limits of attempts at a call that a node did not serve or whose connection broke.

    Every other node is tried at once. After a round in which all have failed comes a pause, from
    ``first_delay_s`` on twice as long each time up to ``max_delay_s``, and another round;
    ``attempts`` rounds in a row without progress are made, or with ``None`` any number of them.
    While no node has served the client yet, a call is given up after the first round, so that a
    wrong address raises at once, unless ``at_start`` is true or ``attempts`` is ``None``. A limit
    that is reached for the moment is no reason to give up.

    Errors that another attempt cannot heal are raised at once, whatever other nodes do: a refused
    request, cursor, token or right, a failed TLS handshake, a port that does not speak gRPC.
    """

    attempts: int | None = 8
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    at_start: bool = False


class Attempts:
    """The attempts of one call, in rounds over all nodes.

    A round asks the node in use first, and the next one when that fails or is silent for
    `HEDGE_DELAY_S`; the first answer wins. After a refused cursor the other nodes have that long to
    accept it. ``timeout_s`` bounds the time without progress, pauses included; with unlimited
    attempts it bounds each round.
    """

    def __init__(self, nodes: Nodes, retry: Retry, timeout_s: float | None = None) -> None:
        self._nodes = nodes
        self._retry = retry
        self._timeout_s = timeout_s
        # A short time limit is shared out, so that every node is asked within it.
        self._hedge_s = min(HEDGE_DELAY_S, (timeout_s or HEDGE_DELAY_S * len(nodes)) / len(nodes))
        self._may_repeat = retry.at_start or retry.attempts is None or nodes.have_answered
        self._warned = False
        self._rounds = 0
        self._backoff = Backoff(min(retry.first_delay_s, retry.max_delay_s), retry.max_delay_s)
        self._errors: list[NodeError] = []
        self._refused: CursorRefusedError | None = None
        self._deadline_s = self._next_deadline_s()

    def progressed(self) -> None:
        """Count rounds and time from here again."""
        self._may_repeat = self._nodes.have_answered = True
        self._rounds, self._refused = 0, None
        self._backoff.reset()
        self._errors.clear()
        self._deadline_s = self._next_deadline_s()

    async def answer(self, call: Callable[[Node], Coroutine[Any, Any, _R]]) -> tuple[Node, _R]:
        """Return the first answer to a call that may be made at several nodes at once.

        Raises:
            NodeError: The call failed for good.
        """
        self._errors.clear()
        while (won := await self._race(call, self._errors)) is None:
            await self._end_round()
        return won

    async def answer_of_one(self, call: Callable[[Node], Coroutine[Any, Any, _R]]) -> _R:
        """Return the answer to a call that is made at one node at a time.

        Raises:
            NodeError: The call failed for good.
        """
        while True:
            node = await self.connected()
            try:
                answer = await self.bounded(node, call(node))
            except (grpc.aio.AioRpcError, NodeError) as error:
                await self.failed(node, error)
            else:
                self.progressed()
                return answer

    async def connected(self) -> Node:
        """Return the first node that answers at all, or else the node in use."""
        self._nodes.check()
        if len(self._nodes) > 1 and (won := await self._race(_ping, [])) is not None:
            return won[0]
        return self._nodes.current

    async def bounded(self, node: Node, answer: Awaitable[_R], *, is_endless: bool = False) -> _R:
        """Wait for an answer until the time is up, or without end.

        Raises:
            CallTimeoutError: The node was silent for too long.
        """
        try:
            async with asyncio.timeout(None if is_endless else self._left_s()):
                return await answer
        except TimeoutError:
            raise silent_node(node.address, self._timeout_s) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self._nodes.check()  # closing a channel cancels its calls
            raise

    async def failed(self, node: Node, error: grpc.aio.AioRpcError | NodeError) -> None:
        """Turn to the next node after a failure; pause first if all nodes have failed.

        Raises:
            NodeError: Another attempt cannot help, or the attempts are used up.
        """
        self._errors.append(self._judge(node, await _explain(error, node)))
        if len(self._errors) >= len(self._nodes):
            await self._end_round()

    async def _race(
        self, call: Callable[[Node], Coroutine[Any, Any, _R]], errors: list[NodeError]
    ) -> tuple[Node, _R] | None:
        """Return the first node that answers, and its answer; None when all have failed."""
        self._nodes.check()
        waiting = deque(self._nodes.in_order())
        running: dict[asyncio.Task[_R], Node] = {}
        try:
            while waiting or running:
                # A refused cursor may be another node's: all others are asked for a moment.
                for _ in range(len(waiting) if self._refused else min(len(waiting), 1)):
                    node = waiting.popleft()
                    running[asyncio.create_task(call(node))] = node
                limit_s = self._left_s()
                if waiting or self._refused or not self._warned:
                    limit_s = self._hedge_s if limit_s is None else min(self._hedge_s, limit_s)
                done, _ = await asyncio.wait(
                    running, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
                )
                self._warn_of_silence(() if done else running.values())
                for task in sorted(done, key=_has_failed):
                    node = running.pop(task)
                    try:
                        result = task.result()
                    except (grpc.aio.AioRpcError, NodeError) as error:
                        errors.append(self._judge(node, await _explain(error, node)))
                    except asyncio.CancelledError:
                        self._nodes.check()
                        raise
                    else:
                        self._nodes.use(node)
                        return node, result
                if not done and (self._refused or self._left_s() == 0):
                    errors += [
                        self._judge(node, silent_node(node.address, self._timeout_s))
                        for node in running.values()
                    ]
                    break
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        return None

    def _warn_of_silence(self, nodes: Iterable[Node]) -> None:
        """Log once which nodes accept no connection; one that is connected may take its time."""
        for node in () if self._warned else nodes:
            self._warned = True
            if node.channel.get_state() is not grpc.ChannelConnectivity.READY:
                _log.warning(
                    "the node at %s accepts no connection, still waiting: check the address, and "
                    "that no firewall is in between",
                    node.address,
                )

    def _judge(self, node: Node, error: NodeError) -> NodeError:
        """Turn to the next node; raise an error that another attempt cannot heal."""
        if isinstance(error, CursorRefusedError):
            self._refused = error
        elif not isinstance(error, CallTimeoutError) and not error.retryable:
            _log.info("node %s refused the call: %s", node.address, printable(error.sentence))
            raise error
        self._nodes.failed(node)
        _log.info("node %s failed: %s", node.address, printable(error.sentence))
        return error

    async def _end_round(self) -> None:
        """Pause before another round, or raise what the call has failed with."""
        if self._refused is not None:
            raise self._refused
        errors, attempts = self._errors, self._retry.attempts
        self._rounds += 1
        self._may_repeat = self._may_repeat or any(map(_is_for_the_moment, errors))
        is_repeatable = self._may_repeat and any(each.retryable for each in errors)
        pause_s, left_s = self._backoff.take(), self._left_s()
        is_last = attempts is not None and (
            self._rounds > attempts or (left_s is not None and left_s <= pause_s)
        )
        if is_last or not is_repeatable:
            raise errors[-1]
        self._errors = []
        sentence = printable(errors[-1].sentence)
        _log.warning("no node served the call, trying again in %.1f s: %s", pause_s, sentence)
        await asyncio.sleep(pause_s)
        if attempts is None:
            self._deadline_s = self._next_deadline_s()

    def _left_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    def _next_deadline_s(self) -> float | None:
        if self._timeout_s is None:
            return None
        return asyncio.get_running_loop().time() + self._timeout_s


async def stream(
    nodes: Nodes,
    retry: Retry,
    timeout_s: float | None,
    open_call: Callable[[Node, bytes], grpc.aio.UnaryStreamCall[_Q, _P]],
    *,
    cursor: bytes = b"",
    cursor_of: Callable[[_P], bytes] | None = None,
    is_endless: bool = False,
) -> AsyncGenerator[_P, None]:
    """Stream pages, and continue after the last one received when the node was away.

    ``timeout_s`` bounds the wait for each page. Without ``cursor_of`` the answer has no cursor:
    once part of it has come, it is not asked for again. An ``is_endless`` stream may be silent for
    any time after its first page.

    Raises:
        NodeError: The call failed for good, or one without cursors broke in the middle.
    """

    async def begin(node: Node) -> tuple[grpc.aio.UnaryStreamCall[_Q, _P], Any, _P | None]:
        call = open_call(node, cursor)
        pages = aiter(call)
        try:
            return call, pages, await anext(pages, None)
        except BaseException:
            call.cancel()
            raise

    attempts = Attempts(nodes, retry, timeout_s)
    while True:
        node, (call, pages, page) = await attempts.answer(begin)
        try:
            while page is not None:
                if cursor_of is not None:
                    cursor = cursor_of(page) or cursor
                yield page
                attempts.progressed()
                following = anext(pages, None)
                try:
                    page = await attempts.bounded(node, following, is_endless=is_endless)
                except (grpc.aio.AioRpcError, CallTimeoutError) as error:
                    failure = await _explain(error, node)
                    attempts.progressed()
                    break
            else:
                return
        finally:
            call.cancel()
        if cursor_of is None:
            raise failure
        if isinstance(failure, LimitExceededError):
            # The node needed the memory of pages that were not taken for long.
            failure = ConnectionLostError(failure.code, failure.sentence)
        sentence = printable(failure.sentence)
        _log.info("the stream from %s broke and continues: %s", node.address, sentence)
        await attempts.failed(node, failure)


async def _explain(error: grpc.aio.AioRpcError | NodeError, node: Node) -> NodeError:
    return await explain_failure(error, node.address, node.tls)


async def _ping(node: Node) -> None:
    """Wait until the node answers a call, which may be any that changes nothing.

    Raises:
        grpc.aio.AioRpcError: It cannot be reached.
    """
    try:
        await node.channel.unary_unary(_HEALTH, None, None)(b"")
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            raise


def _is_for_the_moment(error: NodeError) -> bool:
    return error.code == _UNSERVED or isinstance(error, LimitExceededError)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
