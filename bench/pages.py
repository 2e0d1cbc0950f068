"""What a page of ``Query`` costs at the start, in the middle and at the end of a long history.

The history, ten million messages over 30 days, is copied into the node's tables, which is quicker
than publishing it. Pages of 100 with data are read forward from cursors at each place, without a
filter and with one content topic; the ratio is the dearest place against the cheapest.
"""

from __future__ import annotations

import time

from bench.data import (
    PUBSUB_TOPIC,
    Row,
    content_topic,
    hashes,
    publish_request,
    rows,
)
from bench.support import Bench, bench_node, copy_in, options, publish, report, settle
from store.db.writing.bulk import (
    COPY_KEYS,
    COPY_MESSAGES,
    HEADER,
    TRAILER,
    in_order,
    key_blocks,
    message_blocks,
)
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.admission import admit

DAYS = 30
DAY_NS = 86_400 * 10**9
CHUNK = 100_000
MOST_PAGES = 200
MESSAGES_PER_PAGE_READ = 20_000
"""A page of one topic in fifty spans 5,000 messages; what is read must not reach the end."""

PLACES = {"start": 0.001, "middle": 0.5, "end": 0.999}


def chunk(count: int, number: int, start_ns: int, step_ns: int) -> list[Row]:
    """Some rows of the history; one chunk's payloads serve them all."""
    size = min(CHUNK, count - number * CHUNK)
    first = start_ns + number * CHUNK * step_ns
    return [
        Row(first + n * step_ns, row.content_topic, row.payload)
        for n, row in enumerate(rows(size, start_ns=0))
    ]


def load(bench: Bench, count: int) -> tuple[int, int]:
    """Fill the tables; (timestamp of the first row, nanoseconds between rows)."""
    step = DAYS * DAY_NS // count
    start = time.time_ns() - DAYS * DAY_NS + DAY_NS // 24
    # One message a day, published, makes the node create the partitions.
    publish(bench, [Row(start + day * DAY_NS, content_topic(0), b"x") for day in range(DAYS)])
    for number in range(-(-count // CHUNK)):
        data = chunk(count, number, start, step)
        batch = admit(
            publish_request(data).messages, time.time_ns(), Policy(max_drift_ns=None)
        ).batch
        ordered = in_order(batch, short=True)
        copy_in(bench, COPY_MESSAGES, [HEADER, *message_blocks(ordered, 0), TRAILER])
        copy_in(bench, COPY_KEYS, [HEADER, *key_blocks(ordered), TRAILER])
    settle(bench)
    return start, step


def page_ms(bench: Bench, cursor: bytes, topic: str | None, pages: int) -> float:
    """Mean milliseconds of pages that follow each other from a cursor on."""
    request = StoreQueryRequest(
        include_data=True, pagination_forward=True, pagination_cursor=cursor, pagination_limit=100
    )
    if topic is not None:
        request.pubsub_topic = PUBSUB_TOPIC
        request.content_topics.append(topic)
    with bench.channel() as channel:
        query = StoreStub(channel).Query
        query(request)
        began = time.perf_counter()
        for _ in range(pages):
            response = query(request)
            assert len(response.messages) == 100, response.status_desc
            request.pagination_cursor = response.messages[-1].message_hash
        return (time.perf_counter() - began) / pages * 1e3


def cursors(count: int, pages: int, start_ns: int, step_ns: int) -> dict[str, bytes]:
    """Hash of the message at each place, far enough from the end for the pages that follow."""
    found = {}
    for place, share in PLACES.items():
        number, offset = divmod(min(int(count * share), count - pages * 100 * 51), CHUNK)
        row = chunk(count, number, start_ns, step_ns)[offset]
        found[place] = hashes([row])[0]
    return found


def main() -> None:
    """Measure each place three times in turn and keep the best."""
    count = options(__doc__ or "", messages=10_000_000).messages
    pages = min(MOST_PAGES, count // MESSAGES_PER_PAGE_READ)
    with bench_node("--max-clock-drift", "off") as bench:
        places = cursors(count, pages, *load(bench, count))
        for topic in (None, content_topic(7)):
            best = dict.fromkeys(places, float("inf"))
            for _ in range(3):
                for place, cursor in places.items():
                    best[place] = min(best[place], page_ms(bench, cursor, topic, pages))
            report(
                benchmark="pages",
                messages=count,
                content_topic=topic or "any",
                ratio=max(best.values()) / min(best.values()),
                **{f"{place}_ms": taken for place, taken in best.items()},
            )


if __name__ == "__main__":
    main()
