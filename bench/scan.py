"""``Scan`` of everything with data against psycopg reading the same rows in binary.

The baseline reads keyset pages of 1,000 rows from a plain table. On the node's side the client
parses every page. Processor time is that per message where each topic is scanned in turn.
"""

from __future__ import annotations

from bench.data import TOPICS, content_topic, rows
from bench.support import PLAIN_COLUMNS, Bench, bench_node, load, options, report, seconds, used
from storenode.wire.storenode.v1.store_pb2 import ContentFilter, ScanRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

REPEATS = 3
_PAGE = (
    f"select {PLAIN_COLUMNS} from plain where (ts, hash) > (%s, %s) order by ts, hash limit 1000"
)


def scan(bench: Bench, expected: int, *topics: str) -> None:
    """Read everything from the node, or topic after topic."""
    filters = [ContentFilter(content_topics=[each]) for each in topics] or [ContentFilter()]
    with bench.channel() as channel:
        call = StoreStub(channel).Scan
        requests = [ScanRequest(filter=each, include_data=True) for each in filters]
        read = sum(len(page.messages) for each in requests for page in call(each))
    assert read == expected, f"{read} of {expected} messages were read"


def keyset(bench: Bench, expected: int) -> None:
    """Read everything from the plain table."""
    read, at = 0, (0, b"")
    with bench.connection.cursor(binary=True) as cursor:
        while page := cursor.execute(_PAGE, at, prepare=True).fetchall():
            read += len(page)
            at = page[-1][:2]
    assert read == expected, f"{read} of {expected} rows were read"


def main() -> None:
    """Measure both sides in turn; the best of three each."""
    count = options(__doc__).messages
    with bench_node("--max-clock-drift", "off") as bench:
        load(bench, rows(count), "ts, hash")
        pairs = [
            (seconds(lambda: keyset(bench, count)), seconds(lambda: scan(bench, count)))
            for _ in range(REPEATS)
        ]
        before = used(bench.node)
        scan(bench, count, *map(content_topic, range(TOPICS)))
        costs = used(bench.node).since(before, count)
    baseline, node = (min(column) for column in zip(*pairs, strict=True))
    report(
        benchmark="scan",
        messages=count,
        node_per_s=count / node,
        psycopg_per_s=count / baseline,
        ratio=baseline / node,
        ratios=[round(pair[0] / pair[1], 3) for pair in pairs],
        **costs,
    )
