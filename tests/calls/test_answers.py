"""Answers of every method over every transport: order, pages, cursors, topics and limits."""

from __future__ import annotations

from contextlib import aclosing
from itertools import chain
from typing import Any, Final

import pytest

from storenode.client.messages import hash_of, new_message
from storenode.message.rules import Policy
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
    GetCausalHistoryRequest,
    GetCoverageRequest,
    GetSdsMessagesRequest,
    PublishRequest,
    ScanRequest,
)
from storenode.wire.storenode.v1.store_pb2 import PublishResult as Result
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.calls.conftest import CLIENTS, access_of, caller
from tests.calls.transports import (
    TRANSPORTS,
    Command,
    Connect,
    Grpc,
    Library,
    RefusedError,
    Transport,
)
from tests.integration.rpc.harness import Node, within
from tests.support.participant import claiming, genuine, genuine_id

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBSUB: Final = "/waku/2/rs/1/4"
NOW_NS: Final = 1_763_625_600_000_000_000
HOUR_NS: Final = 3_600 * 10**9
WITH_STATUS: Final = (Grpc, Connect)
"""Transports that send the status of a stream behind its pages, and do not call again."""

WITH_REQUESTS: Final = tuple(each for each in TRANSPORTS if each is not Command)
"""Transports that express every request, and yield each page as it comes."""


def made(count: int, topic: str, start_ns: int = NOW_NS) -> list[WakuMessageAndTopic]:
    """Make messages in ascending order."""
    return [new_message(b"%d" % n, topic, PUBSUB, start_ns + n) for n in range(count)]


async def publish(
    to: Transport, *messages: WakuMessageAndTopic, min_confirms: int = 0
) -> list[Result]:
    """Publish a batch, and return its results."""
    (answer,) = await to.call(
        "Publish", PublishRequest(messages=messages, min_confirms=min_confirms)
    )
    return list(answer.results)


def hashes_of(pages: list[Any]) -> list[bytes]:
    return [each.message_hash for page in pages for each in page.messages]


def stored_of(pages: list[Any]) -> list[bytes]:
    return [each.stored.message_hash for page in pages for each in page.messages]


def missing_of(pages: list[Any]) -> list[str]:
    return [each.message_id for page in pages for each in page.missing]


