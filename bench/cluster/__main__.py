"""Jobs of the pipeline on a standalone cluster of a master and two workers, by size.

``python -m bench.cluster --dir DIR --millions 1 4 16 64``: a synthetic archive of a million
messages a day grows to each size, and is verified, fingerprinted by minute, compared with one that
lacks an hour of each day, audited, and reported on (without an audit). With ``--database-millions 1
4``, messages of a Postgres database are archived and restored into an empty one. Every answer is
checked. All jobs have one session, in which the first two rounds do not count: its JVMs compile for
minutes. What a job takes for 10,000 messages, which are measured again before each size, is its
fixed cost in one task, which falls as long as something is compiled; ``cpu_s_per_million`` is what
it takes beyond that. From one task to the eight that a million messages have, the fixed cost grows:
``further_cpu_s_per_million`` is what it takes beyond that and the size before. A job is flat if
none of its further costs is more than a fifth above one of a smaller size. Postgres's share is
judged by itself, from the first size on.

``--millions 64 --parts 4`` tells the size from the machine, whose cores are not equally fast all
the time: each job has an archive as a whole between quarters of it, and ``whole_to_parts`` is what
a message took in the whole to what it took in these, of millions: of few the fixed cost, which
still falls, hides it.

DIR must be new or empty, and is empty again afterwards; how much room it needs is printed first.
``--prepare 64`` only writes the files of so many million messages, with ``--writers`` processes: a
later run with the same DIR has the log and the manifest name them. It goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import psutil
import psycopg
from pyspark.sql import SparkSession

from bench.cluster.history import PER_DAY, WRITERS, History
from bench.cluster.watched import Watched
from bench.pipeline.cpu import apart, postgres_cpu_s
from bench.pipeline.world import filled_database
from bench.support import report
from store.db.schema.migrate import upgrade
from store.embedded import EmbeddedPostgres, EmbeddedSettings
from store.pipeline.figures.listed import folder_of
from store.pipeline.jobs.archive import Archiving, archive
from store.pipeline.jobs.audit import Auditing, audit
from store.pipeline.jobs.diff import diff
from store.pipeline.jobs.fingerprint import fingerprint
from store.pipeline.jobs.report import Reporting
from store.pipeline.jobs.report import report as report_job
from store.pipeline.jobs.restore import Restoring, restore
from store.pipeline.jobs.verify import Verifying, verify
from store.pipeline.lake import Lake
from store.pipeline.session import spark_session
from store.pipeline.sides import LakeSide
from tests.support.spark import Cluster

T = TypeVar("T")

FEW: Final = 10_000
MILLION: Final = 1_000_000
COMPILING_ROUNDS: Final = 2
FLAT: Final = 0.2
"""By how much the cost of a million may grow with the size."""

_ARCHIVE_BYTES: Final = 180
_DATABASE_BYTES: Final = 3_000
"""Of each message: in the archive with what its audit shuffles; in its database and its archive."""

_SETTINGS: Final = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_QUIET: Final = {"fsync": "off", "synchronous_commit": "off", "max_wal_size": "1GB"}


class Bench:
    """A cluster with a session on it, and what was measured there."""

    def __init__(self, directory: Path, cluster: Cluster, session: SparkSession) -> None:
        self.directory, self.session = directory, session
        self._cluster = cluster
        self.fixed_s: dict[str, list[float]] = defaultdict(list)
        self.each_s: dict[str, list[float]] = defaultdict(list)
        self._before: dict[str, tuple[int, float]] = {}
        self._warm = False

    def begin(self) -> None:
        """Let what comes now count: the session has compiled and imported what jobs need."""
        self._warm = True
        self.fixed_s.clear()
        self.each_s.clear()
        self._before.clear()

    def take(self, messages: int, job: str, work: Callable[[], T]) -> T:
        """Run a job, and print what it used; what it answered."""
        answer, figures = self._used(work)
        self._report(messages, job, figures)
        return answer

    def beyond_fixed_s(self, job: str, messages: int, work: Callable[[], object]) -> float:
        """Run a job whose fixed cost is known; the seconds beyond that."""
        _, figures = self._used(work)
        report(benchmark="cluster", measure=f"{job}, in parts", messages=messages, **figures)
        return figures["cpu_s"] - self.fixed_s[job][-1]

    def _used(self, work: Callable[[], T]) -> tuple[T, dict[str, float]]:
        workers = {
            f"worker-{number}": each.process.pid
            for number, each in enumerate(self._cluster.workers)
        }
        watched = Watched(workers, self._cluster.pids | _pids_of_postgres())
        served_s, began = postgres_cpu_s(), time.monotonic()
        answer, figures = watched.run(work)
        figures["wall_s"] = time.monotonic() - began
        if served_s:
            figures["postgres_cpu_s"] = postgres_cpu_s() - served_s
        return answer, figures

    def _report(self, messages: int, job: str, figures: dict[str, float]) -> None:
        self._note(messages, job, figures, "cpu_s", least=messages)
        if "postgres_cpu_s" in figures:
            # It has no tasks whose number grows.
            self._note(messages, f"{job}, Postgres", figures, "postgres_cpu_s", least=0)
        report(benchmark="cluster", measure=job, messages=messages, warm=self._warm, **figures)

    def _note(
        self, messages: int, name: str, figures: dict[str, float], used: str, least: int
    ) -> None:
        """What messages took; a further million counts from ``least`` on, or the size before."""
        if messages <= FEW:
            self.fixed_s[name].append(figures[used])
            return
        left_s = figures[used] - self.fixed_s[name][-1]
        figures[f"{used}_per_million"] = left_s / messages * MILLION
        fewer, less_s = self._before.get(name, (least, 0.0))
        if fewer < messages:
            further_s = (left_s - less_s) / (messages - fewer) * MILLION
            figures[f"further_{used}_per_million"] = further_s
            self.each_s[name].append(further_s)
        self._before[name] = messages, left_s

    def summed_up(self) -> bool:
        """Print for each job what a few messages and what a further million cost, at least and at
        most; whether all are flat.
        """
        flat = True
        for job, each in self.each_s.items():
            growth = max(later / min(each[: at + 1]) for at, later in enumerate(each)) - 1
            flat = flat and growth <= FLAT
            report(
                benchmark="cluster",
                measure=f"{job}, all sizes",
                least_few_cpu_s=min(self.fixed_s[job]),
                most_few_cpu_s=max(self.fixed_s[job]),
                least_further_cpu_s_per_million=min(each),
                most_further_cpu_s_per_million=max(each),
                spread=max(each) / min(each) - 1,
                growth=growth,
                at_most=FLAT,
            )
        return flat


def _pids_of_postgres() -> set[int]:
    return {each.pid for each in psutil.Process().children() if each.name() == "postgres"}


def verified(bench: Bench, history: History) -> None:
    """Verify the archive, in which nothing is wrong."""
    checked = verify(bench.session, Verifying(Lake(str(history.first))))
    _same("verify", (checked.sound, checked.messages), (True, history.messages))


def fingerprinted(bench: Bench, history: History) -> None:
    """Fingerprint its minutes."""
    found = fingerprint(_side(bench, history.first), "minute")
    _same("fingerprint", sum(each.messages for each in found.slices.values()), history.messages)


def compared(bench: Bench, history: History) -> None:
    """Find out what the other one lacks."""
    sides = (_side(bench, each) for each in (history.first, history.second))
    differ = diff(bench.session, *sides)
    _same("diff", sorted(differ.lacking.values()), [0, history.lacking])


def audited(bench: Bench, history: History) -> None:
    """Find out what its channels lack."""
    told = audit(bench.session, Auditing(_side(bench, history.first)))
    _same("audit", told.counts["missing"], history.missing)


def reported(bench: Bench, history: History) -> None:
    """Write the report, and delete it."""
    page = bench.directory / "report.html"
    job = Reporting(page, Lake(str(history.first)), None, audit=False)
    shown = report_job(bench.session, job)
    _same("report", shown.gathered.traffic and shown.gathered.traffic.messages, history.messages)
    page.unlink()
    shutil.rmtree(folder_of(page))


JOBS: Final[Mapping[str, Callable[[Bench, History], None]]] = {
    "verify": verified,
    "fingerprint": fingerprinted,
    "diff": compared,
    "audit": audited,
    "report": reported,
}
"""The jobs that need no database; each must find exactly what the history lacks."""


def _side(bench: Bench, archive: Path) -> LakeSide:
    return LakeSide(bench.session, Lake(str(archive)))


def of_archives(bench: Bench, history: History) -> None:
    """Run all of `JOBS`."""
    for name, work in JOBS.items():
        bench.take(history.messages, name, partial(work, bench, history))


def in_parts(bench: Bench, millions: int, parts: int) -> None:
    """The whole of an archive between parts of it, which are archives and have the same machine."""
    few = apart(History.grown, History(bench.directory / "few", FEW), 1)
    history, days = _history(bench.directory), millions * MILLION // PER_DAY
    history.prepare(days)
    history = apart(History.grown, history, days)
    ends = [days * part // parts for part in range(parts + 1)]
    cut = [
        apart(History.part, history, bench.directory / f"part-{number}", range(*each))
        for number, each in enumerate(pairwise(ends))
    ]
    for _ in range(COMPILING_ROUNDS):
        of_archives(bench, few)
    for name, work in JOBS.items():
        work(bench, cut[0])  # which does not count
        bench.take(few.messages, name, partial(work, bench, few))
        taken = [
            bench.beyond_fixed_s(name, each.messages, partial(work, bench, each))
            for each in [*cut[: parts // 2], history, *cut[parts // 2 :]]
        ]
        whole_s = taken.pop(parts // 2)
        report(
            benchmark="cluster", measure=f"{name}, as a whole", whole_to_parts=whole_s / sum(taken)
        )


def of_database(bench: Bench, messages: int, settings: Mapping[str, str]) -> None:
    """Archive a database, and restore it into an empty one, whose Postgres has some settings."""
    folder = bench.directory / "database"
    folder.mkdir()
    lake, session = Lake(str(folder / "archive")), bench.session
    with filled_database(folder / "node", messages) as url:
        done = bench.take(messages, "archive", lambda: archive(session, Archiving(url, lake)))
        _same("archive", done.published, messages)
    shutil.rmtree(folder / "node")
    postgres = EmbeddedPostgres(EmbeddedSettings(folder / "empty", {**_QUIET, **settings}))
    url = postgres.start()
    try:
        upgrade(url)
        stored = bench.take(messages, "restore", lambda: restore(session, Restoring(lake, url)))
        _same("restore", stored.new, messages)
        with psycopg.connect(url) as connection:
            log = connection.execute("select wal_fpi, wal_bytes from pg_stat_wal").fetchone()
        assert log is not None
        pages, mib = log[0], float(log[1]) / 2**20
        report(benchmark="cluster", measure="restore, log", whole_pages=pages, written_mib=mib)
    finally:
        postgres.stop()
    shutil.rmtree(folder)


def _same(job: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise SystemExit(f"{job}: {found} was found where {wanted} is right.")


def take_all(directory: Path, given: argparse.Namespace) -> bool:
    """Measure everything, the smallest first; whether all is flat."""
    (directory / "cluster").mkdir()
    cluster = Cluster(directory / "cluster", {})
    try:
        with spark_session(cluster.url, _SETTINGS) as session:
            bench = Bench(directory, cluster, session)
            flat = True
            if given.parts:
                in_parts(bench, max(given.millions), given.parts)
            elif given.millions:
                _synthetic(bench, given.millions)
                flat = bench.summed_up()
            if given.database_millions:
                _databases(bench, given.database_millions, dict(given.postgres_setting))
                flat = bench.summed_up() and flat
            return flat
    finally:
        cluster.stop()


def _synthetic(bench: Bench, millions: list[int]) -> None:
    """Every size, after rounds with the smallest that do not count."""
    few = apart(History.grown, History(bench.directory / "few", FEW), 1)
    history = _history(bench.directory)
    for number, size in enumerate(sorted(millions)):
        # Elsewhere, since memory that was used once is not given back.
        history = apart(History.grown, history, size * MILLION // history.per_day)
        if number == 0:
            for each in [few, history] * COMPILING_ROUNDS:
                of_archives(bench, each)
            bench.begin()
        # Python workers that have had nothing to do for a while have ended.
        fingerprint(LakeSide(bench.session, Lake(str(few.first))), "minute")
        of_archives(bench, few)
        of_archives(bench, history)


def _history(directory: Path) -> History:
    return History(directory / "history")


def _databases(bench: Bench, millions: list[int], settings: Mapping[str, str]) -> None:
    """The same for databases."""
    sizes = sorted(each * MILLION for each in millions)
    for messages in [FEW, sizes[0]]:
        of_database(bench, messages, settings)
    bench.begin()
    for each in sizes:
        for messages in (FEW, each):
            of_database(bench, messages, settings)


def main() -> int:
    """Read the command line; the exit code is 1 if something is not flat."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.cluster")
    parser.add_argument("--dir", type=Path, required=True, help="where all data are put")
    parser.add_argument("--millions", type=int, nargs="*", default=[1, 4], help="default: 1 4")
    parser.add_argument("--database-millions", type=int, nargs="*", default=[], metavar="MILLIONS")
    parser.add_argument(
        "--postgres-setting",
        type=lambda text: text.split("=", 1),
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="of the database that is restored into",
    )
    parser.add_argument("--parts", type=int, default=0, metavar="N")
    parser.add_argument("--prepare", type=int, default=0, metavar="MILLIONS")
    parser.add_argument("--writers", type=int, default=WRITERS, help="default: %(default)s")
    given = parser.parse_args()
    needed = MILLION * (
        _ARCHIVE_BYTES * (given.prepare or max(given.millions, default=0))
        + _DATABASE_BYTES * max(given.database_millions, default=0)
    )
    given.dir.mkdir(parents=True, exist_ok=True)
    directory = given.dir.resolve()
    history = _history(directory)
    if any(each != history.directory for each in directory.iterdir()) or (
        history.directory.exists() and not history.prepared
    ):
        parser.error(f"{given.dir} is not empty: name a new directory")
    free = shutil.disk_usage(given.dir).free
    sys.stderr.write(f"needs {needed / 1e9:.1f} GB in {given.dir}, {free / 1e9:.1f} GB are free\n")
    if free < needed:
        parser.error("there is not enough room: name another directory, or smaller sizes")
    if given.parts > max(given.millions, default=0):
        parser.error("an archive has no more parts than days: a million messages are a day")
    if given.prepare:
        history.prepare(given.prepare * MILLION // history.per_day, given.writers)
        return 0
    # What was begun is taken down again also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ["SPARK_LOCAL_DIRS"] = str(directory / "shuffles")
    try:
        return 0 if take_all(directory, given) else 1
    finally:
        for each in directory.iterdir():
            shutil.rmtree(each)


if __name__ == "__main__":
    raise SystemExit(main())
