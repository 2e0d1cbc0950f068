"""A participant that was away: how long until it is in step with its channel, in how many calls.

First the whole of a channel, from one node, with the state in a SQLite file: against a plain
``Scan`` of the same messages by the client library in the same run. Then what repair costs: every
second one of the last messages is lost on its way in, in gaps of two lengths; and one run of
messages is lost whole, with and without hints in the histories.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.data import PUBSUB_TOPIC
from bench.support import Bench, bench_node, options, report, settle
from storenode.client.messages import new_message
from storenode.client.node import connect, content_filter
from storenode.client.types import PublishResult
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.node import StoreNode
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig
from tests.support.conversation import Said, conversation
from tests.support.lossy import Lossy

SHAPES: Final = {"of 500 IDs": FilterShape(500, 0.01), "of 10,000 IDs": FilterShape()}
SMALL: Final = "of 500 IDs"
LARGE_SHARE: Final = 20
"""Filters of 10,000 IDs make a message 18 times as large: so much fewer of them."""

REPEATS: Final = 3
TAIL: Final = 3_000


def topic(channel_id: str) -> str:
    """Return the content topic of a channel."""
    return f"/sds/1/{channel_id}/proto"


async def make(bench: Bench, channel_id: str, count: int, shape: FilterShape) -> list[Said]:
    """Publish a channel's past."""
    said = list(
        conversation(
            channel_id,
            count,
            pubsub_topic=PUBSUB_TOPIC,
            content_topic=topic(channel_id),
            newest_ns=time.time_ns(),
            shape=shape,
            hints=not channel_id.endswith("without-hints"),
        )
    )
    messages = (
        new_message(each.payload, topic(channel_id), PUBSUB_TOPIC, each.timestamp_ns)
        for each in said
    )
    async with connect(bench.node.listen) as client:
        stored = [result.outcome async for _, result in client.publish_all(messages)]
    assert stored.count(PublishResult.STORED) == count
    return said


async def scan(bench: Bench, channel_id: str, count: int) -> float:
    """Measure the seconds of a plain scan of a channel."""
    start, found = time.perf_counter(), 0
    async with connect(bench.node.listen) as client:
        pages = client.scan(filter=content_filter(PUBSUB_TOPIC, [topic(channel_id)]))
        async for page in pages:
            found += len(page.messages)
    assert found == count, f"{found} of {count} messages were read"
    return time.perf_counter() - start


async def catch_up(
    bench: Bench, said: Sequence[Said], channel_id: str, shape: FilterShape
) -> tuple[float, int]:
    """Measure the seconds until a new participant is in step, and its calls."""
    config = ChannelConfig(channel_id, "late", filter=shape)
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        start = time.perf_counter()
        async with Channel.join(
            bench.node.listen,
            channel_id,
            "late",
            config=config,
            state=Path(directory, "late.db"),
        ) as channel:
            await channel.wait_for(lambda status: status.synced)
            last = await channel.log(1)
            seconds = time.perf_counter() - start
            counts = channel.counts
            assert counts.received - counts.echoes == len(said), counts
            assert last[0].message_id == said[-1].message_id
            return seconds, channel.calls.total()


async def whole(bench: Bench, name: str, count: int) -> None:
    """Report a catch-up with a whole channel."""
    shape = SHAPES[name]
    channel_id = f"whole-{shape.capacity}"
    said = await make(bench, channel_id, count, shape)
    settle(bench)
    runs = [
        (await scan(bench, channel_id, count), await catch_up(bench, said, channel_id, shape))
        for _ in range(REPEATS)
    ]
    plain = min(run[0] for run in runs)
    seconds = min(run[1][0] for run in runs)
    report(
        benchmark="catchup",
        filters=name,
        messages=count,
        megabytes=sum(len(each.payload) for each in said) / 1e6,
        seconds=seconds,
        messages_per_s=count / seconds,
        calls=runs[0][1][1],
        scan_s=plain,
        ratio=seconds / plain,
    )


async def gap(bench: Bench, said: Sequence[Said], case: str, lost: set[bytes]) -> None:
    """Report the repair of a gap: what is lost on its way in, and how many calls bring it."""
    channel_id = "gap-without-hints" if "without hints" in case else "gap"
    config = ChannelConfig(channel_id, "late", filter=SHAPES[SMALL])
    lossy = Lossy(StoreNode(bench.node.listen), lambda each: each.hint in lost)
    start = time.perf_counter()
    async with Channel.join(lossy, channel_id, "late", config=config) as channel:
        await channel.wait_for(lambda status: status.synced)
        seconds = time.perf_counter() - start
        counts = channel.counts
        assert counts.received - counts.duplicates - counts.echoes == len(said), counts
        calls = {name: channel.calls[name] for name in ("by_hint", "by_id", "closure")}
    report(
        benchmark="catchup gap",
        case=case,
        lost=len(lost),
        seconds=seconds,
        calls=sum(calls.values()),
        **calls,
    )


async def gaps(bench: Bench) -> None:
    """Report the cases of repair."""
    for channel_id in ("gap", "gap-without-hints"):
        said = await make(bench, channel_id, TAIL, SHAPES[SMALL])
        more = "" if channel_id == "gap" else " without hints"
        for depth in (200, 2_000):
            every_second = {each.hint for each in said[-depth - 1 : -1 : 2]}
            await gap(bench, said, f"every second of the last {depth}{more}", every_second)
        for depth in (100, 1_000):
            run = {each.hint for each in said[-depth - 1 : -1]}
            await gap(bench, said, f"the {depth} before the last{more}", run)


async def measure(bench: Bench, count: int) -> None:
    """Run all cases."""
    await whole(bench, SMALL, count)
    await whole(bench, "of 10,000 IDs", count // LARGE_SHARE)
    await gaps(bench)


def main() -> None:
    """Start a node and measure."""
    count = options(__doc__, messages=100_000).messages
    with bench_node("--max-clock-drift", "off") as bench:
        asyncio.run(measure(bench, count))


if __name__ == "__main__":
    main()
