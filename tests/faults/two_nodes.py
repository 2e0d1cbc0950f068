"""Messages that two nodes lack, and a session that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.client.types import SyncReport, WakuMessageAndTopic
from tests.support.fleet import CONTENT, NS_PER_S, PUBSUB, hashes
from tests.support.node import NodeProcess
from tests.support.polling import PATIENCE_S

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


async def request_sync(node: NodeProcess, peer: str = "") -> SyncReport:
    """Reconcile a node with a peer over all times, as ``storenode sync --from 0`` does."""
    async with connect(node.admin) as client:
        return await client.synchronize(peer, time_start=0, timeout_s=PATIENCE_S)
