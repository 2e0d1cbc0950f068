"""Reconciliation: processor time, bytes and messages beside the `negentropy` crate.

Both sides of a case run in this process, on indexes built beforehand; every result is checked to
be exact. `cold` stands for the first run on indexes that were never read, as a node that reconciles
every few minutes has it; the other figures are of warm runs. `--seeds` repeats each case with other
sets. The crate runs the same sets in a program of its own (`bench/peers/negentropy`), before
and after, on storages built beforehand; it is built where there is cargo. Its initiator alone
learns the differences. Where it cannot be had, the lines are without ratios.

Each line says whether compiled code did the work (`kernel`). If so, the processor time without it
stands beside it: the payloads are the same.

`compact_` stands before the figures of the compact mode (`bench.compact`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.compact import compact_cost, enough, views_of
from bench.reconcile_sets import CASES, SEED, Case, Pair, pair
from bench.support import report
from reconcile import kernel
from reconcile.ids import SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.session import Result
from tests.support.reconcile_pair import Node, initiator, join, responder

PEER = Path(__file__).parent / "peers" / "negentropy"
RUNS = 15
PYTHON_RUNS = 5
PEER_RUNS = 8  # before, and as many after
COLD_RUNS = 3
HAS_KERNEL = kernel.compiled is not None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one reconciliation.

    Attributes:
        cpu_s: processor seconds of both sides: least and median of the runs.
        sent: payload bytes of the initiator and of the responder.
        messages: payloads of the initiator and of the responder.
        cold_s: of first runs, the median; None: not measured.
    """

    cpu_s: tuple[float, float]
    sent: tuple[int, int]
    messages: tuple[int, int]
    cold_s: float | None = None


def run_ours(sets: Pair, views: tuple[IndexView, IndexView]) -> tuple[float, Node, Node]:
    """Return the processor seconds of one session, which is checked, and its sides."""
    own, other = map(MemoryView, views)
    first, second = initiator(own, shards=(0,)), responder(other, shards=(0,))
    first.checks = second.checks = False
    start = time.process_time()
    join(first, second)
    taken = time.process_time() - start
    check(first.result, sets.only_ours, sets.only_theirs)
    check(second.result, sets.only_theirs, sets.only_ours)
    return taken, first, second


def ours(sets: Pair, views: tuple[IndexView, IndexView], runs: int = RUNS, cold: int = 0) -> Cost:
    """Measure it here."""
    first_runs = [run_ours(sets, views_of(sets))[0] for _ in range(cold)]
    taken: list[float] = []
    while not enough(taken, runs):
        seconds, first, second = run_ours(sets, views)
        taken.append(seconds)
    return Cost(
        (min(taken), statistics.median(taken)),
        (sum(map(len, first.payloads)), sum(map(len, second.payloads))),
        (len(first.payloads), len(second.payloads)),
        statistics.median(first_runs) if first_runs else None,
    )


def check(result: Result, to_send: SyncIds, to_receive: SyncIds) -> None:
    """Fail unless a side has found just what differs."""
    assert result.to_send == to_send, "a session found other IDs to send"
    assert result.to_receive == to_receive, "a session found other IDs to receive"


def built_peer(directory: Path) -> Path | None:
    """Build the program around the crate; None if it cannot be built here."""
    cargo = shutil.which("cargo")
    if cargo is None:
        return None
    command = [cargo, "build", "--release", "--locked", "--quiet", "--manifest-path"]
    done = subprocess.run(
        [*command, str(PEER / "Cargo.toml"), "--target-dir", str(directory)], check=False
    )
    program = directory / "release" / "reconcile-peer"
    return program if done.returncode == 0 and program.exists() else None


def theirs(program: Path, directory: Path, sets: Pair) -> Cost:
    """Measure the crate, whose result is checked too."""
    files = [directory / "ours", directory / "theirs"]
    for path, ids in zip(files, (sets.ours, sets.theirs), strict=True):
        records = np.empty(len(ids), [("timestamp", "<i8"), ("hash", "u1", 32)])
        records["timestamp"], records["hash"] = ids.timestamps, ids.hashes
        records.tofile(path)
    command = [str(program), *map(str, files), str(PEER_RUNS)]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for found, ids in (("have", sets.only_ours), ("need", sets.only_theirs)):
        xor = np.bitwise_xor.reduce(ids.words, axis=0).tobytes().hex()
        assert (said[found], said[f"{found}_xor"]) == (len(ids), xor), "the crate is not exact"
    seconds = said["cpu_seconds"]
    cpu_s = min(seconds), statistics.median(seconds)
    return Cost(cpu_s, tuple(said["bytes"]), tuple(said["messages"]))


