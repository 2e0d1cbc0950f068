"""Light push over TCP with both multiplexers: the status of each kind of request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from store.gateway.filter import FILTER_SUBSCRIBE
from store.gateway.light_push import LEGACY_LIGHT_PUSH, LIGHT_PUSH
from store.gateway.wire import bytes_field, delimited, fields, number_field
from storenode.client.blocking_client import Client
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD
from tests.support.gateway import GENEROUS, running_gateway
from tests.support.node import running_node
from tests.support.waku_client import MPLEX, YAMUX, StreamResetError, WakuClient

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


def cases(again: bytes) -> Iterator[tuple[bytes, tuple[bytes, int]]]:
    """Yield requests with the request ID and the status of their responses."""
    not_utf8 = bytes_field(1, b"x") + bytes_field(2, b"\xff\xfe") + number_field(10, 2)
    for encoded, status in (
        *((again, 200), (again, 200), (message(b""), 200), (message(ephemeral=True), 200)),
        (message(timestamp=None), 420),
        (message(timestamp=time.time_ns() - HOUR_NS), 420),
        (message(timestamp=time.time_ns() + HOUR_NS), 420),
        *((not_utf8, 420), (message(bytes(150 * 1024)), 413)),
    ):
        yield request(encoded), (b"r", status)
    yield request(message(), None), (b"r", 421)
    yield request(message(), "/waku/2/rs/1/7"), (b"r", 421)
    unreadable = request(None), request(b""), request(message(meta=bytes(65))), b"\xff\xff", b""
    yield from ((asked, (b"N/A", 400)) for asked in unreadable)


async def test_each_request_has_its_status(tmp_path: Path, new_store: Callable[[], str]) -> None:
    network = ("--cluster", str(CLUSTER), "--shard", str(SHARD))
    # The clock drift is longer than the test, however busy the machine.
    drift = ("--max-clock-drift", "10m")
    expected = [b"", b""]
    with running_node(tmp_path / "node", *drift, database_url=new_store()) as node:
        with running_gateway(tmp_path, node.listen, *GENEROUS, *network) as gateway:
            for multiplexer in (MPLEX, YAMUX):
                payloads = [f"{multiplexer} {each}".encode() for each in ("again", "old", "last")]
                expected += payloads
                async with WakuClient.connected(gateway.address("tcp"), multiplexer) as client:
                    for asked, answered in cases(message(payloads[0])):
                        assert await status_of(client, asked) == answered, asked[:100]
                    old = delimited(legacy(message(payloads[1])))
                    inner = number_field(1, 1) + bytes_field(2, b"OK")
                    answer = delimited(bytes_field(1, b"r") + bytes_field(3, inner))
                    assert await client.ask(LEGACY_LIGHT_PUSH, old) == answer
                    with pytest.raises(StreamResetError):
                        await client.ask(LIGHT_PUSH, delimited(bytes(300 * 1024)))
                    assert (await status_of(client, request(message(payloads[2]))))[1] == 200
        with running_gateway(tmp_path, node.listen, "--no-light-push", "--no-filter") as gateway:
            async with WakuClient.connected(gateway.address("tcp")) as client:
                for protocol in (LIGHT_PUSH, LEGACY_LIGHT_PUSH, FILTER_SUBSCRIBE):
                    with pytest.raises((StreamResetError, AssertionError)):
                        await client.ask(protocol, delimited(request(message())))
        with Client([node.listen]) as reader:
            assert sorted(each.payload for each in reader.scan()) == sorted(expected)
