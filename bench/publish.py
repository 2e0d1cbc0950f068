"""``PublishStream`` in batches of 1,000 against a binary COPY of the same rows.

Both sides include the client, from the same values in Python: on the node's side building and
encoding requests and reading every answer, each answered batch being committed with fsync on; on
the other one COPY, row by row through psycopg, into one plain table with the same primary key, with
hashes that were computed beforehand. Two stricter baselines are printed as well: the same COPY of
blocks that were encoded before the clock starts, and such a COPY into each of the node's own two
tables of messages (``messages`` with its three indexes, and ``hashes``). The processor time that
each process has used per message is printed beside them.
"""

from __future__ import annotations

from bench.data import (
    BATCH,
    PAYLOAD_BYTES,
    PUBSUB_TOPIC,
    Row,
    copy_blocks,
    hashes,
    publish_request,
    rows,
)
from bench.support import (
    COPY_PLAIN,
    Bench,
    bench_node,
    copy_in,
    make_plain,
    options,
    publish,
    report,
    seconds,
    used,
)
from message.validate import Policy, admit
from store.db.bulk import (
    COPY_HASHES,
    COPY_MESSAGES,
    HEADER,
    TRAILER,
    hash_blocks,
    in_order,
    message_blocks,
)


def copy_rows(bench: Bench, data: list[Row], digests: list[bytes]) -> None:
    """Send rows one by one; the commit is part of it."""
    with bench.connection.cursor() as cursor, cursor.copy(COPY_PLAIN) as copy:
        copy.set_types(["int8", "bytea", "text", "text", "bytea"])
        for row, digest in zip(data, digests, strict=True):
            copy.write_row((row.timestamp, digest, PUBSUB_TOPIC, row.content_topic, row.payload))


def plain_seconds(bench: Bench, data: list[Row]) -> tuple[float, float]:
    """COPY into a plain table: row by row, and of prepared blocks."""
    digests = hashes(data)
    blocks = copy_blocks(data, digests)
    taken = []
    for work in (
        lambda: copy_rows(bench, data, digests),
        lambda: copy_in(bench, COPY_PLAIN, blocks),
    ):
        make_plain(bench, "ts, hash")
        taken.append(seconds(work))
    return taken[0], taken[1]


def own_tables_seconds(bench: Bench, data: list[Row]) -> float:
    """COPY into ``messages`` and ``hashes`` as the node has them."""
    messages, located = [HEADER], [HEADER]
    for start in range(0, len(data), BATCH):
        request = publish_request(data[start : start + BATCH])
        batch = admit(request.messages, data[-1].timestamp, Policy(max_drift_ns=None)).batch
        ordered = in_order(batch)
        messages += message_blocks(ordered, 0)
        located += hash_blocks(ordered)
    messages.append(TRAILER)
    located.append(TRAILER)
    return seconds(lambda: copy_in(bench, COPY_MESSAGES, messages)) + seconds(
        lambda: copy_in(bench, COPY_HASHES, located)
    )


def main() -> None:
    """Measure, baseline and node in turn, each on fresh rows."""
    count = options(__doc__ or "").messages
    with bench_node("--max-clock-drift", "off") as bench:
        first, second = rows(count, seed=1), rows(count, seed=2)
        baseline, blocks = plain_seconds(bench, first)
        before = used(bench)
        node = seconds(lambda: publish(bench, first))
        after = used(bench)
        own = own_tables_seconds(bench, second)
    report(
        benchmark="publish",
        messages=count,
        payload_bytes=PAYLOAD_BYTES,
        node_per_s=count / node,
        copy_plain_per_s=count / baseline,
        copy_own_tables_per_s=count / own,
        copy_plain_blocks_per_s=count / blocks,
        ratio=baseline / node,
        ratio_blocks=blocks / node,
        ratio_own_tables=own / node,
        **after.since(before, count),
    )


if __name__ == "__main__":
    main()
