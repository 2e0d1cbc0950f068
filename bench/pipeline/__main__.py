"""Jobs of the pipeline against ADBC with pyarrow, and against DuckDB, on the same data.

Names choose measures; without any, all are taken. ``ratio`` is the baseline's processor time
against the job's: higher is better. Of ``verify`` and ``audit`` it is the time that passes on
``local[1]`` against ``local[2]``. ``per_cpu_s`` is messages, or edges, per second of one core.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.pipeline import baselines, jobs
from bench.pipeline.claims import EDGES_PER_CHANNEL, write_claims
from bench.pipeline.cpu import Used, apart, postgres_cpu_s
from bench.pipeline.world import filled_database
from bench.support import report

FEW: Final = ("ts", "hash", "payload")
BARS: Final = {
    "source": 0.5,
    "archive": 0.35,
    "fingerprint": 0.2,
    "hashes": 0.6,
    "missing": 0.15,
    "incomplete": 0.15,
    "verify": 1.4,
    "audit": 1.4,
}
_ON_CLAIMS: Final = {"missing", "incomplete", "audit"}


class Measures:
    """The measures, and the data that they share, made when the first of them needs it."""

    def __init__(self, directory: Path, messages: int, url: str) -> None:
        self._directory = directory
        self._messages = messages
        self._url = url
        self._lake = directory / "lake"
        self._claims: list[str] = []

    def source(self) -> None:
        """All columns, then those that come as the database has them."""
        for names, statements in (
            (None, (baselines.MESSAGES, baselines.SDS)),
            (FEW, (baselines.FEW,)),
        ):
            before = postgres_cpu_s()
            rows, alone = twice(baselines.read_rows, self._url, *statements)
            between = postgres_cpu_s()
            assert rows == self._messages, f"{rows} of {self._messages} messages were read"
            given = () if names is None else (names,)
            ran = apart(jobs.read_rows, self._url, *given)
            columns = "all" if names is None else ", ".join(names)
            served = (between - before) / 2, (postgres_cpu_s() - between) / 2
            self._report("source", alone, ran, columns=columns, **with_postgres(alone, ran, served))

    def archive(self) -> None:
        """The whole job: written, read back, published, and noted in the database."""
        file = self._directory / "one.parquet"
        before = postgres_cpu_s()
        rows, alone = twice(baselines.write_file, self._url, file)
        between = postgres_cpu_s()
        file.unlink()
        ran = apart(jobs.archive_all, self._url, self._lake)
        served = (between - before) / 2, postgres_cpu_s() - between
        assert ran.answer == rows, f"{ran.answer} of {rows} messages were archived"
        more = with_postgres(alone, ran, served)
        self._report("archive", alone, ran, wall_s=ran.first.wall_s, **more)

    def fingerprint(self) -> None:
        """Of every hour, from the archive's files."""
        self._against(baselines.fingerprints, jobs.fingerprints, "fingerprint", self._archived())

    def hashes(self) -> None:
        """Every message's hash."""
        self._against(baselines.wrong_hashes, jobs.wrong_hashes, "hashes", self._archived())

    def missing(self) -> None:
        """Every reference to a parent that is not held."""
        self._against(baselines.missing_parents, jobs.missing, "missing", self._audited())

    def incomplete(self) -> None:
        """Every message with a gap in its causal past."""
        self._against(baselines.incomplete, jobs.incomplete, "incomplete", self._audited())

    def verify(self) -> None:
        """The whole job, on one core and on two."""
        self._archived()
        taken = {}
        for cores in (1, 2):
            ran = apart(jobs.verify_all, self._lake, f"local[{cores}]")
            assert ran.answer, "the archive is not sound"
            taken[cores] = ran.first.wall_s
        self._scaled("verify", taken)

    def audit(self) -> None:
        """Everything that is looked for, on one core and on two."""
        files = self._audited()
        taken = {
            cores: apart(jobs.audit_all, files, f"local[{cores}]").first.wall_s for cores in (1, 2)
        }
        self._scaled("audit", taken)

    def _archived(self) -> list[str]:
        if not self._lake.exists():
            apart(jobs.archive_all, self._url, self._lake)
        return jobs.files_of(self._lake)

    def _audited(self) -> list[str]:
        if not self._claims:
            channels = max(1, self._messages // EDGES_PER_CHANNEL)
            self._claims = write_claims(self._directory, channels)
        return self._claims

    def _against(
        self,
        baseline: Callable[[list[str]], tuple[Any, Used]],
        job: Callable[[list[str]], jobs.Ran[Any]],
        name: str,
        files: list[str],
    ) -> None:
        wanted, alone = twice(baseline, files)
        ran = apart(job, files)
        assert ran.answer == wanted, f"{name}: the job and DuckDB answer differently"
        self._report(name, alone, ran)

    def _report(self, name: str, alone: Used, ran: jobs.Ran[Any], **more: object) -> None:
        again = {}
        if ran.again is not None:
            again = {
                "again_cpu_s": ran.again.cpu_s,
                "again_per_cpu_s": self._messages / ran.again.cpu_s,
                "again_ratio": alone.cpu_s / ran.again.cpu_s,
            }
        report(
            benchmark="pipeline",
            measure=name,
            messages=self._messages,
            **more,
            per_cpu_s=self._messages / ran.first.cpu_s,
            cpu_s=ran.first.cpu_s,
            baseline_cpu_s=alone.cpu_s,
            ratio=alone.cpu_s / ran.first.cpu_s,
            at_least=BARS[name],
            **again,
            session_cpu_s=ran.session.cpu_s,
        )

    def _scaled(self, name: str, taken: dict[int, float]) -> None:
        report(
            benchmark="pipeline",
            measure=name,
            messages=self._messages,
            one_core_s=taken[1],
            two_cores_s=taken[2],
            ratio=taken[1] / taken[2],
            at_least=BARS[name],
        )


def with_postgres(alone: Used, ran: jobs.Ran[Any], served: tuple[float, float]) -> dict[str, float]:
    """The same ratio when what Postgres used counts on both sides."""
    baseline_s, job_s = served
    return {
        "postgres_cpu_s": job_s,
        "baseline_postgres_cpu_s": baseline_s,
        "ratio_with_postgres": (alone.cpu_s + baseline_s) / (ran.first.cpu_s + job_s),
    }


def twice(function: Callable[..., tuple[Any, Used]], *args: object) -> tuple[Any, Used]:
    """A baseline's answer, and the less that it used in two processes."""
    answer, first = apart(function, *args)
    _, second = apart(function, *args)
    return answer, min(first, second, key=lambda used: used.cpu_s)


def main() -> None:
    """Take the measures, in their order."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.pipeline")
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(BARS)}")
    parser.add_argument("--messages", type=int, default=5_000_000, help="default: %(default)s")
    given = parser.parse_args()
    if unknown := [name for name in given.measures if name not in BARS]:
        parser.error(f"no measure is called {unknown[0]!r}: choose from {', '.join(BARS)}")
    # What was begun is taken down again also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [name for name in BARS if name in given.measures or not given.measures]
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as name:
        directory = Path(name)
        if set(chosen) <= _ON_CLAIMS:
            take(Measures(directory, given.messages, ""), chosen)
            return
        with filled_database(directory / "node", given.messages) as url:
            take(Measures(directory, given.messages, url), chosen)


def take(measures: Measures, chosen: list[str]) -> None:
    """Take the chosen measures."""
    for name in chosen:
        getattr(measures, name)()


if __name__ == "__main__":
    main()
