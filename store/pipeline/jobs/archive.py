"""`archive`: what a database holds and the lake does not, into the lake, exactly once.

Hours are compared by their fingerprints; of those that differ, whatever the lake lacks is read and
appended, in steps that are published one by one. So it does not matter what was archived before, in
which order it had arrived, or where another run was killed. The files are read back before they are
published: what they hold together with what was there must be what the database says.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

from store.domain.partitioning import Bounds
from store.pipeline.appending import Appender
from store.pipeline.claims import keep_claims
from store.pipeline.columns import NAMES
from store.pipeline.contents import known_hours
from store.pipeline.database import (
    FOREVER,
    State,
    connected,
    lock_archiving,
    mark_archived,
    read_archived,
    read_horizon,
    read_marked_archives,
    read_marks,
    read_state,
    read_stated,
    take_over_marks,
)
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import (
    NOTHING,
    Fingerprints,
    differing,
)
from store.pipeline.lake import Lake
from store.pipeline.limits import HOUR_NS, MAX_CONNECTIONS, MAX_LISTED
from store.pipeline.progress import Say, silent
from store.pipeline.reading import Cut, Portion
from store.pipeline.recording import begin_manifest
from store.pipeline.reports import time_text
from store.pipeline.slices import Slice, good_slice_rows, grouped, in_steps, plan_slices, to_text
from store.pipeline.source import FORMAT, read_options


@dataclass
class Archived:
    """What a run did, or would do when ``dry_run``.

    ``published`` messages went into ``files`` files. ``compacted`` small ones were made larger, and
    ``removed`` ones were deleted that nothing had named for long. ``marked`` hours are noted in the
    database as archived, ``kept`` were noted already. ``differing`` hours are not the same in lake
    and database although everything was exported: the lake holds what the database lacks.
    ``elsewhere``: no hour was marked, since the database's marks are about that archive.
    ``taken_over`` marks of other archives name this one now, ``absent`` ones of hours that are no
    longer in the database do not, since this one does not hold them. ``damaged`` hours are not in
    the lake's files as they were.
    ``claims`` of equality with other stores were kept beside the lake.
    """

    position: int
    to_do: int = 0
    published: int = 0
    files: int = 0
    compacted: int = 0
    removed: int = 0
    marked: list[int] = field(default_factory=list)
    kept: int = 0
    differing: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    elsewhere: str | None = None
    taken_over: int = 0
    absent: int = 0
    claims: int = 0
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """Whether every sealed hour of the database is marked as archived."""
        return not self.differing and not self.damaged and self.elsewhere is None

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "position": self.position,
            "messages_to_do": self.to_do,
            "messages": self.published,
            "files": self.files,
            "compacted_files": self.compacted,
            "removed_files": self.removed,
            "hours_marked": len(self.marked),
            "hours_marked_before": self.kept,
            "hours_differing": [time_text(hour) for hour in self.differing[:MAX_LISTED]],
            "hours_damaged": [time_text(hour) for hour in self.damaged[:MAX_LISTED]],
            "marked_archive": self.elsewhere,
            "marks_taken_over": self.taken_over,
            "marks_left_elsewhere": self.absent,
            "claims_kept": self.claims,
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        if self.dry_run:
            return [f"Would archive {self.to_do:,} messages, up to commit {self.position}."]
        told = [
            (
                f"Archived {self.published:,} messages in {self.files:,} files, up to commit"
                f" {self.position}."
            ),
            f"Marked {len(self.marked):,} hours as archived; {self.kept:,} already were.",
        ]
        if self.taken_over:
            told.append(f"{self.taken_over:,} marks that named other archives name this one now.")
        if self.absent:
            told.append(
                f"{self.absent:,} marks still name other archives: this one does not hold what they"
                " say, and neither does the database any more."
            )
        if self.compacted:
            told.append(f"Made {self.compacted:,} small files into larger ones.")
        if self.elsewhere is not None:
            told.append(
                f"No hour was marked as archived: the marks of the database name {self.elsewhere}."
                " If this archive is to count for --retention-requires-archive, too, run this again"
                " with --mark-here."
            )
        told += [
            f"The hour {time_text(hour)} cannot be marked as archived: files of the archive do not"
            " hold it as they did. `storenode pipeline verify` names them."
            for hour in self.damaged[:MAX_LISTED]
        ]
        return told + [
            f"The hour {time_text(hour)} cannot be marked as archived: the archive has messages of"
            " it that the database lacks. `storenode pipeline diff` lists them, `restore` restores"
            " them."
            for hour in self.differing[:MAX_LISTED]
        ]


@dataclass(frozen=True)
class Archiving:
    """Where from and where to, and what part: times in nanoseconds, the end exclusive.

    ``mark_here``: mark hours also if all marks of the database name other archives.
    ``new_manifest``: begin one in place of the one that there is.
    """

    url: str
    lake: Lake
    low_ns: int = 0
    high_ns: int = FOREVER
    connections: int = MAX_CONNECTIONS
    dry_run: bool = False
    say: Say = silent
    mark_here: bool = False
    new_manifest: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return (self.low_ns, self.high_ns) == (0, FOREVER)


def archive(session: SparkSession, job: Archiving) -> Archived:
    """Bring an archive up to what the database holds now.

    Raises:
        PipelineError: database or lake do not serve, or somebody else archives; what was published
            stays, and nothing is half published.
    """
    with connected(job.url) as connection:
        lock_archiving(connection)
        return archive_locked(session, job, connection)


def archive_locked(
    session: SparkSession, job: Archiving, connection: psycopg.Connection[Any]
) -> Archived:
    """`archive` on a connection that holds the lock."""
    return _Run(session, job, connection).run()


class _Run:
    def __init__(
        self, session: SparkSession, job: Archiving, connection: psycopg.Connection[Any]
    ) -> None:
        self._session = session
        self._job = job
        self._connection = connection

    def run(self) -> Archived:
        job, lake = self._job, self._job.lake
        if job.dry_run:
            return self._dry_run()
        appender = Appender(self._session, lake.create(), job.say)
        if job.new_manifest:
            begin_manifest(lake)
        appender.record()
        stated = read_stated(self._connection)
        state = self._state()
        to_do = _to_do(state, appender.held)
        result = Archived(state.position, _missing(to_do, appender.held))
        if to_do:
            self._append(appender, state, to_do)
            if job.everything and result.to_do and not appender.messages:
                raise PipelineError(
                    f"What Spark's workers have written is not in {lake.path}: they and this"
                    " process must all see the same directory there."
                )
            appender.record()
        result.published, result.files = appender.messages, appender.files
        note(self._connection, job, state, appender, result)
        if job.everything:
            horizon_ns = read_horizon(self._connection)
            result.claims = keep_claims(lake, stated, horizon_ns, appender.held)
        result.compacted = appender.compact()
        if result.compacted:
            appender.record()
        result.removed = lake.vacuum()
        return result

    def _append(self, appender: Appender, state: State, to_do: Fingerprints) -> None:
        """Publish what the lake lacks of some hours, a commit for each step."""
        steps = in_steps({hour: to_do[hour] for hour in to_do if hour not in appender.held})
        late = {hour: to_do[hour] for hour in to_do if hour in appender.held}
        for number, step in enumerate(steps, 1):
            messages = sum(each.messages for each in step.values())
            what = f"archive, step {number} of {len(steps)}" if len(steps) > 1 else "archive"
            appender.append(
                self._portions(state, step), None, (), state, messages=messages, what=what
            )
        rows = self._rows(state, late)
        if rows is not None:
            missing = _missing(late, appender.held)
            appender.append([], rows, late, state, messages=missing, what="archive, late messages")

    def _dry_run(self) -> Archived:
        lake = self._job.lake
        held = known_hours(self._session, lake.open(), keep=False) if lake.exists else {}
        state = self._state()
        missing = _missing(_to_do(state, held), held)
        return Archived(state.position, missing, dry_run=True)

    def _state(self) -> State:
        job = self._job
        low = job.low_ns // HOUR_NS * HOUR_NS
        return read_state(self._connection, low, job.high_ns)

    def _slices(self, state: State, hours: Fingerprints) -> list[Slice]:
        """The messages of some hours, as far as they are asked for."""
        job = self._job
        rows = sum(each.messages for each in hours.values())
        return plan_slices(
            hours,
            state.partitions,
            Bounds(job.low_ns, job.high_ns),
            good_slice_rows(rows, job.connections),
        )

    def _portions(self, state: State, hours: Fingerprints) -> list[Portion]:
        """The same for tasks that read by themselves."""
        cut, job = Cut(state.position), self._job
        return [
            Portion(job.url, slices, cut)
            for slices in grouped(self._slices(state, hours), job.connections)
        ]

    def _rows(self, state: State, hours: Fingerprints) -> DataFrame | None:
        """The same as rows of Spark; None: there are no hours."""
        if not hours:
            return None
        job = self._job
        options = read_options(
            job.url,
            columns=",".join(NAMES),
            position=state.position,
            slices=to_text(self._slices(state, hours)),
            connections=job.connections,
        )
        return self._session.read.format(FORMAT).options(**options).load()


def note(
    connection: psycopg.Connection[Any],
    job: Archiving,
    state: State,
    appender: Appender,
    result: Archived,
) -> None:
    """Mark what is sealed and the same on both sides; a mark that is still right stays.

    Hours are dropped from the database by their marks. So a copy somewhere else takes no part
    unless it is told to; then it takes over what it bears out, also of hours that were dropped.

    Raises:
        PipelineError: a file that hours to be marked are in is gone or cannot be read.
    """
    held = appender.held
    marked = read_marked_archives(connection)
    if marked and job.lake.path not in marked and not job.mark_here:
        result.elsewhere = marked[0]
        return
    now_ns = time.time_ns()
    sealed = {
        hour: each
        for hour, each in state.fingerprints.items()
        if hour + HOUR_NS <= now_ns and job.low_ns <= hour and hour + HOUR_NS <= job.high_ns
    }
    before = read_archived(connection)
    result.kept = sum(before.get(hour) == each for hour, each in sealed.items())
    new = [hour for hour, each in sealed.items() if before.get(hour) != each]
    equal = [hour for hour in new if held.get(hour) == sealed[hour]]
    others = before.keys() - read_marks(connection, job.lake.path) if job.mark_here else set()
    moved = [hour for hour in others if held.get(hour) == before[hour]]
    result.absent = len(others - sealed.keys() - set(moved))
    now = appender.confirmed([*equal, *moved])
    result.damaged = sorted(hour for hour in now if now[hour] != held[hour])
    result.marked += mark_archived(connection, now, equal, job.lake.path)
    sound = [hour for hour in moved if now[hour] == held[hour]]
    result.taken_over += take_over_marks(connection, sound, job.lake.path)
    result.differing = sorted(hour for hour in new if held.get(hour) != sealed[hour])


def _to_do(state: State, held: Fingerprints) -> Fingerprints:
    """The hours of which the database holds something else than the lake."""
    wanted = state.fingerprints
    return {hour: wanted[hour] for hour in differing(held, wanted) if hour in wanted}


def _missing(to_do: Fingerprints, held: Fingerprints) -> int:
    return sum(
        max(0, each.messages - held.get(hour, NOTHING).messages) for hour, each in to_do.items()
    )
