"""``PublishStream`` in batches of 1,000 against a binary COPY of the same rows.

The node's side includes the client: building and encoding requests, reading every answer; each
answered batch is committed with fsync on. The baselines get rows that were encoded before the
clock starts: one COPY into one plain table with the same primary key, and one COPY into each of
the node's own two tables of messages (``messages`` with its three indexes, and ``hashes``).
"""

from __future__ import annotations

import struct

from bench.data import (
    BATCH,
    COPY_HEADER,
    COPY_TRAILER,
    PAYLOAD_BYTES,
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


def plain_seconds(bench: Bench, data: list[Row]) -> float:
    """COPY into a plain table, then remove it."""
    blocks = copy_blocks(data, hashes(data))
    bench.connection.execute(PLAIN_TABLE.format(constraint="primary key (ts, hash)"))
    taken = seconds(
        lambda: copy_in(bench, f"copy plain ({PLAIN_COLUMNS}) from stdin (format binary)", blocks)
    )
    bench.connection.execute("drop table plain")
    return taken


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
        baseline = plain_seconds(bench, first)
        node = seconds(lambda: publish(bench, first))
        own = own_tables_seconds(bench, second)
    report(
        benchmark="publish",
        messages=count,
        payload_bytes=PAYLOAD_BYTES,
        node_per_s=count / node,
        copy_plain_per_s=count / baseline,
        copy_own_tables_per_s=count / own,
        ratio=baseline / node,
        ratio_own_tables=own / node,
    )


if __name__ == "__main__":
    main()
