import asyncio

from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    FollowRequest,
    GetCausalHistoryRequest,
    GetSdsMessagesRequest,
    ScanPage,
    ScanRequest,
)
from tests.integration.rpc.harness import CONTENT, STORE, Node, failure, item, within

NOW_NS = 1_763_625_600_000_000_000


async def fill(node: Node, count: int, content: str = CONTENT) -> list[bytes]:
    messages = [item(b"%d" % n, content=content, timestamp=NOW_NS + n) for n in range(count)]
    return [result.message_hash for result in (await node.publish(*messages)).results]


async def scan(node: Node, request: ScanRequest) -> list[ScanPage]:
    pages = await node.stream(STORE + "Scan", request.SerializeToString())
    return [ScanPage.FromString(page) for page in pages]


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
