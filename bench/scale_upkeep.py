"""What upkeep of a large node costs: vacuum, a backup, a peer that lacks messages, retention.

The backup is a copy of the stopped node's directory, and its restore that a node starts on it and
stops again. The copy becomes a store of its own that lacks a thousand messages at random times,
which ``storenode sync`` over everything finds; then the oldest third of its time is dropped from
it, and it is deleted. The node itself keeps what it holds, and the thousand messages more.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.data import scattered
from bench.disk import read
from bench.support import Bench, bench_node_on, publish, report, seconds
from bench.sync import Pair, copy_node
from tests.support.node import COMMAND, clean_environment

MISSING: Final = 1_000
_EVERYTHING: Final = ("--from", "0", "--to", "2100-01-01T00:00:00Z")
_AUTOVACUUMS: Final = """
select coalesce(sum(autovacuum_count), 0)::bigint, coalesce(sum(autoanalyze_count), 0)::bigint
from pg_stat_all_tables
"""


def upkeep(directory: Path, options: Sequence[str], start_ns: int, end_ns: int) -> None:
    """Measure all of it on the node in ``directory``, whose messages lie between these times."""
    node, other = directory / "node", directory / "copy"
    figures: dict[str, float] = {}
    with bench_node_on(node, *options) as bench:
        messages = read(bench.url).messages
        vacuums = bench.connection.execute(_AUTOVACUUMS).fetchone()
        figures["vacuum_s"] = seconds(lambda: bench.connection.execute("vacuum (analyze)"))
    try:
        figures["backup_s"] = seconds(lambda: copy_node(node, other))
        figures["restored_start_s"] = seconds(lambda: _start(other, options))
        figures |= _missing(node, other, options, (start_ns, end_ns))
        figures |= _retention(other, options, start_ns + (end_ns - start_ns) // 3)
    finally:
        shutil.rmtree(other, ignore_errors=True)
    autovacuums, autoanalyzes = vacuums or (0, 0)
    report(upkeep_of=messages, autovacuums=autovacuums, autoanalyzes=autoanalyzes, **figures)


def _missing(
    node: Path, other: Path, options: Sequence[str], span: tuple[int, int]
) -> dict[str, float]:
    """Let the copy find what it lacks: seconds, processor time, bytes, most memory."""
    quiet = (*options, "--gossip", "off")
    with bench_node_on(node, *quiet) as callee:
        publish(callee, scattered(MISSING, *span))
        with bench_node_on(other, *quiet, "--peer", callee.node.peer) as caller:
            taken, found, cost = Pair(caller, callee, _EVERYTHING).sync()
            assert found["messages_received"] == MISSING, found
            return {
                "missing": MISSING,
                "sync_s": taken,
                "sync_cpu_s": sum(cost.values()),
                "sync_bytes": found["bytes_sent"] + found["bytes_received"],
                "caller_most_mib": _most_mib(caller),
                "callee_most_mib": _most_mib(callee),
            }


def _start(node: Path, options: Sequence[str]) -> None:
    with bench_node_on(node, *options):
        pass


def _most_mib(bench: Bench) -> float:
    """The most memory that the node has had since its start."""
    status = Path(f"/proc/{bench.node.process.pid}/status").read_text()
    (peak_kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(peak_kib) / 1024


def _retention(node: Path, options: Sequence[str], before_ns: int) -> dict[str, float]:
    """Drop what is older, while the node runs: seconds, and the bytes that it gives back."""
    with bench_node_on(node, *options) as bench:
        before = read(bench.url)
        age_s = _age_s(bench, before_ns)
        command = [COMMAND, "db", "prune", "--data-dir", str(node), "--retention", f"{age_s}s"]
        command.append("--retention-confirm")
        # On a busy machine transactions of the node itself may last for longer than the default.
        command += ["--retention-lock-timeout", "10s"]

        def prune() -> None:
            subprocess.run(command, check=True, env=clean_environment(), capture_output=True)

        taken = seconds(prune)
        after = read(bench.url)
    return {
        "retention_s": taken,
        "retention_messages": before.messages - after.messages,
        "retention_bytes": before.total_bytes - after.total_bytes,
    }


def _age_s(bench: Bench, time_ns: int) -> int:
    statement = "select extract(epoch from clock_timestamp())::bigint - %s"
    row = bench.connection.execute(statement, (time_ns // 10**9,)).fetchone()
    assert row is not None
    return int(row[0])
