"""SDS messages through ``PublishStream`` in batches of 1,000: processor time of a message.

The messages are those of participants, 100 bytes of content each, whose IDs the node can recompute;
each names the last two. With ``--against``, the path of another installation of the command, nodes
of that one and of this one take turns, each on an empty database, and the ratio is that of the
processor time that node and Postgres have used together, the median of the rounds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import grpc
import psycopg

from bench.data import BATCH, PUBSUB_TOPIC, STEP_NS, Row, batches, publish_request
from bench.support import Bench, publish_requests, report, settle, used
from store.embedded import running_url
from storenode.message.hashing import message_hash
from storenode.sds.envelope import Entry, SdsMessage, encode_message
from storenode.sds.naming import content_id
from tests.support.node import COMMAND, NodeProcess

ROUNDS = 5
CHANNELS = 20
SENDERS = 5
HISTORY = 2
CONTENT_BYTES = 100
OPTIONS = ("--log-level", "warning", "--sync-interval", "0", "--max-clock-drift", "off")
TOPIC = "/sds/1/bench/proto"


def conversation(count: int) -> Iterator[Row]:
    """Messages of some channels in turn, ascending in time."""
    dice = random.Random(1)
    histories: list[tuple[Entry, ...]] = [()] * CHANNELS
    first_ns = time.time_ns() - count * STEP_NS
    for number in range(count):
        channel, lamport = f"channel-{number % CHANNELS}", 1_763_625_600_000 + number
        sender, content = f"sender-{dice.randrange(SENDERS)}", dice.randbytes(CONTENT_BYTES)
        history = histories[number % CHANNELS]
        message_id = content_id(channel, sender, lamport, history, content)
        payload = encode_message(
            SdsMessage(channel, message_id, sender, lamport, history, content=content)
        )
        row = Row(first_ns + number * STEP_NS, TOPIC, payload)
        digest = message_hash(PUBSUB_TOPIC, payload, TOPIC, None, row.timestamp)
        histories[number % CHANNELS] = (*history, Entry(message_id, digest))[-HISTORY:]
        yield row


def spent(program: str, data: Sequence[Row]) -> dict[str, float]:
    """Microseconds of processor time of a message, by process, on a new node."""
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        node = NodeProcess(Path(directory, "node"), OPTIONS, program=(program,))
        try:
            node.start()
            url = running_url(node.data_dir)
            assert url is not None
            with (
                psycopg.connect(url, autocommit=True) as connection,
                grpc.insecure_channel(node.listen) as channel,
            ):
                bench = Bench(node, url, connection)
                requests = [publish_request(batch) for batch in batches(list(data))]
                publish_requests(channel, requests[:1], BATCH)
                settle(bench)
                before = used(bench)
                publish_requests(channel, requests[1:], len(data) - BATCH)
                return used(bench).since(before, len(data) - BATCH)
        finally:
            node.close()


def main() -> None:
    """Measure in turn, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=60_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--against", metavar="PROGRAM", help="another installation's storenode")
    given = parser.parse_args()
    data = list(conversation(given.messages + BATCH))
    programs = {"this": COMMAND} | ({"other": given.against} if given.against else {})
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(given.rounds):
        order = list(programs)[:: 1 if number % 2 else -1]
        rounds.append({name: spent(programs[name], data) for name in order})
    figures: dict[str, object] = {}
    for name in programs:
        for process in ("node_cpu_us", "postgres_cpu_us"):
            figures[f"{name}_{process}"] = median(each[name][process] for each in rounds)
    if given.against:
        ratios = [_sum(each["this"]) / _sum(each["other"]) for each in rounds]
        figures |= {"ratio": median(ratios), "ratios": [round(ratio, 3) for ratio in ratios]}
    report(benchmark="publish_sds", messages=given.messages, rounds=given.rounds, **figures)


def _sum(figures: dict[str, float]) -> float:
    return figures["node_cpu_us"] + figures["postgres_cpu_us"]


if __name__ == "__main__":
    main()