def run_case(case: Case, program: Path | None, directory: Path, scale: float, seed: int) -> bool:
    """Measure one case; whether it keeps to its bars."""
    sets = pair(case, scale, seed)
    views = (IndexView.of(sets.ours), IndexView.of(sets.theirs))
    reference = None if program is None else theirs(program, directory, sets)
    mine = ours(sets, views, cold=COLD_RUNS)
    assert mine.cold_s is not None
    with kernel.python_only():
        without = ours(sets, views, PYTHON_RUNS) if HAS_KERNEL else mine
    assert (without.sent, without.messages) == (mine.sent, mine.messages), "the kernel says else"
    if program is not None and reference is not None:
        again = theirs(program, directory, sets)
        reference = min(reference, again, key=lambda cost: cost.cpu_s[0])
    figures: dict[str, object] = {
        "benchmark": "reconcile",
        "case": case.name,
        "seed": seed,
        "kernel": HAS_KERNEL,
        "cpu_ms": 1e3 * mine.cpu_s[0],
        "cpu_ms_median": 1e3 * mine.cpu_s[1],
        "cpu_ms_cold": 1e3 * mine.cold_s,
        "bytes_out": mine.sent[0],
        "bytes_in": mine.sent[1],
        "messages_out": mine.messages[0],
        "messages_in": mine.messages[1],
        "plain_bytes": 40 * (len(sets.ours) + len(sets.theirs)),
    }
    if HAS_KERNEL:
        figures["python_cpu_ms"] = 1e3 * without.cpu_s[0]
    compact = compact_cost(sets, RUNS)
    figures |= compact
    kept = max(mine.messages) <= case.messages_bar
    compact_cpu_bar, compact_bytes_bar = case.bars_of_compact
    bars = {
        "cpu_ratio": case.cpu_bar,
        "bytes_ratio": case.bytes_bar,
        "compact_cpu_ratio": compact_cpu_bar,
        "compact_bytes_ratio": compact_bytes_bar,
    }
    if reference is not None:
        crate_s, crate_bytes = reference.cpu_s[0], sum(reference.sent)
        ratios = {
            "cpu_ratio": mine.cpu_s[0] / crate_s,
            "bytes_ratio": sum(mine.sent) / crate_bytes,
            "compact_cpu_ratio": compact["compact_cpu_ms"] / 1e3 / crate_s,
            "compact_bytes_ratio": compact["compact_bytes"] / crate_bytes,
        }
        figures |= {
            "crate_cpu_ms": 1e3 * crate_s,
            "crate_bytes": crate_bytes,
            "crate_messages": max(reference.messages),
            **ratios,
        }
        if HAS_KERNEL:
            figures["python_cpu_ratio"] = without.cpu_s[0] / crate_s
        kept &= all(bar is None or ratios[name] <= bar for name, bar in bars.items())
    figures |= {f"{name}_bar": bar for name, bar in bars.items() if bar is not None}
    report(**figures, messages_bar=case.messages_bar, kept=kept)
    return kept


def main() -> None:
    """Measure; a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="not %(default)s, which bars are for"
    )
    parser.add_argument("--case", action="append", help="only cases whose name has this in it")
    parser.add_argument("--seeds", type=int, default=1, help="sets of each case, not %(default)s")
    given = parser.parse_args()
    scale = given.messages / 1_000_000
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as temporary:
        directory = Path(temporary)
        program = built_peer(directory / "target")
        kept = [
            run_case(case, program, directory, scale, SEED + number)
            for case in CASES
            for number in range(given.seeds)
            if given.case is None or any(part in case.name for part in given.case)
        ]
    report(benchmark="reconcile", cases=len(kept), kept=sum(kept))
