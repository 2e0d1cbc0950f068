"""Streams of frames between peers: those of the simulator behave as those of gRPC do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from sim.calls import End
from sim.process import Process
from sim.scenario import Faults, drawn
from sim.streams import SimConnector, served
from sim.world import World
from store.domain.ports import PeerAddress
from store.rpc.peer_calls import PeerConnector
from store.serving.context import NodeIdentity
from store.sync.errors import CallFailedError, Fault, SessionFaultError
from store.sync.peers import Connector, FrameStream
from store.sync.session.exchange import RECONCILE, Exchange
from tests.integration.peers.harness import peer_node
from tests.integration.rpc.harness import within

FRAME: Final = bytes(64 * 1024)
FLOOD: Final = 400
"""Frames that are more than is under way to a callee that does not read."""

Script = Callable[[FrameStream], Awaitable[None]]

Call = Callable[[Script], AbstractAsyncContextManager[FrameStream]]
"""Makes a call that the callee serves by a script."""

Contract = Callable[[Call], Coroutine[Any, Any, None]]


def calling(connector: Connector, callee: PeerAddress, serve: Callable[[Script], object]) -> Call:
    """Return what calls a callee, which must name itself once before its first frame is read."""

    @asynccontextmanager
    async def call(script: Script) -> AsyncIterator[FrameStream]:
        serve(script)
        names: list[str] = []

        def identified(node_id: str, _store_id: str) -> None:
            names.append(node_id)

        async with connector.call(callee, RECONCILE, identified) as stream:
            yield stream
        assert names == [connector.node_id(callee)]

    return call


def simulated(contract: Contract, _: str) -> None:
    rng = random.Random(0)
    world = World(replace(drawn(rng, 2), faults=Faults()), rng)
    caller, callee = world.nodes[:2]
    with world.loop.running():
        caller.process, callee.process = asking, answering = Process(caller), Process(callee)

        def serve(script: Script) -> None:
            def begin(method: str, end: End) -> bool:
                answering.begin_task(method, served(answering, end, method, script))
                return True

            callee.serve = begin  # type: ignore[method-assign]

        call = calling(SimConnector(asking), PeerAddress(callee.name, 1), serve)
        tried = world.loop.begin(None, contract(call))
        while not tried.done():
            assert world.timeline.step()
        tried.result()


def over_grpc(contract: Contract, database_url: str) -> None:
    scripts: list[Script] = []

    async def by_script(_: Exchange, __: object, stream: FrameStream) -> None:
        await scripts[-1](stream)

    async def run() -> None:
        connector = PeerConnector(NodeIdentity("a.example", "store-a", "1.0"))
        async with peer_node("b.example", database_url) as node:
            await contract(calling(connector, node.address, scripts.append))
            await connector.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "serve_reconcile", by_script)
        asyncio.run(run())


async def frames_come_in_order(call: Call) -> None:
    async def echo(stream: FrameStream) -> None:
        while (frame := await stream.read()) is not None:
            await stream.write(b"echo of " + frame)

    async with call(echo) as stream:
        for number in range(0, 20, 2):
            for frame in (b"%d" % number, b"%d" % (number + 1)):
                await stream.write(frame)
            for frame in (b"%d" % number, b"%d" % (number + 1)):
                assert await within(stream.read()) == b"echo of " + frame
        await stream.half_close()
        assert await within(stream.read()) is None


async def errors_reach_the_caller(call: Call) -> None:
    for fault in (Fault.CROWDED, Fault.SILENCE, Fault.GAVE_WAY):

        async def fail(stream: FrameStream, fault: Fault = fault) -> None:
            assert await stream.read() == b"begun"
            raise SessionFaultError(fault, "so there")

        async with call(fail) as stream:
            await stream.write(b"begun")
            with pytest.raises(CallFailedError, match="so there") as caught:
                await within(stream.read())
            assert (caught.value.fault is Fault.GAVE_WAY) == (fault is Fault.GAVE_WAY)


async def a_caller_that_leaves_ends_the_callee(call: Call) -> None:
    ended = asyncio.Event()

    async def wait(stream: FrameStream) -> None:
        try:
            await stream.write(b"here")
            await stream.read()
        finally:
            ended.set()

    async with call(wait) as stream:
        assert await within(stream.read()) == b"here"
    await within(ended.wait())


async def a_writer_waits_for_its_reader(call: Call) -> None:
    reads = asyncio.Event()

    async def count(stream: FrameStream) -> None:
        await reads.wait()
        number = 0
        while await stream.read() is not None:
            number += 1
        await stream.write(b"%d" % number)

    async def flood(stream: FrameStream) -> None:
        for _ in range(FLOOD):
            await stream.write(FRAME)
        await stream.half_close()

    async with call(count) as stream:
        writing = asyncio.create_task(flood(stream))
        done, _ = await asyncio.wait([writing], timeout=0.5)
        assert not done
        reads.set()
        await within(writing)
        assert await within(stream.read()) == b"%d" % FLOOD


CONTRACTS: Final = (
    frames_come_in_order,
    errors_reach_the_caller,
    a_caller_that_leaves_ends_the_callee,
    a_writer_waits_for_its_reader,
)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("run", [simulated, over_grpc], ids=["simulated", "grpc"])
def test_a_stream_of_frames(
    run: Callable[[Contract, str], None], contract: Contract, database_url: str
) -> None:
    run(contract, database_url)
