"""A `ReliableChannel` of @waku/sdk, whose missing messages come from the store behind a gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from tests.integration.gateway.javascript_clients import running_client
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD
from tests.support.gateway import GENEROUS, running_gateway
from tests.support.node import running_node

pytestmark = pytest.mark.timeout(900)  # the first test installs the clients

CHANNEL: Final = "room"
TOPIC: Final = "/gateway/1/channel/proto"
DAY_NS: Final = 86_400 * 10**9


def said(name: str, lamport: int, age_ns: int, *after: tuple[str, Message]) -> Message:
    """Return a message of the channel, which names earlier ones with their hashes as hints."""
    body = SdsMessage(
        sender_id="ada",
        message_id=name,
        channel_id=CHANNEL,
        lamport_timestamp=lamport,
        causal_history=[HistoryEntry(message_id=n, retrieval_hint=m.hash) for n, m in after],
        content=f"said in {name}".encode(),
    )
    stamp = time.time_ns() - age_ns
    return Message(body.SerializeToString(), TOPIC, PUBSUB, timestamp=stamp)


def test_missing_messages_of_a_channel_are_fetched_by_hints(
    clients: Path, tmp_path: Path, new_store: Callable[[], str]
) -> None:
    # The SDK asks for the last 30 days when it connects, and for older messages by hints.
    first = said("m-1", 1, 60 * DAY_NS)
    second = said("m-2", 2, 50 * DAY_NS, ("m-1", first))
    third = said("m-3", 3, 3 * DAY_NS, ("m-2", second))
    with (
        running_node(
            tmp_path / "node",
            "--max-clock-drift",
            "off",
            "--retention",
            "90d",
            database_url=new_store(),
        ) as node,
        running_gateway(
            tmp_path, node.listen, *GENEROUS, "--cluster", str(CLUSTER), "--shard", str(SHARD)
        ) as gateway,
    ):
        with Client([node.listen]) as client:
            client.publish_many([first, second, third])
        settings = {"cluster": CLUSTER, "shard": SHARD, "channel": CHANNEL, "topic": TOPIC}
        with running_client(
            clients, "channel", gateway.address("ws"), json.dumps(settings)
        ) as channel:
            received = [channel.ask({}) for _ in range(3)]
    assert received == [
        {"hash": message.hash.hex(), "text": f"said in {name}"}
        for name, message in (("m-3", third), ("m-2", second), ("m-1", first))
    ]
