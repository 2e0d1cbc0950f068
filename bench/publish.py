"""``PublishStream`` in batches of 1,000 against a binary COPY of the same rows.

Both sides include the client, from the same values in Python: on the node's side building and
encoding requests and reading every answer, each answered batch being committed with fsync on; on
the other one COPY, row by row through psycopg, into one plain table with the same primary key, with
hashes that were computed beforehand. A stricter baseline is printed as well: COPY of blocks that
were encoded before the clock starts, into each of the node's own two tables of messages
(``messages`` with its three indexes, and ``hashes``). The processor time that each process has used
per message is printed beside them.

All of it is repeated, each time on a new node with an empty database and on new rows; the two sides
take turns in going first. The output is the median of the rounds, and the ratio of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from bench.data import BATCH, PAYLOAD_BYTES, STEP_NS, Row, hashes, publish_request, rows
from bench.support import (
    Bench,
    bench_node,
    copy_rows,
    make_plain,
    options,
    publish,
    report,
    seconds,
    used,
)
from store.db.insert import HEADER, TRAILER, hash_block, in_order, message_blocks
from store.db.statements import SQL
from storenode.message.rules import Policy
from tests.support.admission import admit

ROUNDS = 5


def copy_blocks(bench: Bench, statement: str, blocks: Iterable[bytes]) -> None:
    """Send prepared blocks by COPY; the commit is part of it."""
    with bench.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)


def plain_figures(bench: Bench, data: list[Row]) -> dict[str, float]:
    """Measure COPY into a plain table, in seconds."""
    digests = hashes(data)
    make_plain(bench, "ts, hash")
    return {"plain_s": seconds(lambda: copy_rows(bench, data, digests))}


def node_figures(bench: Bench, data: list[Row]) -> dict[str, float]:
    """Measure the seconds of publishing, and the processor time of each process."""
    before = used(bench.node)
    taken = seconds(lambda: publish(bench, data))
    return {"node_s": taken, **used(bench.node).since(before, len(data))}


def own_tables_seconds(bench: Bench, data: list[Row]) -> float:
    """COPY into ``messages`` and ``hashes`` as the node has them."""
    messages, located = [HEADER], [HEADER]
    for start in range(0, len(data), BATCH):
        request = publish_request(data[start : start + BATCH])
        batch = admit(request.messages, data[-1].timestamp, Policy(max_drift_ns=None)).batch
        ordered = in_order(batch, [0] * len(batch))
        messages += message_blocks(*ordered)
        located.append(hash_block(ordered[0]))
    messages.append(TRAILER)
    located.append(TRAILER)
    return seconds(lambda: copy_blocks(bench, SQL.messages.copy_messages, messages)) + seconds(
        lambda: copy_blocks(bench, SQL.messages.copy_hashes, located)
    )


def one_round(number: int, count: int) -> dict[str, float]:
    """Run all steps once on a new node; return seconds, and processor time per message."""
    data = rows(count, seed=2 * number)
    later = rows(count, seed=2 * number + 1, start_ns=data[-1].timestamp + STEP_NS)
    sides = [plain_figures, node_figures]
    figures: dict[str, float] = {}
    with bench_node("--max-clock-drift", "off") as bench:
        for side in sides if number % 2 == 0 else reversed(sides):
            figures |= side(bench, data)
        figures["own_s"] = own_tables_seconds(bench, later)
    return figures


def main() -> None:
    """Measure all rounds and print what they come to."""
    count = options(__doc__).messages
    rounds = [one_round(number, count) for number in range(ROUNDS)]

    def middle(name: str, over: str | None = None) -> float:
        return median(each[name] / (each[over] if over else 1) for each in rounds)

    report(
        benchmark="publish",
        messages=count,
        payload_bytes=PAYLOAD_BYTES,
        node_per_s=count / middle("node_s"),
        copy_plain_per_s=count / middle("plain_s"),
        copy_own_tables_per_s=count / middle("own_s"),
        ratio=middle("plain_s", "node_s"),
        ratios=[round(each["plain_s"] / each["node_s"], 3) for each in rounds],
        ratio_own_tables=middle("own_s", "node_s"),
        **{name: middle(name) for name in rounds[0] if name.endswith("_cpu_us")},
    )
