"""Processor time of `archive`, `verify` and `audit` by the size of a history, on one machine.

Each size has a database of its own and a Spark of its own. Counted are the driver, Spark's JVM and
the workers, not Postgres. `--cores` are those that Spark uses.

    python -m bench pipeline --messages 1000000 10000000
    python -m bench.pipeline --messages 2000000 --cores 1
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.pipeline.cpu import measured, postgres_cpu_s
from bench.pipeline.world import filled_database
from bench.support import report
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.delta import DeltaArchive
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.spark import spark_session
from store.pipeline.verify import VerifyJob, verify

_MESSAGES: Final = 1_000_000
_MEBIBYTE: Final = 1024


def main(arguments: list[str] | None = None) -> int:
    """Measure each size, and print a table."""
    parser = argparse.ArgumentParser(prog="bench pipeline", description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[_MESSAGES])
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args(arguments)
    for messages in options.messages:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            with filled_database(folder / "database", messages) as url:
                found = measure(url, str(folder / "archive"), options.cores)
        for job, row in found.items():
            per_million = row["cpu_s"] * 1_000_000 / messages
            report(job=job, messages=messages, **row, cpu_s_per_million=per_million)
    return 0


def measure(url: str, path: str, cores: int) -> dict[str, dict[str, float]]:
    """Run the jobs one after the other; return for each the seconds, and the driver's memory."""
    settings = {"spark.sql.shuffle.partitions": str(2 * cores)}
    found: dict[str, dict[str, float]] = {}
    with spark_session(f"local[{cores}]", settings) as session:
        opened = DeltaArchive(path)
        jobs: dict[str, Callable[[], Any]] = {
            "archive": lambda: archive(session, ArchiveJob(url, opened)),
            "verify": lambda: verify(session, VerifyJob(opened, url)),
            "audit": lambda: audit(session, AuditJob(ArchiveMessages(session, opened))),
        }
        for name, job in jobs.items():
            postgres_s = postgres_cpu_s()
            _, used = measured(job)
            cpu_s = used.cpu_s - (postgres_cpu_s() - postgres_s)
            driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MEBIBYTE
            found[name] = {"cpu_s": cpu_s, "wall_s": used.wall_s, "driver_mib": driver}
    return found


if __name__ == "__main__":
    sys.exit(main())
