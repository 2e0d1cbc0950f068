"""Clients of the fault world for tests: they publish, follow and read, and its checker judges.

Whatever a node stores was published, as it is stored, and whatever it acknowledged is stored, once.
What was sent and never answered may be stored or not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import grpc

from chaos.checker.clients import Endpoint, Follower, Publisher, ask, query, scan
from chaos.checker.history import History
from chaos.checker.stores import Holding, Served, check_stores
from chaos.tasks import PATIENCE_S, PAUSE_S

_INTERVAL_S = 0.05
_STORED = {"STORED", "DUPLICATE"}


def publisher(
    node: str,
    history: History,
    rng: Random,
    credentials: grpc.ChannelCredentials | None = None,
    **options: Any,  # noqa: ANN401 - as of `Publisher`
) -> Publisher:
    """Return a publisher that sends each batch again until it is answered."""
    options = {"batch_messages": 50, "try_s": PATIENCE_S, "give_up_s": math.inf, **options}
    endpoint = Endpoint(node, credentials)
    return Publisher(node, endpoint, lambda: node, history, rng, _INTERVAL_S, **options)


def follower(node: str, cursor: bytes = b"") -> Follower:
    """Return a follower of everything after a cursor."""
    return Follower(node, Endpoint(node), cursor=cursor)


@asynccontextmanager
async def publishing(publishers: Sequence[Publisher]) -> AsyncIterator[None]:
    """Let publishers run for the length of the block, then wait until each batch is answered."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as running:
        for each in publishers:
            running.create_task(each.run(stop))
        yield
        stop.set()
    for each in publishers:
        assert not each.failures
        assert each.outcomes.keys() <= _STORED


async def acknowledged(history: History, more: int) -> None:
    """Wait until ``more`` further messages are acknowledged."""
    wanted = len(history.acks) + more
    async with asyncio.timeout(PATIENCE_S):
        while len(history.acks) < wanted:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def following(*followers: Follower) -> AsyncIterator[None]:
    """Let followers run for the length of the block; no cursor may be refused."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each.run()) for each in followers]
        yield
        for task in running:
            task.cancel()
    assert not any((each.refusals, *each.failures) != (0,) for each in followers)


async def receives(follower: Follower, wanted: Collection[bytes]) -> None:
    """Wait until a follower has all of these; no message may come twice."""
    async with asyncio.timeout(PATIENCE_S):
        while not follower.stored.issuperset(wanted):  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)
    assert len(follower.received) == len(follower.stored), "a message came twice"


async def scanned(node: str, content_topics: Iterable[str] = ()) -> set[bytes]:
    """Return the hashes of a scan, each compared with its message."""
    return _hashes(await ask(Endpoint(node), partial(scan, content_topics=content_topics)))


async def found(node: str, digests: Iterable[bytes]) -> set[bytes]:
    """Return which of some messages a node finds by hash."""
    return _hashes(await ask(Endpoint(node), partial(query, digests=list(digests))))


def _hashes(served: Sequence[Served]) -> set[bytes]:
    hashes = {each.claimed for each in served if each.claimed == each.computed}
    assert len(hashes) == len(served)
    return hashes


async def check_nodes(
    history: History, *nodes: str, credentials: grpc.ChannelCredentials | None = None
) -> set[bytes]:
    """Compare nodes with the history and with each other; return what they hold."""
    holdings = []
    for node in nodes:
        endpoint = Endpoint(node, credentials)
        stored = await ask(endpoint, scan, PATIENCE_S)
        by_hash = await ask(endpoint, partial(query, digests=list(history.published)), PATIENCE_S)
        holdings.append(Holding(node, node, stored, by_hash, stored))
    assert check_stores(history, holdings) == []
    return _hashes(holdings[0].scanned)
