"""What a message takes on disk, by table and index, before and after indexes are rebuilt.

Messages with 200 random bytes on 50 content topics, in turn, a week of them up to two days ago,
published in batches of 1,000. Then what maintenance does to partitions that are over is done until
nothing is left to do. Pages of 1,000 messages are read by topic before and after: the index that
shrinks most is the one that serves them.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from statistics import median

from psycopg import AsyncConnection

from bench.data import PUBSUB_TOPIC, content_topic, rows
from bench.support import Bench, bench_node, options, publish, report, seconds, settle
from store.db.maintenance.condition import Sizes, read_sizes
from store.db.maintenance.rebuild import Rebuilder
from storenode.client import Client

_DAY_NS = 86_400 * 10**9
_DAYS = 7
_PAGES = 40


def read(url: str) -> Sizes:
    """The sizes of a node's tables."""

    async def sizes() -> Sizes:
        async with await AsyncConnection.connect(url, autocommit=True) as connection:
            return await read_sizes(connection)

    return asyncio.run(sizes())


async def _rebuild(url: str) -> int:
    """Rebuild until nothing wastes; how many indexes."""
    rebuilder, count = Rebuilder(), 0
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        while await rebuilder.rebuild(connection, time.time_ns()):
            count += 1
    return count


def _page_ms(bench: Bench) -> float:
    """A page by topic, at another place each time; the median."""
    taken = []
    with Client(bench.node.listen) as client:
        for number in range(_PAGES):
            page = partial(client.query, content_topic(number), pubsub_topic=PUBSUB_TOPIC)
            taken.append(seconds(partial(page, limit=1_000, newest_first=number % 2 == 0)))
    return 1e3 * median(taken)


def _report(step: str, sizes: Sizes, seconds_taken: float, page_ms: float) -> None:
    parts = {
        f"{part.table}{' ' if part.part else ''}{part.part}": part.size_bytes / sizes.messages
        for part in sizes.parts
        if part.size_bytes > sizes.messages
    }
    total = sizes.total_bytes / sizes.messages
    report(step=step, total=total, seconds=seconds_taken, page_ms=page_ms, **parts)


def main() -> None:
    """Fill, measure, rebuild, measure."""
    count = options(__doc__, 400_000).messages
    first_ns, step_ns = time.time_ns() - (2 + _DAYS) * _DAY_NS, _DAYS * _DAY_NS // count
    data = rows(count, start_ns=first_ns, step_ns=step_ns)
    with bench_node("--max-clock-drift", "off") as bench:
        taken = seconds(lambda: publish(bench, data))
        settle(bench)
        _report("published", read(bench.url), taken, _page_ms(bench))
        taken = seconds(lambda: asyncio.run(_rebuild(bench.url)))
        settle(bench)
        _report("rebuilt", read(bench.url), taken, _page_ms(bench))


if __name__ == "__main__":
    main()
