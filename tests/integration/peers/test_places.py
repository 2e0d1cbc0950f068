"""Silent calls under invented names; those that reconcile are attacks, in tests/faults."""

from __future__ import annotations

import asyncio
import time

import grpc

from chaos.attacks.invented_peers import honest_transfer
from chaos.attacks.peers import begin, channel_to
from store.sync.limits import MAX_STRANGE_OPENING_CALLS
from tests.support.fleet import Fleet, made, publish

IN_BOUNDED_TIME_S = 120.0


async def test_silent_calls_do_not_keep_an_honest_peer_out(fleet: Fleet) -> None:
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
