"""The start of a node, and the processor time of nodes without clients.

A node with its own Postgres on a data directory that was used before, from the call of its command
until it is ready, five times. Then a node alone, and two of which one has the other as its peer,
for ``--seconds`` after a minute: processor time of node and of Postgres, as seconds an hour.
``--messages`` has no effect.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from bench.pipeline.cpu import own_cpu_s
from bench.support import options, report, seconds, used
from tests.support.node import NodeProcess, running_node

STARTS: Final = 5
SETTLED_S: Final = 60
_QUIET: Final = ("--log-level", "warning")
_HOUR_S: Final = 3_600


def start(folder: Path) -> None:
    """Measure the starts."""
    node = NodeProcess(folder / "started", _QUIET)
    taken, spent = [], []
    for _ in range(STARTS + 1):
        taken.append(seconds(node.start))
        spent.append(own_cpu_s(psutil.Process(node.process.pid)))
        node.terminate()
    node.close()
    report(
        benchmark="start",
        ready_s=statistics.median(taken[1:]),
        ready_least_s=min(taken[1:]),
        node_cpu_s=statistics.median(spent[1:]),
        first_s=taken[0],
    )


def idle(folder: Path, wanted_s: int) -> None:
    """Measure a node alone, and a pair, at the same time."""
    with (
        running_node(folder / "alone", *_QUIET) as alone,
        running_node(folder / "callee", *_QUIET) as callee,
        running_node(folder / "caller", *_QUIET, "--peer", callee.peer) as caller,
    ):
        nodes = {"alone": alone, "called by a peer": callee, "with a peer": caller}
        time.sleep(SETTLED_S)
        before = {name: used(node) for name, node in nodes.items()}
        time.sleep(wanted_s)
        after = {name: used(node) for name, node in nodes.items()}
    for name, spent in after.items():
        report(
            benchmark="idle",
            case=name,
            node_s_per_hour=(spent.node - before[name].node) * _HOUR_S / wanted_s,
            postgres_s_per_hour=(spent.postgres - before[name].postgres) * _HOUR_S / wanted_s,
        )


def main() -> None:
    """Measure starts, then idle nodes."""
    wanted_s = options(__doc__, 0, seconds=300).seconds
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        start(Path(directory))
        idle(Path(directory), wanted_s)
