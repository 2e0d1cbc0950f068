"""Jobs of the pipeline against ADBC with pyarrow, and against DuckDB, on the same data.

Names choose measures; without any, all are taken. ``ratio`` is the baseline's processor time
against the job's: higher is better. ``per_cpu_s`` is messages, or edges, per second of one core.
Every job is run on a fifth of the data as well: by the line through both, ``fixed_cpu_s`` is what
it costs whatever the size, ``us_each`` what each message or edge costs, and ``holds_from`` so many
of them the least at which the ratio is what it should be. ``cores`` prints seconds that pass, on
``local[1]`` and on ``local[2]``.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

from bench.pipeline import baselines, jobs
from bench.pipeline.claims import EDGES_PER_CHANNEL, write_claims
from bench.pipeline.cpu import Used, apart, postgres_cpu_s
from bench.pipeline.same import keep_batch
from bench.pipeline.table import SAME_ROWS, as_table
from bench.pipeline.world import filled_database, first_ns, step_ns
from bench.support import report
from store.pipeline.columns import NAMES
from store.pipeline.lake import LakeFile

T = TypeVar("T")
_ALWAYS: Final = (0, 2**63 - 1)

FEW: Final = ("ts", "hash", "payload")
BARS: Final = {
    "source": 0.5,
    "archive": 0.35,
    "fingerprint": 0.2,
    "hashes": 0.6,
    "missing": 0.15,
    "incomplete": 0.15,
    "cores": 1.4,
}
_ON_CLAIMS: Final = {"missing", "incomplete"}
_FEWER: Final = 5
"""The smaller size of each job is this part of the whole."""

_TIMES: Final = 3
"""How often seconds that pass are measured, in turns, of which the median counts: they depend on
what else the machine does."""

_NOTHING_S: Final = 0.01
"""Processor time is counted in hundredths of a second."""


class Alone(NamedTuple):
    """What a baseline used, and what Postgres did for it."""

    used: Used
    postgres_s: float


class Measures:
    """The measures, and the data that they share, made when the first of them needs it."""

    def __init__(self, directory: Path, messages: int, url: str) -> None:
        self._directory = directory
        self._messages = messages
        self._url = url
        self._lake = directory / "lake"
        self._claims: dict[int, list[str]] = {}

    def source(self) -> None:
        """All columns, then those that come as the database has them."""
        with as_table(self._url):
            same = self._read_alone(SAME_ROWS)
        rows, decoded = twice(baselines.read_decoded, self._url)
        assert rows == self._messages, f"{rows} of {self._messages} messages were decoded"
        views = self._read_alone(baselines.MESSAGES, baselines.SDS)
        self._source(NAMES, views, {"same_rows": same.used, "decoded": decoded})
        self._source(FEW, self._read_alone(baselines.FEW), {})

    def _read_alone(self, *statements: str) -> Alone:
        before = postgres_cpu_s()
        rows, used = twice(baselines.read_rows, self._url, *statements)
        assert rows == self._messages, f"{rows} of {self._messages} messages were read"
        return Alone(used, (postgres_cpu_s() - before) / 2)

    def _source(self, names: tuple[str, ...], alone: Alone, others: Mapping[str, Used]) -> None:
        before = postgres_cpu_s()
        ran = apart(jobs.read_rows, self._url, _ALWAYS, names)
        served_s = (postgres_cpu_s() - before) / 2
        few, part = self._part()
        small = few, apart(jobs.read_rows, self._url, part, names).first
        more = with_postgres(alone.used, ran, (alone.postgres_s, served_s))
        for name, other in others.items():
            assert ran.again is not None
            more[f"{name}_cpu_s"] = other.cpu_s
            more[f"{name}_ratio"] = other.cpu_s / ran.first.cpu_s
            more[f"again_{name}_ratio"] = other.cpu_s / ran.again.cpu_s
        more |= self._floor(names, alone.used)
        columns = "all" if names == NAMES else ", ".join(names)
        self._report("source", alone.used, ran, small, columns=columns, **more)

    def _floor(self, names: tuple[str, ...], alone: Used) -> dict[str, float]:
        """What is left of the ratio when reading costs nothing, in a session that is warm."""
        path = self._directory / f"same-{len(names)}"
        apart(keep_batch, self._url, names, path)
        floor = apart(jobs.read_same, path, names, self._messages)
        assert floor.again is not None
        return {"floor_cpu_s": floor.again.cpu_s, "floor_ratio": alone.cpu_s / floor.again.cpu_s}

    def archive(self) -> None:
        """The whole job: written, read back, published, and noted in the database."""
        few, part = self._part()
        small = few, apart(jobs.archive_all, self._url, self._directory / "part", part).first
        file = self._directory / "one.parquet"
        before = postgres_cpu_s()
        rows, alone = twice(baselines.write_file, self._url, file)
        between = postgres_cpu_s()
        file.unlink()
        ran = apart(jobs.archive_all, self._url, self._lake, _ALWAYS)
        served = (between - before) / 2, postgres_cpu_s() - between
        assert ran.answer == rows, f"{ran.answer} of {rows} messages were archived"
        more = with_postgres(alone, ran, served)
        self._report("archive", alone, ran, small, wall_s=ran.first.wall_s, **more)

    def fingerprint(self) -> None:
        """Of every hour, from the archive's files."""
        self._of_files("fingerprint", baselines.fingerprints, jobs.fingerprints)

    def hashes(self) -> None:
        """Every message's hash."""
        self._of_files("hashes", baselines.wrong_hashes, jobs.wrong_hashes)

    def missing(self) -> None:
        """Every reference to a parent that is not held."""
        self._of_claims("missing", baselines.missing_parents, jobs.missing)

    def incomplete(self) -> None:
        """Every message with a gap in its causal past."""
        self._of_claims("incomplete", baselines.incomplete, jobs.incomplete)

    def cores(self) -> None:
        """The whole of verify, of what an audit looks for, and of archive, on one core and two."""
        self._archived()
        files = self._audited(self._messages)
        takes: dict[str, Callable[[int], jobs.Ran[Any]]] = {
            "verify": lambda cores: apart(jobs.verify_all, self._lake, on(cores)),
            "audit": lambda cores: apart(jobs.audit_all, files, on(cores)),
            "archive": self._archive_on,
        }
        for name, take_it in takes.items():
            ran = [(take_it(1), take_it(2)) for _ in range(_TIMES)]
            answers = {each.answer for pair in ran for each in pair}
            assert len(answers) == 1, f"{name}: two cores answer differently"
            one_s, two_s = (
                median(each.first.wall_s for each in side) for side in zip(*ran, strict=True)
            )
            report(
                benchmark="pipeline",
                measure=f"cores, {name}",
                messages=self._messages,
                one_core_s=one_s,
                two_cores_s=two_s,
                ratio=one_s / two_s,
                at_least=None if name == "archive" else BARS["cores"],
            )

    def _archive_on(self, cores: int) -> jobs.Ran[int]:
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            path = Path(name) / "lake"
            return apart(jobs.archive_all, self._url, path, _ALWAYS, on(cores))

    def _part(self) -> tuple[int, jobs.Within]:
        """The first of the messages: how many, and until when."""
        few = self._messages // _FEWER
        return few, (0, first_ns() + few * step_ns(self._messages))

    def _archived(self) -> list[LakeFile]:
        if not self._lake.exists():
            apart(jobs.archive_all, self._url, self._lake, _ALWAYS)
        return jobs.files_of(self._lake)

    def _audited(self, edges: int) -> list[str]:
        if edges not in self._claims:
            channels = max(1, edges // EDGES_PER_CHANNEL)
            self._claims[edges] = write_claims(self._directory / f"claims-{edges}", channels)
        return self._claims[edges]

    def _of_files(
        self,
        name: str,
        baseline: Callable[[list[str]], tuple[T, Used]],
        job: Callable[[list[LakeFile]], jobs.Ran[T]],
    ) -> None:
        files = sorted(self._archived(), key=LakeFile.place)
        fewer = files[: len(files) // _FEWER] or files
        small = sum(each.rows for each in fewer), apart(job, fewer).first
        wanted, alone = twice(baseline, [each.path for each in files])
        ran = apart(job, files)
        assert ran.answer == wanted, f"{name}: the job and DuckDB answer differently"
        self._report(name, alone, ran, small)

    def _of_claims(
        self,
        name: str,
        baseline: Callable[[list[str]], tuple[T, Used]],
        job: Callable[[list[str]], jobs.Ran[T]],
    ) -> None:
        few = self._messages // _FEWER
        small = few, apart(job, self._audited(few)).first
        files = self._audited(self._messages)
        wanted, alone = twice(baseline, files)
        ran = apart(job, files)
        assert ran.answer == wanted, f"{name}: the job and DuckDB answer differently"
        self._report(name, alone, ran, small)

    def _report(
        self,
        name: str,
        alone: Used,
        ran: jobs.Ran[Any],
        small: tuple[int, Used],
        **more: object,
    ) -> None:
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
            **by_size(BARS[name], (self._messages, ran.first), small, alone),
            session_cpu_s=ran.session.cpu_s,
        )


def on(cores: int) -> str:
    """Spark on so many cores of this machine."""
    return f"local[{cores}]"


def by_size(
    wanted: float, whole: tuple[int, Used], small: tuple[int, Used], alone: Used
) -> dict[str, float | str]:
    """What a job costs whatever the size, what each message costs, and from how many on it has the
    wanted ratio; the baseline is taken to have no cost but by message.
    """
    (messages, used), (few, less) = whole, small
    each_s = max(0.0, used.cpu_s - less.cpu_s) / max(1, messages - few)
    fixed_s = max(0.0, used.cpu_s - messages * each_s)
    left_s = max(alone.cpu_s, _NOTHING_S) / messages - wanted * each_s
    holds = "never" if left_s <= 0 else math.ceil(wanted * fixed_s / left_s)
    return {"fixed_cpu_s": fixed_s, "us_each": each_s * 1e6, "holds_from": holds}


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
