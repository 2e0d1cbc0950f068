"""Peers whose gossip is none: the node turns them away, keeps its memory, and serves on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest

from store.rpc.call import RpcCall
from store.rpc.gossip import GOSSIP, MAX_GOSSIP_FRAME_BYTES
from storenode.connection.call_status import Ending
from tests.integration.peers.harness import PeerNode, peer_node
from tests.support.command import Command
from tests.support.fleet import CONTENT, Fleet, status
from tests.support.node import NodeProcess
from tests.support.polling import PATIENCE_S

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    fleet = Fleet(tmp_path_factory.mktemp("hostile"), new_database=new_store)
    try:
        yield fleet.start("--gossip", "on")
    finally:
        fleet.close()


@pytest.fixture(autouse=True)
def unharmed(node: NodeProcess) -> Iterator[None]:
    """Check that the node publishes whatever a test sends, and has not grown by much."""
    process = psutil.Process(node.process.pid)
    before = process.memory_info().rss
    yield
    Command.of(node).ok("publish", "--content-topic", CONTENT, "still here")
    assert process.memory_info().rss - before < 150 * 2**20


@dataclass
class Stream:
    """A raw stream to a node, as the peer ``name`` of the store ``store``."""

    call: Any

    def __post_init__(self) -> None:
        # What is still being sent would put another status in the place of the node's.
        self._ending = Ending(self.call)

    async def send(self, frame: bytes) -> None:
        """Send a frame, if the node takes it."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(frame)

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """Return how the node ends the stream, whatever it sends before that."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while isinstance(await self.call.read(), bytes):
                    continue
            code, sentence = await self._ending.status()
            return code, sentence or ""


@asynccontextmanager
async def stream(
    address: str, name: str, store: str = "", *, cluster: str = ""
) -> AsyncIterator[Stream]:
    metadata = (
        ("storenode-node-id", name),
        ("storenode-store-id", store or f"store-of-{name}"),
        ("storenode-version", "6.6.6"),
        *((("storenode-cluster", cluster),) if cluster else ()),
    )
    async with grpc.aio.insecure_channel(address, options=UNLIMITED) as channel:
        method: Any = channel.stream_stream
        call = method(GOSSIP)(metadata=metadata)
        yield Stream(call)
        call.cancel()


@pytest.mark.parametrize(
    ("frame", "code", "reported"),
    [
        (b"\xff" * 40, grpc.StatusCode.INVALID_ARGUMENT, "is no GossipFrame"),
        (bytes(MAX_GOSSIP_FRAME_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, "4,194,305 bytes"),
    ],
)
async def test_what_cannot_be_read_ends_the_stream_and_keeps_the_peer_out(
    node: NodeProcess, frame: bytes, code: grpc.StatusCode, reported: str
) -> None:
    name = code.name
    async with stream(node.peer, name) as garbler:
        await garbler.send(frame)
        ended, sentence = await garbler.ending()
    assert (ended, reported in sentence) == (code, True), sentence
    async with stream(node.peer, name) as garbler:
        ended, sentence = await garbler.ending()
    assert (ended, reported in sentence) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True), sentence
    peers = {peer["node_id"]: peer for peer in status(node)["gossip"]["peers"]}
    assert peers[name]["cut_off_until"] > time.time_ns()
    assert reported in peers[name]["reason"]


async def test_a_peer_of_another_cluster_gets_no_stream(node: NodeProcess) -> None:
    async with stream(node.peer, "elsewhere", cluster="4711") as elsewhere:
        code, sentence = await elsewhere.ending()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert sentence.endswith("and the caller of another: give both one --cluster")


async def test_a_node_without_gossip_says_so(first: PeerNode) -> None:
    async with stream(first.listener.address, "hopeful") as hopeful:
        code, sentence = await hopeful.ending()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert sentence == "this node exchanges nothing live: start it with --gossip on"


async def test_a_stream_may_begin_with_silence(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(call: RpcCall) -> None:
        await call.begin_peer()
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        await call.node.arrivals.measure()
        await call.write(b"measured")
        await call.write(await reading or b"")

    monkeypatch.setattr("store.rpc.server.serve_gossip", serve)
    monkeypatch.setattr("store.serving.arrivals.REQUEST_TIMEOUT_S", 0.0)
    async with (
        peer_node("b.example", new_database()) as callee,
        stream(callee.listener.address, "quiet") as quiet,
    ):
        assert await quiet.call.read() == b"measured"
        await quiet.send(b"late")
        assert await quiet.call.read() == b"late"
