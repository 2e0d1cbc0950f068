"""How a stream goes on after its node was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc

from store.client.errors import node_error
from store.client.limits import (
    DEFAULT_RETRY_ATTEMPTS,
    DEFAULT_RETRY_FIRST_DELAY_S,
    DEFAULT_RETRY_MAX_DELAY_S,
)

# Past any maximum of the delay, and far from what a float cannot hold.
_MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class Retry:
    """At most ``attempts`` in a row without progress, after pauses that double up to a bound."""

    attempts: int = DEFAULT_RETRY_ATTEMPTS
    first_delay_s: float = DEFAULT_RETRY_FIRST_DELAY_S
    max_delay_s: float = DEFAULT_RETRY_MAX_DELAY_S

    def delay_s(self, failures: int) -> float:
        """The pause after the given number of failures in a row, from 1 on."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))

    async def wait(self, error: grpc.aio.AioRpcError, failures: int, address: str) -> None:
        """Pause before the next attempt.

        Raises:
            NodeError: Another attempt cannot help, or the attempts are used up.
        """
        if error.code() is not grpc.StatusCode.UNAVAILABLE or failures > self.attempts:
            raise node_error(error, address) from error
        await asyncio.sleep(self.delay_s(failures))


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
) -> AsyncIterator[_P]:
    """Stream pages, and go on after the last one received when the node was away.

    Raises:
        NodeError: The call failed for good.
    """
    failures = 0
    while True:
        call = open_call(cursor)
        try:
            async for page in call:
                failures = 0
                cursor = page.cursor or cursor
                yield page
        except grpc.aio.AioRpcError as error:
            failures += 1
            await retry.wait(error, failures, address)
        else:
            return
        finally:
            call.cancel()
