"""How a stream goes on after its node was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc

from storenode.client.limits import (
    DEFAULT_RETRY_ATTEMPTS,
    DEFAULT_RETRY_FIRST_DELAY_S,
    DEFAULT_RETRY_MAX_DELAY_S,
)
from storenode.connection.errors import is_away, node_error

# Past any maximum of the delay, and far from what a float cannot hold.
_MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``attempts`` in a row without progress, after pauses that double up to a bound.

    A stream that never made progress is tried again only with ``at_start``.
    """

    attempts: int = DEFAULT_RETRY_ATTEMPTS
    first_delay_s: float = DEFAULT_RETRY_FIRST_DELAY_S
    max_delay_s: float = DEFAULT_RETRY_MAX_DELAY_S
    at_start: bool = False

    def delay_s(self, failures: int) -> float:
        """The pause after the given number of failures in a row, from 1 on."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))


class Attempts:
    """The attempts of one stream."""

    def __init__(self, retry: Retry, address: str) -> None:
        self._retry = retry
        self._address = address
        self._failures = 0
        self._may_retry = retry.at_start

    def progressed(self) -> None:
        """Note that something came: failures count from here again."""
        self._failures = 0
        self._may_retry = True

    async def failed(self, error: grpc.aio.AioRpcError) -> None:
        """Pause before the next attempt.

        Raises:
            NodeError: Another attempt cannot help, or the attempts are used up.
        """
        self._failures += 1
        if not (is_away(error) and self._may_retry and self._failures <= self._retry.attempts):
            raise node_error(error, self._address) from error
        await asyncio.sleep(self._retry.delay_s(self._failures))


class _Page(Protocol):
    @property
    def cursor(self) -> bytes: ...


_P = TypeVar("_P", bound=_Page)
_R = TypeVar("_R")


async def resumed(
    open_call: Callable[[bytes], grpc.aio.UnaryStreamCall[_R, _P]],
    cursor: bytes,
    retry: Retry,
    address: str,
) -> AsyncGenerator[_P, None]:
    """Stream pages, and go on after the last one received when the node was away.

    Raises:
        NodeError: The call failed for good.
    """
    attempts = Attempts(retry, address)
    while True:
        call = open_call(cursor)
        try:
            async for page in call:
                attempts.progressed()
                cursor = page.cursor or cursor
                yield page
        except grpc.aio.AioRpcError as error:
            await attempts.failed(error)
        else:
            return
        finally:
            call.cancel()
