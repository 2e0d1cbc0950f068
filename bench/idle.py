"""Processor time of an idle node, alone and with a peer, by the hour.

After `SETTLE_S` the node and its Postgres are left alone for ``--seconds``; then the same with a
peer that is connected and has nothing new. Printed is the processor time of node and Postgres, as
seconds in an hour, and the transactions of its database in a minute.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.data import rows
from bench.support import Bench, bench_node_on, options, publish, report, used
from tests.support.fleet import exchanging

SETTLE_S: Final = 10.0
MESSAGES: Final = 1_000
_HOUR_S: Final = 3_600.0
_OPEN: Final = ("--max-clock-drift", "off")
_TRANSACTIONS: Final = """
select xact_commit + xact_rollback from pg_stat_database where datname = current_database()
"""


def measure(name: str, bench: Bench, seconds: float) -> None:
    """Leave a node alone and print what it has used."""
    time.sleep(SETTLE_S)
    ((transactions,),) = bench.connection.execute(_TRANSACTIONS).fetchall()
    before, start_s = used(bench), time.monotonic()
    time.sleep(seconds)
    after, taken_s = used(bench), time.monotonic() - start_s
    ((transactions_after,),) = bench.connection.execute(_TRANSACTIONS).fetchall()
    report(
        benchmark="idle",
        node=name,
        seconds=taken_s,
        node_s_per_hour=(after.node - before.node) / taken_s * _HOUR_S,
        postgres_s_per_hour=(after.postgres - before.postgres) / taken_s * _HOUR_S,
        transactions_per_minute=(transactions_after - transactions) / taken_s * 60,
    )


def main() -> None:
    """Measure both."""
    given = options(__doc__, MESSAGES, seconds=60)
    data = rows(given.messages)
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory, ExitStack() as stack:
        node = stack.enter_context(bench_node_on(Path(directory, "node"), *_OPEN))
        publish(node, data)
        measure("alone", node, given.seconds)
        peer = stack.enter_context(
            bench_node_on(Path(directory, "peer"), *_OPEN, "--peer", node.node.peer)
        )
        exchanging(peer.node, 1)
        measure("with a peer", node, given.seconds)


if __name__ == "__main__":
    main()
