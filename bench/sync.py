"""Benchmark of two nodes that become equal by ``storenode sync``, and of the transfer.

The first line is about a few messages that either side lacks among many that both hold: from the
call of ``storenode sync`` until it has ended and both databases are equal. The second is about many
that one side lacks, against the rate of the ``PublishStream`` by which the other got them. Both are
in clear text. The third is the first once more, over TLS and, once the IDs are in memory, in the
compact mode. All messages lie within 40 minutes, those that are missing at random in it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.data import rows, scattered
from bench.support import (
    Bench,
    Used,
    bench_node_on,
    options,
    publish,
    report,
    seconds,
    settle,
    used,
)
from store.embedded import EmbeddedPostgres
from tests.faults.processes import metrics
from tests.support.credentials import Pki
from tests.support.node import COMMAND, clean_environment

SPAN_NS = 40 * 60 * 10**9
"""The span of all messages: within the newest hour, which a node compares from memory."""

OFFSET_NS = 60 * 10**9
"""The newest messages are this old: by itself a node leaves out what may still be on its way."""

PORTION = 100_000
"""Rows that are in memory at a time."""

FREE = ("--max-clock-drift", "off", "--gossip", "off")
MAX_LOADING_S = 120
HASHES = "copy (select hash from storenode.messages order by hash) to stdout (format binary)"


@dataclass(frozen=True, slots=True)
class Pair:
    """The caller synchronizes with the callee."""

    caller: Bench
    callee: Bench
    options: tuple[str, ...] = ()

    def sync(self) -> tuple[float, dict[str, Any], dict[str, float]]:
        """Run one ``storenode sync``; return its seconds, report, and processor time."""
        command = [COMMAND, "sync", "--json", "--admin", self.caller.node.admin, *self.options]
        before, start = self.used(), time.perf_counter()
        ended = subprocess.run(command, capture_output=True, env=clean_environment(), check=False)
        taken = time.perf_counter() - start
        assert ended.returncode == 0, ended
        cost = {
            f"{side}_{part}_cpu_s": getattr(now, part) - getattr(then, part)
            for side, now, then in zip(("caller", "callee"), self.used(), before, strict=True)
            for part in ("node", "postgres")
        }
        found = json.loads(ended.stdout)
        assert found["in_sync"], found
        assert digest(self.caller) == digest(self.callee), "the databases differ"
        return taken, found, cost

    def wait_until_in_memory(self, count: int) -> None:
        """Wait until either node has read that many IDs from its database."""
        deadline = time.monotonic() + MAX_LOADING_S
        for bench in (self.caller, self.callee):
            while metrics(bench.node).get(("storenode_index_entries",), 0.0) < count:
                assert time.monotonic() < deadline, "a node does not read its IDs into memory"
                time.sleep(0.05)

    def used(self) -> tuple[Used, Used]:
        """Read the processor time of the processes of either side."""
        return used(self.caller.node), used(self.callee.node)


def digest(bench: Bench) -> bytes:
    """Return a hash over the hashes of all messages in a database."""
    whole = hashlib.blake2b()
    with bench.connection.cursor() as cursor, cursor.copy(HASHES) as copy:
        for block in copy:
            whole.update(block)
    return whole.digest()


@dataclass(frozen=True, slots=True)
class Stores:
    """The data directories of two nodes that hold the same messages at first."""

    caller: Path
    callee: Path

    @contextmanager
    def clear(self) -> Iterator[Pair]:
        """Run both, in clear text."""
        with (
            bench_node_on(self.callee, *FREE) as callee,
            bench_node_on(self.caller, *FREE, "--peer", callee.node.peer) as caller,
        ):
            yield Pair(caller, callee)

    @contextmanager
    def secured(self) -> Iterator[Pair]:
        """Run both, with certificates."""
        pki = Pki(self.caller.parent)

        def secured(name: str, other: str) -> tuple[str, ...]:
            return (*FREE, *pki.peer(f"{name}.example", "--allow-peer", f"{other}.example"))

        with bench_node_on(self.callee, *secured("callee", "caller")) as callee:
            address = f"callee.example@{callee.node.peer}"
            with bench_node_on(
                self.caller, *secured("caller", "callee"), "--peer", address
            ) as caller:
                yield Pair(caller, callee, ("--tls-ca", str(pki.ca)))


@contextmanager
def stores(span: tuple[int, int], count: int) -> Iterator[Stores]:
    """Fill a store, and copy it to a second one."""
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        first, second = Path(directory, "first"), Path(directory, "second")
        with bench_node_on(first, *FREE) as bench:
            step_ns = SPAN_NS // count
            for done in range(0, count, PORTION):
                start_ns, size = span[0] + done * step_ns, min(PORTION, count - done)
                publish(bench, rows(size, seed=done, start_ns=start_ns, step_ns=step_ns))
            settle(bench)
        copy_node(first, second)
        yield Stores(second, first)


def copy_node(source: Path, target: Path) -> None:
    """Copy the data directory of a node that is off, and make it that of another store."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    (target / "node-id").unlink()
    with (
        EmbeddedPostgres(target) as server,
        psycopg.connect(server.url) as connection,
    ):
        connection.execute("update storenode.store set store_id = gen_random_uuid()")


def apart(both: Pair, span: tuple[int, int], missing: int, seed: int) -> None:
    """Let both sides lack some of many, the caller one more."""
    publish(both.caller, scattered(missing, *span, seed=seed))
    publish(both.callee, scattered(missing + 1, *span, seed=seed + 1))


def few(both: Pair, name: str, count: int, missing: int) -> None:
    """Sync two stores that each lack a few of many messages."""
    taken, found, cost = both.sync()
    assert (found["messages_sent"], found["messages_received"]) == (missing, missing + 1), found
    again, equal, again_cost = both.sync()
    report(
        benchmark=name,
        messages=count,
        missing_on_each_side=missing,
        equality=found["equality"],
        compact=found["compact"],
        seconds=taken,
        session_seconds=found["seconds"],
        round_trips=found["round_trips"],
        payload_bytes=found["bytes_sent"] + found["bytes_received"],
        **cost,
        equal_seconds=again,
        equal_cpu_s=sum(again_cost.values()),
        equal_bytes=equal["bytes_sent"] + equal["bytes_received"],
    )


def many(both: Pair, span: tuple[int, int], count: int, missing: int) -> None:
    """Sync two stores of which one lacks many messages."""
    data = scattered(missing, *span, seed=3)
    published = seconds(lambda: publish(both.callee, data))
    taken, found, cost = both.sync()
    assert found["messages_received"] == missing, found
    report(
        benchmark="transfer",
        messages=count,
        missing_on_one_side=missing,
        seconds=taken,
        session_seconds=found["seconds"],
        transferred_per_s=missing / taken,
        published_per_s=missing / published,
        ratio=published / taken,
        payload_bytes=found["bytes_sent"] + found["bytes_received"],
        **cost,
    )


def main() -> None:
    """Measure both."""
    given = options(__doc__, messages=1_000_000, missing=1_000, many=100_000)
    end_ns = time.time_ns() - OFFSET_NS
    span = end_ns - SPAN_NS, end_ns
    with stores(span, given.messages) as two:
        with two.clear() as both:
            assert both.sync()[1]["round_trips"] == 1, "they are equal at first"
            apart(both, span, given.missing, seed=1)
            few(both, "sync", given.messages, given.missing)
            many(both, span, given.messages, given.many)
            apart(both, span, given.missing, seed=4)
        with two.secured() as both:
            count = given.messages + given.many
            both.wait_until_in_memory(count)
            few(both, "sync over TLS", count, given.missing)
