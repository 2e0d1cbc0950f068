"""A pair of nodes with wires between them, whose sessions meet faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from chaos.network import Wire, WireState
from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.client.types import SyncReport, WakuMessageAndTopic
from tests.support.fleet import CONTENT, NS_PER_S, PUBSUB, Fleet, hashes, holdings, publish
from tests.support.ledger import PATIENCE_S
from tests.support.node import NodeProcess

SPAN_NS = 3_000 * NS_PER_S
PAYLOAD_BYTES = 1_000
"""So that a transfer of some thousand takes several frames."""


@dataclass
class Maker:
    """A source of new messages, whose times are spread over `SPAN_NS`."""

    newest_ns: int
    payload_bytes: int = PAYLOAD_BYTES
    made: set[bytes] = field(default_factory=set)
    """The hashes of all messages so far."""

    def some(self, count: int) -> list[WakuMessageAndTopic]:
        rng = Random(len(self.made))
        messages = [
            new_message(
                rng.randbytes(self.payload_bytes),
                CONTENT,
                PUBSUB,
                self.newest_ns - rng.randrange(SPAN_NS),
            )
            for _ in range(count)
        ]
        self.made |= hashes(messages)
        return messages


@dataclass
class Two:
    """A pair of nodes: ``caller`` calls ``callee`` through ``network``; ``back`` leads back."""

    caller: NodeProcess
    callee: NodeProcess
    network: Wire
    back: Wire
    maker: Maker

    async def differ(self, count: int) -> None:
        """Publish so many messages to each that the other lacks."""
        for node in (self.caller, self.callee):
            await publish(node, self.maker.some(count))

    def counts(self) -> tuple[int, int]:
        return len(holdings(self.caller)), len(holdings(self.callee))

    async def check_equal(self) -> None:
        """Check that both databases hold all messages, once."""
        for node in (self.caller, self.callee):
            assert await asyncio.to_thread(holdings, node) == self.maker.made

    async def sync(self) -> SyncReport:
        return await request_sync(self.caller)

    def heal(self) -> None:
        """End all losses."""
        self.network.set(WireState.OPEN)
        self.back.set(WireState.OPEN)


async def request_sync(node: NodeProcess, peer: str = "") -> SyncReport:
    """Reconcile a node with a peer over all times, as ``storenode sync --from 0`` does."""
    async with connect(node.admin) as client:
        return await client.synchronize(peer, time_start=0, timeout_s=PATIENCE_S)


@asynccontextmanager
async def two_nodes(directory: Path, new_store: Callable[[], str]) -> AsyncIterator[Two]:
    """Start two nodes on databases of their own, which are peers."""
    fleet = Fleet(directory, new_database=new_store)
    async with AsyncExitStack() as stack:
        network, back = await Wire().open(), await Wire().open()
        stack.push_async_callback(network.close)
        stack.push_async_callback(back.close)
        stack.callback(fleet.close)
        callee = fleet.start(peers=[back.address])
        network.target = callee.peer
        caller = fleet.start(peers=[network.address])
        back.target = caller.peer
        yield Two(caller, callee, network, back, Maker(time.time_ns() - 90 * NS_PER_S))
