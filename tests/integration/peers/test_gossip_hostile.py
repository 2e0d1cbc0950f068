"""Peers whose gossip is none: the node turns them away, keeps its memory, and serves on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
import pytest

from store.rpc.gossip import GOSSIP, MAX_GOSSIP_ENTRIES, MAX_GOSSIP_FRAME_BYTES
from storenode.connection.call_status import Ending
from storenode.wire.storenode.v1.peer_pb2 import GossipFrame, Inventory
from tests.integration.peers.harness import PeerNode
from tests.support.command import Command
from tests.support.fleet import CONTENT, Fleet, status
from tests.support.node import NodeProcess
from tests.support.polling import PATIENCE_S

MIB = 1024 * 1024
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
    assert process.memory_info().rss - before < 150 * MIB


@dataclass
class Stream:
    """A raw stream to a node, as the peer ``name`` of the store ``store``."""

    call: Any

    def __post_init__(self) -> None:
        # What is still being sent would put another status in the place of the node's.
        self._ending = Ending(self.call)

    async def send(self, *frames: GossipFrame | bytes) -> None:
        """Send frames, as long as the node takes them."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for frame in frames:
                data = frame if isinstance(frame, bytes) else frame.SerializeToString()
                await self.call.write(data)

    async def frame(self) -> GossipFrame:
        """Return the next frame of the node."""
        return GossipFrame.FromString(await self.call.read())

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


def inventory(ids: Iterable[bytes]) -> GossipFrame:
    return GossipFrame(inv=Inventory(ids=ids))


@pytest.mark.parametrize(
    ("frame", "code", "reported"),
    [
        (b"\xff" * 40, grpc.StatusCode.INVALID_ARGUMENT, "is no GossipFrame"),
        (b"", grpc.StatusCode.INVALID_ARGUMENT, "holds nothing that this version knows"),
        (inventory([b"short"]), grpc.StatusCode.INVALID_ARGUMENT, "has not 32 bytes"),
        (
            GossipFrame(sync_leaves=Inventory(rest_xor=b"short", rest_count=1)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "rest_xor has 5 bytes",
        ),
        (
            inventory([bytes(32)] * (MAX_GOSSIP_ENTRIES + 1)),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "8,193 entries",
        ),
        (bytes(MAX_GOSSIP_FRAME_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, "4,194,305 bytes"),
        (b"\x0a\x04\x0a\x02\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "is no GossipFrame"),
    ],
    ids=["garbage", "empty", "short ID", "short rest", "many IDs", "oversized", "no message"],
)
async def test_what_cannot_be_read_ends_the_stream_and_keeps_the_peer_out(
    node: NodeProcess,
    frame: GossipFrame | bytes,
    code: grpc.StatusCode,
    reported: str,
    request: pytest.FixtureRequest,
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
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
