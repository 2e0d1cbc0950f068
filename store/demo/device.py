"""A device that publishes plain messages at a steady rate, and in bursts."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing
from typing import Final

from store.demo.auditor import PERSISTENT
from store.demo.ledger import Ledger, hash_of
from store.demo.limits import READING_BYTES, READINGS_PER_REQUEST, READINGS_PER_S
from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.client.types import PublishResult, WakuMessageAndTopic
from storenode.connection.channel import TlsIdentity
from storenode.message.topics import DEFAULT_PUBSUB_TOPIC

_TOPIC: Final = "/demo/1/readings/proto"
_HELD: Final = (PublishResult.STORED, PublishResult.DUPLICATE)


class Device:
    """Publishes through the wire of one node, or of another for once."""

    def __init__(self, address: str, tls: TlsIdentity, ledger: Ledger) -> None:
        self._address = address
        self._tls = tls
        self._ledger = ledger

    async def run(self) -> None:
        """Publish without end.

        Raises:
            NodeError: The node does not take it.
        """
        async with connect(self._address, tls=self._tls, retry=PERSISTENT) as client:
            while True:
                await asyncio.sleep(READINGS_PER_REQUEST / READINGS_PER_S)
                for result in await client.publish(self._some(READINGS_PER_REQUEST)):
                    self._enter(result)

    async def burst(self, count: int, address: str | None = None) -> None:
        """Publish ``count`` messages as fast as the node takes them."""
        async with (
            connect(address or self._address, tls=self._tls, retry=PERSISTENT) as client,
            aclosing(client.publish_all(self._some(count))) as answers,
        ):
            async for _, result in answers:
                self._enter(result)

    def _some(self, count: int) -> list[WakuMessageAndTopic]:
        messages = []
        for _ in range(count):
            payload, now_ns = os.urandom(READING_BYTES), time.time_ns()
            self._ledger.offered.add(hash_of(DEFAULT_PUBSUB_TOPIC, payload, _TOPIC, now_ns))
            messages.append(new_message(payload, _TOPIC, DEFAULT_PUBSUB_TOPIC, now_ns))
        return messages

    def _enter(self, result: PublishResult) -> None:
        if result.outcome in _HELD:
            self._ledger.acknowledged.add(result.message_hash)
