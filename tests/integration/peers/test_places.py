"""Peers under invented names take every place that they can, and keep no honest one out.

So do the attacks `reconcile_places` and `gossip_places`, which are tried in tests/faults.
"""

from __future__ import annotations

import asyncio
import time
from itertools import count

import grpc

from chaos.attacks.invented_peers import honest_transfer
from chaos.attacks.peers import begin, channel_to, reconcile
from store.sync.limits import MAX_STRANGE_OPENING_CALLS
from tests.support.fleet import Fleet, hashes, held, made, publish, synchronize
from tests.support.polling import eventually

IN_BOUNDED_TIME_S = 120.0


async def test_calls_that_say_nothing_keep_nobody_out(fleet: Fleet) -> None:
    node = fleet.start()
    await publish(node, made(50, time.time_ns() - 60 * 10**9))
    async with channel_to(node.peer) as channel:
        names = [f"silent-{number}" for number in range(97)] + ["honest-peer"] * 3
        silent = [begin(channel, "Reconcile", name) for name in names]
        for call in silent:
            await call.initial_metadata()
        async with asyncio.timeout(IN_BOUNDED_TIME_S):
            await honest_transfer(node.peer)
        ending = asyncio.as_completed([call.code() for call in silent])
        codes = {await next(ending) for _ in range(len(silent) - MAX_STRANGE_OPENING_CALLS)}
        for call in silent:
            call.cancel()
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_nodes_that_are_peers_reconcile_among_callers_that_never_transfer(
    fleet: Fleet,
) -> None:
    called = fleet.start()
    node = fleet.start(peers=[called])
    calling = fleet.start(peers=[node])
    messages = made(200, time.time_ns() - 60 * 10**9)
    await publish(node, messages)
    async with channel_to(node.peer) as channel:

        async def invent(worker: int) -> None:
            for number in count():
                await reconcile(channel, f"invented-{worker}-{number}")

        inventing = [asyncio.create_task(invent(worker)) for worker in range(4)]
        try:
            for worker in range(4):
                await reconcile(channel, f"first-{worker}")
            for each in (calling, node):
                await asyncio.to_thread(eventually, lambda: synchronize(each)[0].code == 0)  # noqa: B023
        finally:
            still_inventing = [task.cancel() for task in inventing]
        assert all(still_inventing)
    assert held(called) == held(calling) == hashes(messages)