async def test_results_are_in_request_order_and_stored_messages_are_read(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to = caller(open_node, kind)
    whole = new_message(bytes(range(256)), topic, PUBSUB, NOW_NS, meta=b"\1\2\3", version=1)
    whole.message.rate_limit_proof = b"\xff"
    passing = new_message(b"passing", topic, PUBSUB, NOW_NS)
    passing.message.ephemeral = True
    nameless = new_message(b"nameless", "", PUBSUB, NOW_NS)
    others = made(20, topic, NOW_NS + 1)[::-1]
    results = await publish(to, whole, *others, whole, passing, nameless)
    assert [each.outcome for each in results] == [
        *[Result.STORED] * 21,
        *(Result.DUPLICATE, Result.EPHEMERAL, Result.REJECTED),
    ]
    assert "content topic" in results[-1].reason
    assert [each.message_hash for each in results[:21]] == [
        hash_of(each) for each in (whole, *others)
    ]
    asked = StoreQueryRequest(content_topics=[topic], include_data=True, pagination_forward=True)
    (page,) = await to.call("Query", asked)
    assert page.messages[0].message == whole.message
    assert page.messages[0].pubsub_topic == PUBSUB
    assert hashes_of([page]) == [hash_of(each) for each in (whole, *others[::-1])]
    (page,) = await to.call("Query", StoreQueryRequest(message_hashes=[hash_of(whole), bytes(32)]))
    assert [(each.message_hash, each.HasField("message")) for each in page.messages] == [
        (hash_of(whole), False)
    ]


async def test_pages_hold_everything_once_in_either_direction(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to = caller(open_node, kind)
    hashes = [each.message_hash for each in await publish(to, *made(23, topic))]
    for forward in (True, False):
        asked = StoreQueryRequest(
            content_topics=[topic, "/other/1/topic/proto"],
            pubsub_topic=PUBSUB,
            time_start=NOW_NS + 3,
            time_end=NOW_NS + 20,
            pagination_forward=forward,
            pagination_limit=5,
        )
        found: list[list[bytes]] = []
        while True:
            (page,) = await to.call("Query", asked)
            found.append(hashes_of([page]))
            if not page.HasField("pagination_cursor"):
                break
            asked.pagination_cursor = page.pagination_cursor
        assert [len(each) for each in found] == [5, 5, 5, 2]
        assert list(chain(*(found if forward else found[::-1]))) == hashes[3:20]


async def test_a_scan_is_in_order_and_goes_on_from_its_cursors(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to, wanted = caller(open_node, kind), ContentFilter(content_topics=[topic])
    hashes = [each.message_hash for each in await publish(to, *made(23, topic)[::-1])][::-1]
    pages = await to.call("Scan", ScanRequest(filter=wanted, page_size=10))
    assert hashes_of(pages) == hashes
    cursors = [each.cursor for each in pages if each.cursor]
    for cursor, rest in zip(cursors, (hashes[10:], hashes[20:], []), strict=True):
        pages = await to.call("Scan", ScanRequest(filter=wanted, cursor=cursor))
        assert hashes_of(pages) == rest
    bounds = ScanRequest(filter=wanted, time_start=NOW_NS + 3, time_end=NOW_NS + 20)
    assert hashes_of(await to.call("Scan", bounds)) == hashes[3:20]
    assert await to.call("Scan", ScanRequest(time_start=5, time_end=5)) == []


async def test_a_scan_gives_timestamps_without_data(open_node: Node, topic: str) -> None:
    to, wanted = caller(open_node, Grpc), ContentFilter(content_topics=[topic])
    await publish(to, *made(5, topic))
    times = [NOW_NS + n for n in range(5)]
    for request, expected in (
        (ScanRequest(filter=wanted, include_timestamps=True, page_size=2), times),
        (ScanRequest(filter=wanted, include_timestamps=True, include_data=True), []),
        (ScanRequest(filter=wanted), []),
    ):
        pages = await to.call("Scan", request)
        assert [each for page in pages for each in page.timestamps] == expected


@pytest.mark.parametrize("kind", WITH_REQUESTS)
async def test_what_is_committed_is_followed_in_order_from_any_cursor(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to, wanted = caller(open_node, kind), ContentFilter(content_topics=[topic])
    before = [each.message_hash for each in await publish(to, *made(5, topic)[::-1])]
    from_now = await to.call("Follow", FollowRequest(filter=wanted))
    assert (hashes_of(from_now), from_now[-1].live, bool(from_now[-1].cursor)) == ([], True, True)
    asked = FollowRequest(filter=wanted, from_beginning=True).SerializeToString()
    found: list[Any] = []
    async with aclosing(to.pages("Follow", asked)) as pages:
        while not found or not found[-1].live:
            found.append(await within(anext(pages)))
        assert sorted(hashes_of(found)) == sorted(before)
        passing = new_message(b"passing", topic, PUBSUB, NOW_NS)
        passing.message.ephemeral = True
        after = [new_message(b"after", topic, PUBSUB, NOW_NS + 9), passing]
        for each in after:
            await publish(to, each)
            page = await within(anext(pages))
            assert (hashes_of([page]), page.live) == ([hash_of(each)], True)
    for cursor in (from_now[-1].cursor, found[-1].cursor):
        pages_behind = await to.call("Follow", FollowRequest(filter=wanted, cursor=cursor))
        assert hashes_of(pages_behind) == [hash_of(after[0])], "it is not ephemeral"
    # A cursor is the same over every transport.
    (page,) = await caller(open_node, Grpc).call(
        "Follow", FollowRequest(filter=wanted, cursor=pages_behind[-1].cursor)
    )
    assert (hashes_of([page]), page.live) == ([], True)


def sds(topic: str, channel: str, name: str, *parents: str) -> WakuMessageAndTopic:
    """Make an SDS message that names its parents."""
    history = [HistoryEntry(message_id=each) for each in parents]
    payload = SdsMessage(
        message_id=name, channel_id=channel, causal_history=history, content=b"x"
    ).SerializeToString()
    return new_message(payload, topic, PUBSUB, NOW_NS)


async def test_sds_messages_and_what_they_depend_on(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to, channel = caller(open_node, kind), f"channel of {topic}"
    stored = [sds(topic, channel, *each) for each in (("a",), ("b", "a", "lost"), ("c", "b"))]
    hashes = [each.message_hash for each in await publish(to, *stored)]
    asked = GetSdsMessagesRequest(
        channel_id=channel,
        entries=[
            HistoryEntry(message_id="b"),
            HistoryEntry(message_id="a", retrieval_hint=hashes[0]),
            HistoryEntry(message_id="nowhere"),
        ],
    )
    pages = await to.call("GetSdsMessages", asked)
    assert (set(stored_of(pages)), missing_of(pages)) == ({hashes[0], hashes[1]}, ["nowhere"])
    walk = GetCausalHistoryRequest(channel_id=channel, heads=[HistoryEntry(message_id="c")])
    pages = await to.call("GetCausalHistory", walk)
    assert (stored_of(pages), missing_of(pages)) == (hashes, ["lost"])
    cut = GetCausalHistoryRequest(
        channel_id=channel, heads=[HistoryEntry(message_id="c")], max_messages=1
    )
    pages = await to.call("GetCausalHistory", cut)
    assert stored_of(pages) == hashes[2:]
    assert any(page.truncated for page in pages)


@pytest.mark.parametrize("kind", WITH_REQUESTS)
async def test_what_is_proven_is_preferred_where_it_is_asked_for(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to, channel = caller(open_node, kind), f"channel of {topic}"
    name = genuine_id(channel, b"genuine")
    payloads = [claiming(channel, name, b"forged %d" % number) for number in range(17)]
    payloads.append(genuine(channel, b"genuine"))
    results = await publish(
        to, *(new_message(each, topic, PUBSUB, NOW_NS + n) for n, each in enumerate(payloads))
    )
    first, last = results[0].message_hash, results[-1].message_hash
    for entry, hinted in (
        (HistoryEntry(message_id=name), None),
        (HistoryEntry(message_id=name, retrieval_hint=first), first),
    ):
        for method, requests in (
            ("GetSdsMessages", {"entries": [entry]}),
            ("GetCausalHistory", {"heads": [entry]}),
        ):
            request: Any = (
                GetSdsMessagesRequest if method == "GetSdsMessages" else GetCausalHistoryRequest
            )(channel_id=channel, **requests)  # type: ignore[arg-type] # as the method has it
            request.prefer_proven = False
            found = stored_of(await to.call(method, request))
            assert last not in found
            assert hinted is None or found == [hinted]
            request.prefer_proven = True
            assert last in stored_of(await to.call(method, request))


async def test_answers_say_how_complete_they_are(open_node: Node, kind: type[Transport]) -> None:
    to, entry = caller(open_node, kind), HistoryEntry(message_id="nowhere")
    for method, request in (
        ("Query", StoreQueryRequest(time_start=5, time_end=9, coverage=True)),
        ("Scan", ScanRequest(time_start=5, time_end=9, coverage=True)),
        ("GetSdsMessages", GetSdsMessagesRequest(channel_id="c", entries=[entry], coverage=True)),
        ("GetCausalHistory", GetCausalHistoryRequest(channel_id="c", heads=[entry], coverage=True)),
    ):
        last = (await to.call(method, request))[-1]
        assert last.coverage.state == AnswerCoverage.UNCONFIRMED, method
        assert "no comparison with another store" in last.coverage.reason
        if method in ("Query", "Scan"):
            assert (last.coverage.time_start, last.coverage.time_end) == (5, 9)
    (page,) = await to.call("Query", StoreQueryRequest(time_start=5))
    assert not page.HasField("coverage")
    assert await to.call("Scan", ScanRequest(time_start=5, time_end=5, coverage=True)) == []


async def test_hours_and_days_are_counted(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to, steps = caller(open_node, kind), GetCoverageRequest
    await publish(to, *made(2, topic))
    start_ns = NOW_NS // HOUR_NS * HOUR_NS
    bounds: dict[str, Any] = {"time_start": start_ns, "time_end": start_ns + 1}
    ((hour,),) = [page.steps for page in await to.call("GetCoverage", steps(**bounds))]
    assert (hour.time_start, hour.time_end) == (start_ns, start_ns + HOUR_NS)
    assert hour.messages >= 2
    assert len(hour.fingerprint) == 32
    ((day,),) = [
        page.steps for page in await to.call("GetCoverage", steps(**bounds, step=steps.DAY))
    ]
    assert day.time_end - day.time_start == 24 * HOUR_NS
    part = steps(**bounds, filter=ContentFilter(content_topics=[topic]))
    ((partly,),) = [page.steps for page in await to.call("GetCoverage", part)]
    assert (partly.HasField("messages"), partly.fingerprint) == (False, b"")


async def test_what_a_client_may_not_read_is_not_there(
    guarded_node: Node, kind: type[Transport], topic: str
) -> None:
    everything, app = (caller(guarded_node, kind, each) for each in ("everything", "app"))
    channel, secret = f"channel of {topic}", f"/secret{topic}"
    stored = [sds(secret, channel, "hidden"), sds(topic, channel, "seen", "hidden")]
    guarded_node.rules.access = access_of(**CLIENTS)
    hidden, seen = [each.message_hash for each in await publish(everything, *stored)]

    for request in (
        StoreQueryRequest(content_topics=[topic, secret]),
        StoreQueryRequest(message_hashes=[hidden, seen]),
        StoreQueryRequest(pubsub_topic=PUBSUB, content_topics=[secret, topic]),
    ):
        assert hashes_of(await app.call("Query", request)) == [seen]
        assert hashes_of(await everything.call("Query", request)) in (
            [hidden, seen],
            [seen, hidden],
        )
    with pytest.raises(RefusedError, match=kind.code_of("NOT_FOUND")):
        await app.call("Query", StoreQueryRequest(pagination_cursor=hidden))
    await app.call("Query", StoreQueryRequest(pagination_cursor=seen))
    for method, asked in (("Scan", ScanRequest()), ("Follow", FollowRequest(from_beginning=True))):
        found = hashes_of(await app.call(method, asked))
        assert (seen in found, hidden in found) == (True, False), method
    entries = [
        HistoryEntry(message_id="hidden"),
        HistoryEntry(message_id="hidden", retrieval_hint=hidden),
        HistoryEntry(message_id="seen"),
    ]
    pages = await app.call(
        "GetSdsMessages", GetSdsMessagesRequest(channel_id=channel, entries=entries)
    )
    assert (stored_of(pages), set(missing_of(pages))) == ([seen], {"hidden"})
    pages = await app.call(
        "GetCausalHistory", GetCausalHistoryRequest(channel_id=channel, heads=entries[2:])
    )
    assert (stored_of(pages), missing_of(pages)) == ([seen], ["hidden"])
    pages = await app.call("GetCoverage", GetCoverageRequest(channel_id=channel))
    assert pages
    assert not any(
        each.HasField("messages") or each.fingerprint or each.HasField("missing_parents")
        for page in pages
        for each in page.steps
    )
    (refused,) = await publish(app, sds(secret, channel, "written"))
    assert (refused.outcome, "client app may not publish" in refused.reason) == (
        Result.REJECTED,
        True,
    )


async def test_limits_of_the_token_file_are_named_when_they_are_passed(
    guarded_node: Node, kind: type[Transport], topic: str
) -> None:
    small = caller(guarded_node, kind, f"small-{kind.__name__}")
    with pytest.raises(RefusedError, match="at most 2,000") as refused:
        await publish(small, new_message(bytes(3_000), topic, PUBSUB, NOW_NS))
    assert refused.value.code == kind.code_of("RESOURCE_EXHAUSTED")
    (result,) = await publish(small, new_message(bytes(300), topic, PUBSUB, NOW_NS))
    assert (result.outcome, "at most 300" in result.reason) == (Result.REJECTED, True)
    await publish(small, *made(9, topic))
    if kind not in (Library, Command):  # which wait until the rate allows more
        with pytest.raises(RefusedError, match="10 messages per second") as refused:
            await publish(small, *made(1, topic))
        assert refused.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("change", ["revoked", "other topics"])
@pytest.mark.parametrize("kind", WITH_STATUS)
async def test_a_changed_token_file_ends_a_follower(
    guarded_node: Node, kind: type[Transport], topic: str, change: str
) -> None:
    guarded_node.rules.access = access_of(**CLIENTS)
    following, publisher = (
        caller(guarded_node, kind, each) for each in ("everything", "publisher")
    )
    asked = FollowRequest(filter=ContentFilter(content_topics=[topic])).SerializeToString()
    async with aclosing(following.pages("Follow", asked)) as pages:
        assert (await within(anext(pages))).live
        # The same topics.
        guarded_node.rules.access = access_of(**CLIENTS, more='rights = ["read"]')
        await publish(publisher, *made(1, topic))
        assert hashes_of([await within(anext(pages))])
        others = dict(CLIENTS)
        if change == "revoked":
            del others["everything"]
        else:
            others["everything"] += '\ncontent_topics = ["/app/", "/test/"]'
        guarded_node.rules.access = access_of(**others)
        await publish(publisher, *made(1, topic, NOW_NS + 9))
        with pytest.raises(RefusedError) as refused:
            await within(anext(pages))
    if change == "revoked":
        assert refused.value.code == "UNAUTHENTICATED"
    else:
        assert refused.value.code == "UNAVAILABLE"
        assert "topics of client everything have changed" in refused.value.sentence


async def test_the_policy_is_asked_for_every_request(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to, old = caller(open_node, kind), made(1, topic)
    before = open_node.rules.policy
    open_node.rules.policy = Policy(max_drift_ns=20 * 10**9)
    try:
        (result,) = await publish(to, *old)
    finally:
        open_node.rules.policy = before
    assert (result.outcome, "20 s" in result.reason) == (Result.REJECTED, True)
    (result,) = await publish(to, *old)
    assert result.outcome == Result.STORED


async def test_without_gossip_confirmations_are_answered_at_once(
    open_node: Node, kind: type[Transport], topic: str
) -> None:
    to = caller(open_node, kind)
    results = await publish(to, *made(2, topic), min_confirms=3)
    assert [each.outcome for each in results] == [Result.UNCONFIRMED] * 2
    assert "0 of 3 stores confirmed" in results[0].reason
    asked = StoreQueryRequest(content_topics=[topic])
    assert len(hashes_of(await to.call("Query", asked))) == 2


async def test_large_requests_are_served(open_node: Node, kind: type[Transport]) -> None:
    to = caller(open_node, kind)
    walk = GetCausalHistoryRequest(
        channel_id="c", heads=[HistoryEntry(message_id="a")], known_ids=["k" * 1_500] * 10_000
    )
    assert walk.ByteSize() > 14 * 1024 * 1024
    assert missing_of(await to.call("GetCausalHistory", walk)) == ["a"]
    names = [f"{number:015000}" for number in range(1_000)]
    entries = [HistoryEntry(message_id=name) for name in names]
    asked = GetSdsMessagesRequest(channel_id="c", entries=entries)
    assert missing_of(await to.call("GetSdsMessages", asked)) == names
