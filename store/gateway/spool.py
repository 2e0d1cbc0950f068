"""Relayed messages on their way to the node: batched, and kept while the node is away."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from store.gateway.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_SPOOL_BYTES,
    MAX_SPOOL_MESSAGES,
)
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import Node, NodeCallError
from store.observe.logging import get_logger
from storenode.common.backoff import Backoff
from storenode.wire.storenode.v1.store_pb2 import PublishResult

LINGER_S: Final = 0.02
"""How long the first message of a batch waits for others: nobody waits for relayed messages."""

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
_INVALID: Final = 400
_OUTCOMES: Final = {
    PublishResult.STORED: "stored",
    PublishResult.DUPLICATE: "duplicate",
    PublishResult.EPHEMERAL: "ephemeral",
}
_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class SpooledMessage:
    """An encoded ``WakuMessage`` and its pubsub topic."""

    pubsub_topic: str
    encoded: bytes


class Spool:
    """A bounded queue in front of `Store.Publish`; with too many, the oldest are dropped."""

    def __init__(self, node: Node, metrics: GatewayMetrics) -> None:
        self._node = node
        self._metrics = metrics
        self._waiting: deque[SpooledMessage] = deque()
        self._waiting_bytes = 0
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        """Count the messages that wait."""
        return len(self._waiting)

    def put(self, message: SpooledMessage) -> None:
        """Queue a message."""
        self._waiting.append(message)
        self._waiting_bytes += len(message.encoded)
        while len(self._waiting) > MAX_SPOOL_MESSAGES or self._waiting_bytes > MAX_SPOOL_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft().encoded)
            self._metrics.relayed.labels("dropped").inc()
        self._filled.set()

    async def run(self) -> None:
        """Publish batches until cancelled; a batch that the node did not take is tried again."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            await self._filled.wait()
            await asyncio.sleep(LINGER_S)
            batch = self._take_batch()
            try:
                await self._publish(batch)
            except NodeCallError as error:
                _log.warning("relayed_not_published", messages=len(batch), reason=str(error))
                self._put_back(batch)
                await asyncio.sleep(backoff.take())
            else:
                backoff.reset()

    async def _publish(self, batch: list[SpooledMessage]) -> None:
        """Publish messages; where the node refuses the request, each by itself."""
        try:
            results = await self._node.publish_all(
                [(each.encoded, each.pubsub_topic) for each in batch]
            )
        except NodeCallError as error:
            if error.status_code != _INVALID:
                raise
            if len(batch) > 1:
                for each in batch:
                    await self._publish([each])
                return
            self._metrics.relayed.labels("rejected").inc()
            return
        outcomes = Counter(_OUTCOMES.get(each.outcome, "rejected") for each in results)
        for outcome, count in outcomes.items():
            self._metrics.relayed.labels(outcome).inc(count)

    def _take_batch(self) -> list[SpooledMessage]:
        batch: list[SpooledMessage] = []
        size_bytes = 0
        while self._waiting and len(batch) < MAX_BATCH_MESSAGES and size_bytes < MAX_BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size_bytes += len(batch[-1].encoded)
        self._waiting_bytes -= size_bytes
        if not self._waiting:
            self._filled.clear()
        return batch

    def _put_back(self, batch: list[SpooledMessage]) -> None:
        newer = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        for message in (*batch, *newer):
            self.put(message)
