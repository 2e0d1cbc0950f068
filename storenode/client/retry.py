"""When a call is made again, and where: another node first, then the same ones after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc

from storenode.client.limits import (
    DEFAULT_RETRY_ATTEMPTS,
    DEFAULT_RETRY_FIRST_DELAY_S,
    DEFAULT_RETRY_MAX_DELAY_S,
)
from storenode.client.nodes import Node, Nodes
from storenode.connection.errors import (
    CallTimeout,
    ConnectionLost,
    CursorRefused,
    LimitExceeded,
    NodeError,
    node_error,
)

# Past any maximum of the delay, and far from what a float cannot hold.
_MAX_DOUBLINGS = 64

_UNSERVED = "CANCELLED"
"""How gRPC ends a call that the node has not taken up; the node itself never gives this code."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a call is made again after the node did not serve it or the connection broke.

    A limit that is reached for the moment counts as not served.

    Every other node is tried at once. After a round in which all have failed comes a pause, from
    ``first_delay_s`` on twice as long each time up to ``max_delay_s``, and another round;
    ``attempts`` rounds in a row without progress are made, or with ``None`` any number of them. A
    call that never made progress is given up after the first round unless ``at_start`` is true, or
    a node ended it unserved, as gRPC does when too many calls wait.
    """

    attempts: int | None = DEFAULT_RETRY_ATTEMPTS
    first_delay_s: float = DEFAULT_RETRY_FIRST_DELAY_S
    max_delay_s: float = DEFAULT_RETRY_MAX_DELAY_S
    at_start: bool = False

    def delay_s(self, rounds: int) -> float:
        """The pause after the given number of failed rounds in a row, from 1 on."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(rounds - 1, _MAX_DOUBLINGS))


class Attempts:
    """The attempts of one call.

    A node that does not answer in time, or refuses a cursor because it is of another store, is
    passed over: that alone does not lead to another round. With ``wait_for_store`` a round in which
    one node refused the cursor and another was away is repeated, since the latter may come back.
    """

    def __init__(self, retry: Retry, nodes: Nodes, *, wait_for_store: bool = True) -> None:
        self._retry = retry
        self._nodes = nodes
        self._wait_for_store = wait_for_store
        self._failures = 0
        self._may_repeat = retry.at_start
        self._refused: CursorRefused | None = None
        self._repeatable = False

    def progressed(self) -> None:
        """Note that something came: failures count from here again."""
        self._failures = 0
        self._may_repeat = True
        self._refused, self._repeatable = None, False

    async def failed(self, node: Node, error: NodeError) -> None:
        """Turn to the next node; pause first if all have failed.

        Raises:
            NodeError: Another attempt cannot help, or the attempts are used up.
        """
        if isinstance(error, CursorRefused):
            self._refused = error
        elif not isinstance(error, CallTimeout) and not error.retryable:
            raise error
        self._repeatable = self._repeatable or error.retryable
        self._may_repeat = self._may_repeat or error.code == _UNSERVED
        self._failures += 1
        self._nodes.failed(node)
        rounds, rest = divmod(self._failures, len(self._nodes))
        if rest:
            return
        attempts = self._retry.attempts
        used_up = attempts is not None and rounds > attempts
        if self._refused is not None and not self._wait_for_store:
            raise self._refused
        if not (self._repeatable and self._may_repeat) or used_up:
            raise self._refused or error
        self._refused, self._repeatable = None, False
        await asyncio.sleep(self._retry.delay_s(rounds))


_R = TypeVar("_R")


async def called(nodes: Nodes, retry: Retry, call: Callable[[Node], Awaitable[_R]]) -> _R:
    """Make a call that may safely be made twice, at whichever node serves it.

    Raises:
        NodeError: The call failed for good.
    """
    attempts = Attempts(retry, nodes)
    while True:
        node = nodes.current
        try:
            return await call(node)
        except grpc.aio.AioRpcError as error:
            await attempts.failed(node, node_error(error, node.address))
        except NodeError as error:
            await attempts.failed(node, error)


class _Page(Protocol):
    @property
    def cursor(self) -> bytes: ...


_P = TypeVar("_P", bound=_Page)
_Q = TypeVar("_Q")


async def resumed(
    nodes: Nodes,
    retry: Retry,
    open_call: Callable[[Node, bytes], grpc.aio.UnaryStreamCall[_Q, _P]],
    cursor: bytes,
    *,
    wait_for_store: bool = True,
) -> AsyncGenerator[_P, None]:
    """Stream pages, and go on after the last one received when the node was away.

    Raises:
        NodeError: The call failed for good.
    """
    attempts = Attempts(retry, nodes, wait_for_store=wait_for_store)
    while True:
        node = nodes.current
        call, begun = open_call(node, cursor), False
        try:
            async for page in call:
                attempts.progressed()
                cursor, begun = page.cursor or cursor, True
                yield page
        except grpc.aio.AioRpcError as error:
            failure = node_error(error, node.address)
            if begun and isinstance(failure, LimitExceeded):
                # The node needed the memory of pages that were not taken for long.
                failure = ConnectionLost(failure.code, failure.sentence)
            await attempts.failed(node, failure)
        else:
            return
        finally:
            call.cancel()


async def whole(
    nodes: Nodes, retry: Retry, open_call: Callable[[Node], grpc.aio.UnaryStreamCall[_R, _Q]]
) -> AsyncGenerator[_Q, None]:
    """Stream an answer that has no cursor: once part of it has come, it is not asked for again.

    Raises:
        NodeError: The call failed for good, or broke in the middle.
    """
    attempts = Attempts(retry, nodes)
    while True:
        node, begun = nodes.current, False
        call = open_call(node)
        try:
            async for page in call:
                begun = True
                yield page
        except grpc.aio.AioRpcError as error:
            failure = node_error(error, node.address)
            if begun:
                raise failure from error
            await attempts.failed(node, failure)
        else:
            return
        finally:
            call.cancel()
