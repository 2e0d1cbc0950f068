"""Messages of a Waku network on their way to the node: batched, and kept while the node is away."""

from __future__ import annotations

import asyncio
import collections
from collections import deque
from typing import Final

from prometheus_client import Counter

from store.gateway.faults import StatusError
from store.gateway.limits import (
    FIRST_NODE_PAUSE_S,
    LONGEST_NODE_PAUSE_S,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_SPOOL_BYTES,
    MAX_SPOOL_MESSAGES,
)
from store.gateway.node import UpstreamNode
from store.observe.logging import get_logger
from storenode.common.backoff import Backoff
from storenode.wire.storenode.v1.store_pb2 import PublishResult

LINGER_S: Final = 0.02
"""How long the first message of a batch waits for others: nobody waits for the messages."""


_INVALID: Final = 400
_OUTCOMES: Final = {
    PublishResult.STORED: "stored",
    PublishResult.DUPLICATE: "duplicate",
    PublishResult.EPHEMERAL: "ephemeral",
}
_log = get_logger("store.gateway")


class Spool:
    """A bounded queue in front of `Store.Publish`; with too many, the oldest are dropped.

    Messages wait as long as the node is away. It stores those that have become older than its clock
    drift if the gateway's token has the right `backfill`.
    """

    def __init__(self, node: UpstreamNode, messages: Counter, source: int) -> None:
        """Count ``messages`` by outcome; ``source`` is a `PublishSource`."""
        self._node = node
        self._messages = messages
        self._source = source
        self._waiting: deque[tuple[bytes, str]] = deque()
        self._waiting_bytes = 0
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._note_room()

    def put(self, pubsub_topic: str, encoded: bytes) -> None:
        """Queue an encoded ``WakuMessage``."""
        self._waiting.append((encoded, pubsub_topic))
        self._waiting_bytes += len(encoded)
        while len(self._waiting) > MAX_SPOOL_MESSAGES or self._waiting_bytes > MAX_SPOOL_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft()[0])
            self._messages.labels("dropped").inc()
        self._filled.set()
        self._note_room()

    async def wait_for_room(self) -> None:
        """Wait while more than half of what may wait does, so that nothing is dropped."""
        await self._has_room.wait()

    def _note_room(self) -> None:
        is_half_full = (
            len(self._waiting) > MAX_SPOOL_MESSAGES // 2
            or self._waiting_bytes > MAX_SPOOL_BYTES // 2
        )
        (self._has_room.clear if is_half_full else self._has_room.set)()

    async def run(self) -> None:
        """Publish batches until cancelled; a batch that the node did not take is tried again."""
        batch: list[tuple[bytes, str]] = []
        backoff = Backoff(FIRST_NODE_PAUSE_S, LONGEST_NODE_PAUSE_S)
        while True:
            if not batch:
                await self._filled.wait()
                await asyncio.sleep(LINGER_S)
                batch = self._take_batch()
            try:
                await self._publish(batch)
            except StatusError as error:
                _log.warning(
                    "messages_not_published",
                    source=self._source,
                    messages=len(batch),
                    reason=str(error),
                )
                await asyncio.sleep(backoff.take())
            else:
                backoff.reset()
                batch = []

    async def _publish(self, batch: list[tuple[bytes, str]]) -> None:
        """Publish messages; where the node refuses the request, each by itself."""
        try:
            results = await self._node.publish(batch, source=self._source)
        except StatusError as error:
            if error.status_code != _INVALID:
                raise
            if len(batch) > 1:
                for each in batch:
                    await self._publish([each])
                return
            self._messages.labels("rejected").inc()
            return
        refused = [each.reason for each in results if each.outcome == PublishResult.REJECTED]
        if refused:
            _log.warning("messages_rejected", messages=len(refused), reason=refused[0])
        outcomes = collections.Counter(_OUTCOMES.get(each.outcome, "rejected") for each in results)
        for outcome, count in outcomes.items():
            self._messages.labels(outcome).inc(count)

    def _take_batch(self) -> list[tuple[bytes, str]]:
        batch: list[tuple[bytes, str]] = []
        size_bytes = 0
        while self._waiting and len(batch) < MAX_BATCH_MESSAGES and size_bytes < MAX_BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size_bytes += len(batch[-1][0])
        self._waiting_bytes -= size_bytes
        if not self._waiting:
            self._filled.clear()
        self._note_room()
        return batch
