"""``PublishStream`` in batches of 1,000 against a binary COPY of the same rows.

Both sides include the client, from the same values in Python: on the node's side building and
encoding requests and reading every answer, each answered batch being committed with fsync on; on
the other one COPY, row by row through psycopg, into one plain table with the same primary key, with
hashes that were computed beforehand. Two stricter baselines are printed as well: the same COPY of
blocks that were encoded before the clock starts, and such a COPY into each of the node's own two
tables of messages (``messages`` with its three indexes, and ``hashes``).
"""

from __future__ import annotations

import struct

from bench.data import (
    BATCH,
    COPY_HEADER,
    COPY_TRAILER,
    PAYLOAD_BYTES,
    PUBSUB_TOPIC,
    Row,
    copy_blocks,
    field,
    hashes,
    publish_request,
    rows,
)
from bench.support import (
    PLAIN_COLUMNS,
    PLAIN_TABLE,
    Bench,
    bench_node,
    options,
    publish,
    report,
    seconds,
)
from message.record import RecordBatch
from message.validate import Policy, admit


def copy_in(bench: Bench, statement: str, blocks: list[bytes]) -> None:
    """Send prepared blocks; the commit is part of it."""
    with bench.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)


def copy_rows(bench: Bench, statement: str, data: list[Row], digests: list[bytes]) -> None:
    """Send rows one by one; the commit is part of it."""
    with bench.connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int8", "bytea", "text", "text", "bytea"])
        for row, digest in zip(data, digests, strict=True):
            copy.write_row((row.timestamp, digest, PUBSUB_TOPIC, row.content_topic, row.payload))


def plain_seconds(bench: Bench, data: list[Row]) -> tuple[float, float]:
    """COPY into a plain table: row by row, and of prepared blocks."""
    statement = f"copy plain ({PLAIN_COLUMNS}) from stdin (format binary)"
    digests = hashes(data)
    blocks = copy_blocks(data, digests)
    taken = []
    for work in (
        lambda: copy_rows(bench, statement, data, digests),
        lambda: copy_in(bench, statement, blocks),
    ):
        bench.connection.execute(PLAIN_TABLE.format(constraint="primary key (ts, hash)"))
        taken.append(seconds(work))
        bench.connection.execute("drop table plain")
    return taken[0], taken[1]


def own_tables_seconds(bench: Bench, data: list[Row]) -> float:
    """COPY into ``messages`` and ``hashes`` as the node has them."""
    messages, located = [COPY_HEADER], [COPY_HEADER]
    for start in range(0, len(data), BATCH):
        request = publish_request(data[start : start + BATCH])
        batch = admit(request.messages, data[-1].timestamp, Policy(max_drift_ns=None)).batch
        messages.append(message_block(batch))
        located.append(hash_block(batch))
    messages.append(COPY_TRAILER)
    located.append(COPY_TRAILER)
    return seconds(lambda: copy_in(bench, COPY_MESSAGES, messages)) + seconds(
        lambda: copy_in(bench, COPY_HASHES, located)
    )


COPY_MESSAGES = (
    "copy storenode.messages (ts, hash, topic, batch, head, payload, tail)"
    " from stdin (format binary)"
)
COPY_HASHES = "copy storenode.hashes (hash, ts, topic) from stdin (format binary)"


def message_block(batch: RecordBatch) -> bytes:
    """Rows of ``messages``."""
    return b"".join(
        struct.pack(">hiq", 7, 8, batch.timestamps[n])
        + field(batch.hashes[n])
        + field(batch.topic_keys[n])
        + struct.pack(">iq", 8, 0)
        + field(batch.heads[n])
        + field(batch.payloads[n])
        + field(batch.tails[n])
        for n in range(len(batch))
    )


def hash_block(batch: RecordBatch) -> bytes:
    """Rows of ``hashes``."""
    return b"".join(
        struct.pack(">h", 3)
        + field(batch.hashes[n])
        + struct.pack(">iq", 8, batch.timestamps[n])
        + field(batch.topic_keys[n])
        for n in range(len(batch))
    )


def main() -> None:
    """Measure, baseline and node in turn, each on fresh rows."""
    count = options(__doc__ or "").messages
    with bench_node("--max-clock-drift", "off") as bench:
        first, second = rows(count, seed=1), rows(count, seed=2)
        baseline, blocks = plain_seconds(bench, first)
        node = seconds(lambda: publish(bench, first))
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
    )


if __name__ == "__main__":
    main()
