"""The cost of a night of the pipeline by the size of a history and by the number of cores.

For each number of cores a fresh process with a fresh Spark archives, verifies and audits it in one
session, as `storenode pipeline nightly` does. Driver, JVM and workers are bound to these cores of
the machine, and processor time is theirs; Postgres may use all cores, and is not counted.

    python -m bench pipeline --messages 1000000 10000000 16000000 --cores 1 2
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from bench.pipeline.cpu import apart, measured
from bench.pipeline.world import filled_database
from bench.support import report
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import audit_recorded
from store.pipeline.delta import DeltaArchive
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.spark import spark_session
from store.pipeline.verify import VerifyJob, verify

_MESSAGES: Final = 1_000_000
_CORES: Final = 2
_MINUTE_S: Final = 60


def main() -> None:
    """Measure each size with each number of cores, and print a line for each job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[_MESSAGES])
    parser.add_argument("--cores", type=int, nargs="+", default=[_CORES])
    options = parser.parse_args()
    for messages in options.messages:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            with filled_database(folder / "database", messages) as url:
                for cores in options.cores:
                    _measure(url, folder / f"archive-{cores}", messages, cores)


def _measure(url: str, path: Path, messages: int, cores: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate storenode.archived")  # each archive is the first
    jobs = apart(night, url, str(path), cores)
    jobs["night"] = {
        name: combine(each[name] for each in jobs.values()) for name, combine in _COMBINED.items()
    }
    for job, row in jobs.items():
        report(
            job=job,
            messages=messages,
            cores=cores,
            **row,
            core_minutes=row["cpu_s"] / _MINUTE_S,
            cpu_s_per_million=row["cpu_s"] * 1_000_000 / messages,
        )


_COMBINED: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "cpu_s": sum,
    "wall_s": sum,
    "driver_mib": max,
    "jvm_mib": max,
}


_KIBIBYTE: Final = 1024
_MEBIBYTE: Final = _KIBIBYTE**2


def night(url: str, path: str, cores: int) -> dict[str, dict[str, float]]:
    """Run the jobs in one session; return for each the seconds, and the greatest memory so far.

    ``driver_mib`` is the memory of this process, ``jvm_mib`` that of the JVM with its engine.
    """
    psutil.Process().cpu_affinity(list(range(cores)))  # The JVM and the workers inherit it.
    settings = {"spark.sql.shuffle.partitions": str(2 * cores)}
    found: dict[str, dict[str, float]] = {}
    with spark_session(f"local[{cores}]", settings) as session:
        opened = DeltaArchive(path)
        jobs: dict[str, Callable[[], Any]] = {
            "archive": lambda: archive(session, ArchiveJob(url, opened)),
            "verify": lambda: verify(session, VerifyJob(opened, url)),
            "audit": lambda: audit_recorded(ArchiveMessages(session, opened)),
        }
        for name, job in jobs.items():
            result, used = measured(job)
            assert result.sound, result.lines()
            found[name] = {
                "cpu_s": used.cpu_s,
                "wall_s": used.wall_s,
                "driver_mib": _peak_kib() / _KIBIBYTE,
                "jvm_mib": _jvm_bytes() / _MEBIBYTE,
            }
    return found


def _peak_kib() -> int:
    """Return the greatest memory of this process; that of `getrusage` may be its parent's."""
    (line,) = re.findall(
        r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return int(line)


def _jvm_bytes() -> int:
    children = psutil.Process().children(recursive=True)
    return sum(each.memory_info().rss for each in children if each.name() == "java")
