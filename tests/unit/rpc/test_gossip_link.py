"""A stream of gossip that is ended from this side."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest

from store.rpc.failure import RpcFailure
from store.rpc.gossip_link import Link

STOPPING = RpcFailure(grpc.StatusCode.UNAVAILABLE, "the node is stopping")


class Silent:
    """A stream on which nothing comes and nothing goes."""

    async def read(self) -> bytes | None:
        await asyncio.Event().wait()
        return None

    async def write(self, data: bytes) -> None:
        raise AssertionError(data)

    async def half_close(self) -> None:
        raise AssertionError


class Nobody:
    """A user who is told nothing."""

    def received(self, *_: object) -> None:
        raise AssertionError

    sent = received


async def begun() -> tuple[Link, asyncio.Task[None]]:
    link = Link(Silent(), "peer", "store", "dialler", lambda: pytest.fail("no frame came"))
    running = asyncio.create_task(link.run(Nobody()))
    await asyncio.sleep(0)
    return link, running


async def test_the_reason_of_an_end_is_raised_where_the_stream_is_run() -> None:
    link, running = await begun()
    link.close(STOPPING)
    with pytest.raises(RpcFailure, match="the node is stopping"):
        await running
    await link.ended()


async def test_a_stream_that_is_closed_and_cancelled_at_once_leaves_no_complaint() -> None:
    """As at the end of a node: asyncio logs exceptions that nobody has looked at."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await closed_and_cancelled()
    gc.collect()
    assert complaints == []


async def closed_and_cancelled() -> None:
    link, running = await begun()
    link.close(STOPPING)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
