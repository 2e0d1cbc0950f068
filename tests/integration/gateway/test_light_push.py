"""Light push over TCP with both multiplexers: the status of each kind of request."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pytest

from store.gateway.light_push import LEGACY_LIGHT_PUSH, LIGHT_PUSH
from store.gateway.wire import bytes_field, delimited, fields, number_field
from storenode.client.blocking_client import Client
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD
from tests.support.gateway import GENEROUS, running_gateway
from tests.support.node import running_node
from tests.support.waku_client import MPLEX, YAMUX, Reset, WakuClient

TOPIC: Final = "/push/1/a/proto"
HOUR_NS: Final = 3_600 * 10**9


def message(payload: bytes = b"text", **more: Any) -> bytes:  # noqa: ANN401 - its fields
    given = {"content_topic": TOPIC, "timestamp": time.time_ns(), **more}
    encoded = WakuMessage(payload=payload, **given).SerializeToString()
    return encoded if payload else bytes_field(1, b"") + encoded


def request(encoded: bytes | None, topic: str | None = PUBSUB) -> bytes:
    named = b"" if topic is None else bytes_field(20, topic.encode())
    return bytes_field(1, b"r") + named + (b"" if encoded is None else bytes_field(21, encoded))


def legacy(encoded: bytes, topic: str = PUBSUB) -> bytes:
    inner = bytes_field(1, topic.encode()) + bytes_field(2, encoded)
    return bytes_field(1, b"r") + bytes_field(2, inner)


async def status_of(client: WakuClient, asked: bytes) -> tuple[bytes, int]:
    """Return the request ID and the status of the response."""
    answer = await client.ask(LIGHT_PUSH, delimited(asked))
    parts = dict(fields(answer[1 if answer[0] < 0x80 else 2 :]))
    assert (12 in parts) == (parts[10] == 200)
    assert (11 in parts) == (parts[10] != 200)
    return cast("bytes", parts[1]), cast("int", parts[10])


@pytest.mark.parametrize("multiplexer", [MPLEX, YAMUX])
async def test_each_request_has_its_status(
    tmp_path: Path, new_store: Callable[[], str], multiplexer: str
) -> None:
    again, not_utf8 = message(b"again"), bytes_field(1, b"x") + bytes_field(2, b"\xff\xfe")
    network = ("--cluster", str(CLUSTER), "--shard", str(SHARD))
    with (
        running_node(tmp_path / "node", database_url=new_store()) as node,
        running_gateway(tmp_path, node.listen, *GENEROUS, *network) as gateway,
    ):
        async with WakuClient.connected(gateway.address("tcp"), multiplexer) as client:
            for asked, expected in (
                (request(again), (b"r", 200)),
                (request(again), (b"r", 200)),
                (request(message(b"")), (b"r", 200)),
                (request(message(ephemeral=True)), (b"r", 200)),
                (request(message(timestamp=None)), (b"r", 420)),
                (request(message(timestamp=time.time_ns() - HOUR_NS)), (b"r", 420)),
                (request(message(timestamp=time.time_ns() + HOUR_NS)), (b"r", 420)),
                (request(not_utf8 + number_field(10, 2)), (b"r", 420)),
                (request(message(bytes(150 * 1024))), (b"r", 413)),
                (request(message(), None), (b"r", 421)),
                (request(message(), "/waku/2/rs/1/7"), (b"r", 421)),
                (request(None), (b"N/A", 400)),
                (request(b""), (b"N/A", 400)),
                (request(message(meta=bytes(65))), (b"N/A", 400)),
                (b"\xff\xff", (b"N/A", 400)),
                (b"", (b"N/A", 400)),
            ):
                assert await status_of(client, asked) == expected, asked[:100]
            answer = await client.ask(LEGACY_LIGHT_PUSH, delimited(legacy(message(b"old client"))))
            assert answer == delimited(
                bytes_field(1, b"r") + bytes_field(3, number_field(1, 1) + bytes_field(2, b"OK"))
            )
            with pytest.raises(Reset):
                await client.ask(LIGHT_PUSH, delimited(bytes(300 * 1024)))
            assert (await status_of(client, request(message(b"last"))))[1] == 200
        with Client([node.listen]) as reader:
            stored = sorted(each.payload for each in reader.scan())
    assert stored == [b"", b"again", b"last", b"old client"]


async def test_protocols_that_are_left_out_are_not_spoken(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with (
        running_node(tmp_path / "node", database_url=new_store()) as node,
        running_gateway(tmp_path, node.listen, "--no-light-push", "--no-filter") as gateway,
    ):
        async with WakuClient.connected(gateway.address("tcp")) as client:
            for protocol in (LIGHT_PUSH, LEGACY_LIGHT_PUSH):
                with pytest.raises((Reset, AssertionError)):
                    await client.ask(protocol, delimited(request(message())))
