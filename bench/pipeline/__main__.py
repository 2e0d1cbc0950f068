"""The cost of a night of the pipeline by the size of a history and by the number of cores.

For each number of cores a fresh process with a fresh Spark archives, verifies and audits it in one
session, as `storenode pipeline nightly` does. Driver, JVM and workers are bound to so many cores of
the machine, and processor time is theirs; Postgres may use all cores, and is not counted.

    python -m bench pipeline --messages 1000000 10000000 16000000 --cores 1 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import psycopg

from bench.pipeline.cpu import apart
from bench.pipeline.night import night
from bench.pipeline.world import filled_database
from bench.support import report

_MESSAGES: Final = 1_000_000
_CORES: Final = 2
_MINUTE_S: Final = 60


def main(arguments: list[str] | None = None) -> int:
    """Measure each size with each number of cores, and print a line for each job."""
    parser = argparse.ArgumentParser(prog="bench pipeline", description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[_MESSAGES])
    parser.add_argument("--cores", type=int, nargs="+", default=[_CORES])
    options = parser.parse_args(arguments)
    for messages in options.messages:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            with filled_database(folder / "database", messages) as url:
                for cores in options.cores:
                    _measure(url, folder / f"archive-{cores}", messages, cores)
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
