import asyncio

import grpc
import pytest

from store.messages.cursor import FollowCursor, FollowCursors, ScanCursor
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowPage,
    FollowRequest,
    GetCausalHistoryRequest,
    GetSdsMessagesRequest,
    ScanPage,
    ScanRequest,
)
from tests.integration.rpc.harness import CONTENT, STORE, Node, failure, item, within

NOW_NS = 1_763_625_600_000_000_000
DIGEST = bytes(range(32))
SCAN_CURSOR = ScanCursor(NOW_NS, DIGEST).encode()
FOLLOW_CURSOR = FollowCursors(b"i" * 16, bytes(32), lambda: bytes(16)).seal(
    FollowCursor(b"i" * 16, 5, 6)
)
BAD_FILTERS = [
    ContentFilter(pubsub_topic=""),
    ContentFilter(content_topics=["/c", ""]),
    ContentFilter(content_topics=["/c\0"]),
    ContentFilter(content_topics=[f"/{n}" for n in range(101)]),
]


async def fill(node: Node, count: int, content: str = CONTENT) -> list[bytes]:
    messages = [item(b"%d" % n, content=content, timestamp=NOW_NS + n) for n in range(count)]
    return [result.message_hash for result in (await node.publish(*messages)).results]


async def scan(node: Node, request: ScanRequest) -> list[ScanPage]:
    pages = await node.stream(STORE + "Scan", request.SerializeToString())
    return [ScanPage.FromString(page) for page in pages]


def hashes_of(*pages: ScanPage | FollowPage) -> list[bytes]:
    return [entry.message_hash for page in pages for entry in page.messages]


@pytest.mark.parametrize("filter_", BAD_FILTERS, ids=lambda one: str(one)[:30])
async def test_filters_that_nothing_can_match_are_refused(
    node: Node, filter_: ContentFilter
) -> None:
    for method, request in (
        ("Scan", ScanRequest(filter=filter_)),
        ("Follow", FollowRequest(filter=filter_)),
        ("GetSdsMessages", GetSdsMessagesRequest(channel_id="c", filter=filter_)),
        ("GetCausalHistory", GetCausalHistoryRequest(channel_id="c", filter=filter_)),
    ):
        code, sentence = await failure(node.stream(STORE + method, request.SerializeToString()))
        assert code is (
            grpc.StatusCode.RESOURCE_EXHAUSTED
            if "at most 100" in sentence
            else grpc.StatusCode.INVALID_ARGUMENT
        )


@pytest.mark.parametrize(
    "cursor",
    [b"x", b"\0" * 47, SCAN_CURSOR[:-1], SCAN_CURSOR + b"x", FOLLOW_CURSOR, b"y" * 1_000_000],
    ids=len,
)
async def test_a_scan_refuses_cursors_that_are_not_its_own(node: Node, cursor: bytes) -> None:
    code, sentence = await failure(scan(node, ScanRequest(cursor=cursor)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cursor" in sentence


async def test_a_scan_gives_timestamps_without_data(node: Node) -> None:
    expected = [(NOW_NS + n, digest) for n, digest in enumerate(await fill(node, 5))]
    for request, has_timestamps in (
        (ScanRequest(include_timestamps=True, page_size=2), True),
        (ScanRequest(include_timestamps=True, include_data=True), False),
        (ScanRequest(), False),
    ):
        pages = await scan(node, request)
        assert hashes_of(*pages) == [digest for _, digest in expected]
        timestamps = [each for page in pages for each in page.timestamps]
        assert timestamps == ([at_ns for at_ns, _ in expected] if has_timestamps else [])


@pytest.mark.parametrize("cursor", [b"x", FOLLOW_CURSOR[:-1], SCAN_CURSOR], ids=len)
async def test_a_follower_refuses_cursors_that_are_not_its_own(node: Node, cursor: bytes) -> None:
    request = FollowRequest(cursor=cursor).SerializeToString()
    code, _ = await failure(node.stream(STORE + "Follow", request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_cursor_of_another_database_is_out_of_range(node: Node) -> None:
    request = FollowRequest(cursor=FOLLOW_CURSOR).SerializeToString()
    code, sentence = await failure(node.stream(STORE + "Follow", request))
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert sentence


async def test_a_follower_from_now_on_begins_with_an_empty_live_page(node: Node) -> None:
    await fill(node, 5)
    call = node.store.Follow(FollowRequest())
    first = await within(call.read())
    assert (list(first.messages), first.live, bool(first.cursor)) == ([], True, True)
    call.cancel()


async def test_large_requests_are_served(node: Node) -> None:
    walk = GetCausalHistoryRequest(
        channel_id="c", heads=[HistoryEntry(message_id="a")], known_ids=["k" * 1_500] * 10_000
    )
    assert walk.ByteSize() > 14 * 1024 * 1024
    page = await within(node.store.GetCausalHistory(walk).read())
    assert [entry.message_id for entry in page.missing] == ["a"]
    entries = [HistoryEntry(message_id=f"{number:015000}") for number in range(1_000)]
    lookup = GetSdsMessagesRequest(channel_id="c", entries=entries)
    assert len((await within(node.store.GetSdsMessages(lookup).read())).missing) > 0


async def test_what_calls_hold_of_the_budget_is_given_back(node: Node) -> None:
    await fill(node, 50)
    assert len(await scan(node, ScanRequest(include_data=True))) > 0
    await failure(scan(node, ScanRequest(cursor=b"x")))
    calls = [node.store.Follow(FollowRequest(from_beginning=True)) for _ in range(3)]
    for call in calls:
        await within(call.read())
    calls[0].cancel()
    walk = node.store.GetCausalHistory(
        GetCausalHistoryRequest(channel_id="c", heads=[HistoryEntry(message_id="x")])
    )
    assert [list(page.missing) async for page in walk] == [[HistoryEntry(message_id="x")]]
    await node.server.stop(0)
    async with asyncio.timeout(30):
        while node.context.answers.senders:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0)
    assert node.context.answers.used == 0
