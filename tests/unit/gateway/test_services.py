"""Light push and filter: requests of other implementations, and subscriptions against an oracle."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.gateway import limits
from store.gateway.clients import Clients
from store.gateway.connection import WakuConnection
from store.gateway.faults import StatusError
from store.gateway.filter import (
    FILTER_SUBSCRIBE,
    PING,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ALL,
    Filter,
    encode_push,
)
from store.gateway.gossipsub import encode_subscriptions
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import FollowedMessage, NodeFeed, Spool, UpstreamNode, parse_page
from store.gateway.relay import Relay
from store.gateway.services import (
    LEGACY_LIGHT_PUSH,
    LIGHT_PUSH,
    SUCCESS,
    LightPush,
    encode_legacy_response,
    parse_legacy_request,
    required_id,
)
from store.gateway.services import encode_response as encode_push_response
from store.gateway.services import parse_request as parse_push_request
from store.gateway.wire import delimited, encode_status, parse
from storenode.client.nodes import Nodes
from storenode.client.retry import Attempts
from storenode.connection.errors import NodeError
from storenode.wire.storenode.internal.v1 import waku_protocols_pb2 as wire
from storenode.wire.storenode.v1.store_pb2 import PUBLISH_SOURCE_RELAY, FollowPage, PublishResult
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

VECTORS: Final = json.loads(
    gzip.decompress((Path(__file__).parents[2] / "vectors" / "waku_services.json.gz").read_bytes())
)
PUBSUB: Final = "/waku/2/rs/7/0"
PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    LIGHT_PUSH: parse_push_request,
    LEGACY_LIGHT_PUSH: parse_legacy_request,
    FILTER_SUBSCRIBE: lambda data: required_id(parse(wire.FilterRequest, data)),
}
UNREADABLE_TO_NWAKU: Final = (b"decode_rpc_failure", b"empty_request_body_failure")


@pytest.mark.parametrize("case", VECTORS["requests"], ids=lambda case: case["case"])
def test_requests_are_unreadable_where_nwaku_does_not_decode_them(case: dict[str, str]) -> None:
    request = bytes.fromhex(case["request"])
    answer = bytes.fromhex(case["nwaku"] or "")
    readable = bool(answer) and not any(each in answer for each in UNREADABLE_TO_NWAKU)
    if case["case"].endswith("content topic not utf-8"):
        readable = True  # the node refuses it, and says so
    try:
        PARSERS[case["protocol"]](request)
    except ValueError:
        assert not readable
    else:
        assert readable


def test_answers_are_those_that_js_waku_accepted() -> None:
    counts = dict.fromkeys(("filter", "lightpush 3", "lightpush 2"), 0)
    for exchange in VECTORS["accepted"]:
        what = exchange["what"]
        if what == "filter push":
            continue
        answer = bytes.fromhex(exchange["answer"])
        request, parsed = bytes.fromhex(exchange["request"]), wire.WakuResponse.FromString(answer)
        if what == "filter":
            status, sentence = parsed.status_code, parsed.status_description
            made = encode_status(PARSERS[FILTER_SUBSCRIBE](request), status, sentence)
        elif what == "lightpush 3":
            if parsed.status_code != SUCCESS:
                continue
            made = encode_push_response(parse_push_request(request)[0], SUCCESS, "")
        else:
            if not wire.LegacyLightPush.FromString(answer).response.is_success:
                continue
            made = encode_legacy_response(parse_legacy_request(request)[0], SUCCESS, "")
        assert made == answer
        counts[what] += 1
    assert all(counts.values()), counts


def test_pushes_are_those_that_js_waku_accepted() -> None:
    frames = [each["frame"] for each in VECTORS["accepted"] if each["what"] == "filter push"]
    for frame in map(bytes.fromhex, frames):
        pushed, page = wire.FilterPush.FromString(frame), FollowPage()
        entry = page.messages.add(pubsub_topic=pushed.pubsub_topic)
        entry.message.MergeFromString(pushed.message)
        (message,), _ = parse_page(page.SerializeToString())
        again = wire.FilterPush.FromString(encode_push(message))
        assert WakuMessage.FromString(again.message) == entry.message
        assert again.pubsub_topic == pushed.pubsub_topic
    assert frames


@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=200))
def test_any_bytes_are_a_request_or_a_value_error(protocol: str, data: bytes) -> None:
    with contextlib.suppress(ValueError):
        PARSERS[protocol](data)


def subscriptions() -> Filter:
    return Filter(NodeFeed(cast("UpstreamNode", None)), GatewayMetrics("0"), frozenset({PUBSUB}))


def run_nothing(work: Coroutine[None, None, None]) -> asyncio.Future[None]:
    work.close()
    return asyncio.get_running_loop().create_future()


def connections(count: int) -> list[Any]:
    """Return connections of one address that run no work."""
    client = Clients(100, 100, 100).arrive("192.0.2.1", 0)
    known = {"client": client, "peer_id": "peer", "began_ns": 0, "start": run_nothing}
    return [Mock(**known) for _ in range(count)]


def request(kind: int, *contents: str, pubsub: str | None = PUBSUB) -> wire.FilterRequest:
    return wire.FilterRequest(
        request_id=b"r", kind=kind, pubsub_topic=pubsub, content_topics=contents
    )


def status_of(
    found: Filter, asked: wire.FilterRequest, connection: WakuConnection, now_ns: int
) -> int:
    try:
        found.handle(asked, connection, now_ns)
    except ValueError:
        return 400
    except StatusError as error:
        return error.status_code
    return 200


TOPICS: Final = st.lists(st.sampled_from("abcd"), max_size=4)
STEPS: Final = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), TOPICS, st.integers(0, 200)), max_size=30
)


@given(STEPS)
def test_subscriptions_are_those_of_a_plain_model(
    steps: list[tuple[int, int, list[str], int]],
) -> None:
    async def run() -> None:
        found, peers = subscriptions(), connections(3)
        model: dict[int, tuple[int, set[str]]] = {}
        now_ns = 0
        for peer, kind, contents, later_s in steps:
            now_ns += later_s * 10**9
            found.expire(now_ns)
            model = {each: kept for each, kept in model.items() if kept[0] > now_ns}
            status = status_of(found, request(kind, *contents), peers[peer], now_ns)
            expires_ns = now_ns + 300 * 10**9
            subscribed = model.get(peer, (0, set[str]()))[1]
            if kind != SUBSCRIBE and peer not in model:
                assert status == 404
                continue
            if peer in model:
                model[peer] = (expires_ns if kind != 1 else model[peer][0], subscribed)
            if kind in (SUBSCRIBE, UNSUBSCRIBE):
                if not contents:
                    assert status == 400
                elif kind == SUBSCRIBE:
                    assert status == 200
                    model[peer] = expires_ns, subscribed | set(contents)
                elif not subscribed & set(contents):
                    assert status == 404
                else:
                    model[peer] = expires_ns, subscribed - set(contents)
            elif kind == UNSUBSCRIBE_ALL:
                del model[peer]
            else:
                assert status == (200 if kind == PING else 400)
            model = {each: kept for each, kept in model.items() if kept[1]}
            found.check()
            assert len(found) == len(model)

    asyncio.run(run())


async def test_subscriptions_are_bounded_for_a_connection_an_address_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_SUBSCRIBER_CRITERIA", 3)
    monkeypatch.setattr(limits, "MAX_CLIENT_CRITERIA", 5)
    monkeypatch.setattr(limits, "MAX_CRITERIA", 6)
    monkeypatch.setattr(limits, "MAX_REQUESTED_TOPICS", 4)
    found, (one, two) = subscriptions(), connections(2)
    (other,) = connections(1)
    assert status_of(found, request(SUBSCRIBE, *"abcde"), one, 0) == 400
    assert status_of(found, request(SUBSCRIBE, "a" * 1_025), one, 0) == 400
    assert status_of(found, request(SUBSCRIBE, "a", pubsub="/waku/2/rs/7/1"), one, 0) == 400
    assert status_of(found, request(SUBSCRIBE, *"abcd"), one, 0) == 503
    assert status_of(found, request(SUBSCRIBE, *"abc"), one, 0) == 200
    assert status_of(found, request(SUBSCRIBE, *"abc"), one, 0) == 200
    assert status_of(found, request(SUBSCRIBE, *"abc"), two, 0) == 503
    assert status_of(found, request(SUBSCRIBE, *"ab"), two, 0) == 200
    assert status_of(found, request(SUBSCRIBE, *"ab"), other, 0) == 503
    found.check()
    assert status_of(found, request(UNSUBSCRIBE_ALL), one, 0) == 200
    assert status_of(found, request(SUBSCRIBE, *"ab"), other, 0) == 200
    found.check()


async def test_pushes_to_a_subscriber_that_takes_none_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_QUEUED_PUSHES", 5)
    found, (one,) = subscriptions(), connections(1)
    assert status_of(found, request(SUBSCRIBE, "/a/1/b/proto"), one, 0) == 200
    page = FollowPage()
    message = WakuMessage(payload=b"x", content_topic="/a/1/b/proto", timestamp=time.time_ns())
    page.messages.add(pubsub_topic=PUBSUB).message.MergeFrom(message)
    page.messages.add(pubsub_topic="/waku/2/rs/7/1").message.MergeFrom(message)
    messages, _ = parse_page(page.SerializeToString())
    for _ in range(8):
        for each in messages:
            found.deliver(each)
    (subscriber,) = found._subscribers.values()
    assert len(subscriber._frames) == 5
    assert one.client.unsent.used_bytes == 5 * len(delimited(encode_push(messages[0])))
    subscriber.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(found), len(subscriber._frames)) == (0, 0)
    assert one.client.unsent.used_bytes == 0


def relay_of() -> tuple[Relay, GatewayMetrics]:
    node, metrics = cast("UpstreamNode", None), GatewayMetrics("0")
    spool = Spool(node, metrics.relayed, PUBLISH_SOURCE_RELAY)
    feed = NodeFeed(node)
    relay = Relay([PUBSUB], frozenset(), forwards=True, spool=spool, feed=feed, metrics=metrics)
    return relay, metrics


async def test_the_rates_of_a_relay_peer_bound_all_its_streams_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RELAY_BYTES_PER_S", 5 * limits.MIN_RELAY_BYTES)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    relay, _ = relay_of()
    read: list[int] = []

    async def delimited(_most_bytes: int) -> bytes:
        read.append(1)
        return encode_subscriptions([PUBSUB])

    (connection,) = connections(1)
    pipe = cast("Any", SimpleNamespace(delimited=delimited, release=list, connection=connection))
    serving = [asyncio.create_task(relay.serve(pipe)) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    # Each stream has read one RPC that waits.
    assert len(read) == 5 + len(serving)
    for each in serving:
        each.cancel()


async def test_new_messages_of_the_node_that_wait_for_the_mesh_are_bounded_in_bytes() -> None:
    (relay, _), size_bytes = relay_of(), limits.MAX_DELAYED_BYTES // 2
    for name in (b"one", b"two"):
        relay.offer(FollowedMessage(name, PUBSUB, "", time.time_ns(), bytes(size_bytes)))
        assert relay._delayed == {b"one"}
    relay._end_delay(FollowedMessage(b"one", PUBSUB, "", 0, bytes(size_bytes)))
    assert relay._delayed_bytes == 0


async def test_a_stored_message_that_is_pushed_again_is_not_sent_to_the_mesh_again() -> None:
    relay, (connection,) = Mock(), connections(1)
    publish = AsyncMock(return_value=[PublishResult(outcome=PublishResult.DUPLICATE)])
    push = LightPush(Mock(publish=publish), GatewayMetrics("0"), [PUBSUB], relay)
    for outcome, times in ((PublishResult.DUPLICATE, 0), (PublishResult.STORED, 1)):
        publish.return_value[0].outcome = outcome
        await push._publish(PUBSUB, b"", connection.client)
        assert relay.publish.call_count == times


async def test_a_node_that_refuses_the_gateway_fails_the_call_and_not_the_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_attempts: object) -> None:
        raise NodeError("UNAUTHENTICATED", "the token is unknown")

    monkeypatch.setattr(Attempts, "connected", refuse)
    node = UpstreamNode(Nodes("127.0.0.1:7420", None, None), GatewayMetrics("0"))
    with pytest.raises(StatusError):
        await anext(node.follow(b""))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200))
def test_addresses_are_forgotten_beside_one_that_stays_connected(pauses_s: list[int]) -> None:
    found, now_ns = Clients(10, 10, 10), 0
    connected = found.arrive("192.0.2.1", now_ns)
    recent: list[int] = []
    for number, pause_s in enumerate(pauses_s):
        now_ns += pause_s * 10**9
        recent = [each for each in recent if now_ns - each <= 2 * 10**9] + [now_ns]
        found.leave(found.arrive(f"2001:db8:0:{number:x}::/64", now_ns), now_ns)
        assert found._known["192.0.2.1"] is connected
        assert len(found._known) <= 1 + len(recent)
