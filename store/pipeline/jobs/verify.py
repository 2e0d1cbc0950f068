"""`verify`: is an archive what it says it is, and does it hold what the database does?

Every message's hash is computed anew, and every hour's fingerprint, by workers that read the files
themselves. Rows must be messages that a
node may store, of the sizes that it stores, in the directory of their day and shard, and each there
once. Against a database, every hour that it holds must be in the archive,
and every hour that it has marked as archived there, whether it still holds it or not. What the
manifest of the archive names, or a copy of it, must be there unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession

from store.pipeline.beside import damage
from store.pipeline.checking import CHECKED, HASHED, ROW_FAULTS, WRONG_HASH, row_faults
from store.pipeline.contents import over_files
from store.pipeline.database import FOREVER, connected, read_marks, read_state
from store.pipeline.errors import SPARK_ERRORS, PipelineError, StoreError, of_file, of_spark
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import (
    NOTHING,
    ROWS,
    Fingerprints,
    add_rows,
    as_rows,
    collected,
    differing,
)
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_LISTED
from store.pipeline.manifest import manifest_of
from store.pipeline.progress import Say, shown, silent
from store.pipeline.recording import digest_of
from store.pipeline.repeated import Span, repeated
from store.pipeline.reports import time_text
from store.pipeline.requiring import Held, Required, required, shortfalls
from store.pipeline.storage import at_hand

WRONG_DAY: Final = "hour in the directory of another day"
TWICE: Final = "there more than once"
UNREADABLE: Final = "file cannot be read"
WRONG_ROWS: Final = "file has another number of rows than the table says"
WRONG_HOUR: Final = "hour is not what was noted when it was archived"
DIFFERENT: Final = "hour is not the same in the database"
BESIDE: Final = "table beside the messages is damaged"
LOST_MARKED: Final = "hour was marked as archived here, and is no longer here in full"

HOUR: Final = "hour"
FILE: Final = "file"
_FOUND: Final = pa.schema(
    [
        *ROWS,
        pa.field("kind", pa.string()),
        pa.field("path", pa.string()),
        pa.field("last_ns", pa.int64()),
        pa.field("where", pa.list_(pa.string())),
    ]
)
"""What a task found: the fingerprint of an `HOUR` in all of its files; a `FILE` that it could read,
with its rows, its first and its last hour (null: it has none), and its SHA-256; or a kind of fault
with its number and some places."""


@dataclass(frozen=True)
class Fault:
    """Something wrong: what, where, and how many of its kind; ``where`` names some of them."""

    kind: str
    count: int
    where: tuple[str, ...]


def fault_of(kind: str, where: Iterable[str], count: int | None = None) -> list[Fault]:
    """The fault of a kind, or nothing if there is none; ``count`` None: as many as ``where``."""
    listed = list(where)
    number = len(listed) if count is None else count
    return [Fault(kind, number, tuple(listed[:MAX_LISTED]))] if number else []


def faults_as_json(faults: Iterable[Fault]) -> list[dict[str, Any]]:
    """Faults as JSON has them."""
    return [{"kind": each.kind, "count": each.count, "where": list(each.where)} for each in faults]


def fault_lines(faults: Iterable[Fault]) -> list[str]:
    """The same in words."""
    told = []
    for fault in faults:
        told.append(f"{fault.kind}: {fault.count:,}")
        told += [f"  {where}" for where in fault.where]
        if fault.count > len(fault.where):
            told.append(f"  and {fault.count - len(fault.where):,} more")
    return told


@dataclass
class Verified:
    """What was looked at and what was found; ``database`` tells whether one was compared.

    ``notes`` are sentences on what could not be checked.
    """

    messages: int = 0
    files: int = 0
    hours: int = 0
    database: bool = False
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    def add(self, kind: str, where: Iterable[str], count: int | None = None) -> None:
        """Note a fault, if there is one."""
        self.faults += fault_of(kind, where, count)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "sound": self.sound,
            "messages": self.messages,
            "files": self.files,
            "hours": self.hours,
            "compared_with_database": self.database,
            "faults": faults_as_json(self.faults),
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        told = [
            f"Verified {self.messages:,} messages of {self.hours:,} hours in {self.files:,} files."
        ]
        told += [*self.notes, *fault_lines(self.faults)]
        told.append("Nothing is wrong." if self.sound else "The archive is not sound.")
        return told


@dataclass(frozen=True)
class Verifying:
    """What to look at: an archive, a range of time, and a database to compare with if any.

    ``manifest`` is the directory of a copy of the archive's manifest.
    """

    lake: Lake
    url: str | None = None
    low_ns: int = 0
    high_ns: int = FOREVER
    say: Say = silent
    manifest: str | None = None

    def covers(self, day: int) -> bool:
        """Whether a day (since the epoch) is looked at, as a whole."""
        return self.low_ns // DAY_NS <= day < -(-self.high_ns // DAY_NS)


def verify(session: SparkSession, job: Verifying) -> Verified:
    """Verify an archive; nothing is changed.

    Raises:
        PipelineError: there is no archive, or the database does not serve.
    """
    lake = job.lake.open()
    wanted = required(manifest_of(lake.path), job.manifest)
    files = [each for each in lake.files() if job.covers(each.day)]
    result = Verified(files=len(files), database=job.url is not None)
    total = sum(each.rows for each in files)
    with shown(session, job.say, "verify", total):
        rows = _Rows(session, files, result)
        held = rows.check()
    _check_required(
        wanted,
        Held(
            {*map(lake.within, lake.files())}, rows.digests, held, lake.version, lake.entries_noted
        ),
        job,
        result,
    )
    result.add(BESIDE, damage(lake))
    result.hours = len(held)
    _check_hours(lake, {each.day for each in files}, held, result)
    if job.url is not None:
        _check_database(job.url, job, held, result)
    return result


class _Rows:
    """The rows of some files, and what is wrong with them."""

    def __init__(self, session: SparkSession, files: list[LakeFile], result: Verified) -> None:
        self._session = session
        self._result = result
        self._files = {relative(each.path): each for each in files}
        self.digests: dict[str, str] = {}
        """By path the SHA-256 of each file that could be read."""

    def check(self) -> Fingerprints:
        """Note every fault; returns what the files hold by hour."""
        rows = file_checks(self._session, list(self._files.values()))
        by_kind: dict[str, list[Row]] = {}
        for row in rows:
            by_kind.setdefault(row["kind"], []).append(row)
        hours = collected(by_kind.pop(HOUR, []))
        files = by_kind.pop(FILE, [])
        self.digests |= {row["path"]: row["where"][0] for row in files}
        self._check_numbers(files)
        for kind in (UNREADABLE, *ROW_FAULTS, WRONG_DAY):
            self._add(kind, by_kind.get(kind, []))
        self._add(TWICE, repeated(self._session, hours, spans_of(files, self._files)))
        return hours

    def _add(self, kind: str, rows: list[Row]) -> None:
        listed = [text for row in rows for text in row["where"]]
        self._result.add(kind, listed, sum(row["count"] for row in rows))

    def _check_numbers(self, files: list[Row]) -> None:
        """Whether each file that could be read has the rows that it should."""
        self._result.messages = sum(row["count"] for row in files)
        self._result.add(
            WRONG_ROWS,
            (
                f"{row['path']}: {row['count']:,} rows, {should:,} in the table"
                for row in files
                if row["count"] != (should := self._files[row["path"]].rows)
            ),
        )


def spans_of(rows: Iterable[Row], files: Mapping[str, LakeFile]) -> list[Span]:
    """Which hours files have messages of; ``rows`` are their `FILE` rows, ``files`` by path."""
    return [
        Span(files[row["path"]].path, row["start_ns"], row["last_ns"])
        for row in rows
        if row["start_ns"] is not None
    ]


def file_checks(
    session: SparkSession, files: Sequence[LakeFile], kinds: Sequence[str] = ROW_FAULTS
) -> list[Row]:
    """What workers find in files, as `_FOUND`: a row for each file, and for each task one for each
    hour and kind of fault.

    Faults of ``kinds`` are looked for. A file that cannot be read is one, and no `FILE`.

    Raises:
        PipelineError: Spark gives up.
    """
    work = partial(_checked, tuple(kinds))
    try:
        return over_files(session, work, files, _FOUND).collect()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def _checked(kinds: Sequence[str], files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    hours: Fingerprints = {}
    faults = _Faults()
    for file in files:
        path = relative(file.path)
        try:
            with at_hand(file.path) as here:
                count, found, wrong = _look(file, here, kinds)
                digest = digest_of(here)
        except StoreError as error:  # which says nothing about the file
            raise of_file(file.path, error) from error
        except (PipelineError, FileNotFoundError):
            faults.add(UNREADABLE, 1, [path])
            continue
        ends = (min(found), max(found)) if found else (None, None)
        yield _row(FILE, count, [digest], path, ends)
        for hour, each in found.items():
            hours[hour] = hours.get(hour, NOTHING).joined(each)
        for kind, (number, where) in wrong.items():
            faults.add(kind, number, where)
    if hours:
        rows = as_rows(hours)
        more = [pa.repeat(HOUR, len(rows))]
        more += [pa.nulls(len(rows), _FOUND.field(name).type) for name in _FOUND.names[-3:]]
        yield pa.record_batch([*rows.columns, *more], schema=_FOUND)
    for kind, (number, where) in faults.items():
        yield _row(kind, number, where)


class _Faults(dict[str, tuple[int, list[str]]]):
    """By kind of fault the number, and some places."""

    def add(self, kind: str, number: int, where: Iterable[str]) -> None:
        """Count in some more; of the places no more than `MAX_LISTED` are kept."""
        count, listed = self.get(kind, (0, []))
        listed.extend(islice(where, MAX_LISTED - len(listed)))
        self[kind] = count + number, listed


def _row(
    kind: str,
    count: int,
    where: list[str],
    path: str | None = None,
    ends: tuple[int | None, int | None] = (None, None),
) -> pa.RecordBatch:
    given = {"kind": kind, "path": path, "count": count, "where": where}
    first, last = ends
    return pa.RecordBatch.from_pylist([{**given, "start_ns": first, "last_ns": last}], _FOUND)


def _look(file: LakeFile, here: str, kinds: Sequence[str]) -> tuple[int, Fingerprints, _Faults]:
    """How many rows a file has, what it holds by hour, and what is wrong with it."""
    count = 0
    found: Fingerprints = {}
    faults = _Faults()
    names = HASHED if tuple(kinds) == (WRONG_HASH,) else CHECKED
    for rows in batches_of(here, names):
        count += len(rows)
        if names is CHECKED:
            add_rows(found, rows, HOUR_NS)
        for kind, which in row_faults(rows, [file.shard], kinds).items():
            places = np.flatnonzero(which)
            if len(places):
                listed = rows.take(pa.array(places[:MAX_LISTED]))
                faults.add(kind, len(places), _named(listed, file.path))
    wrong = [hour for hour in found if hour // DAY_NS != file.day]
    if wrong:
        path = relative(file.path)
        told = (
            f"{found[hour].messages:,} messages of {time_text(hour)} in {path}" for hour in wrong
        )
        faults.add(WRONG_DAY, len(wrong), told)
    return count, found, faults


def _named(rows: pa.RecordBatch, path: str) -> list[str]:
    return [
        f"{(row['hash'] or b'').hex()} at {row['ts']} in {relative(path)}"
        for row in rows.select(["ts", "hash"]).to_pylist()
    ]


def relative(path: str) -> str:
    """The path of a file in its table."""
    return unquote(path).rsplit("/messages/", 1)[-1]


def _check_hours(lake: Lake, days: set[int], held: Fingerprints, result: Verified) -> None:
    noted = {hour: each for hour, each in lake.hours().items() if hour // DAY_NS in days}
    wrong = [hour for hour in differing(noted, held) if hour in noted]
    result.add(
        WRONG_HOUR,
        (
            f"{time_text(hour)}: {held.get(hour, NOTHING).messages:,} messages,"
            f" {noted[hour].messages:,} noted"
            for hour in wrong
        ),
    )


def _check_required(wanted: Required, held: Held, job: Verifying, result: Verified) -> None:
    for kind, where in wanted.faults(held, job.covers):
        result.add(kind, where)
    result.notes.append(wanted.note(held))


def _check_database(url: str, job: Verifying, held: Fingerprints, result: Verified) -> None:
    sealed_ns = min(job.high_ns, time.time_ns()) // HOUR_NS * HOUR_NS
    with connected(url) as connection:
        state = read_state(connection, -(-job.low_ns // HOUR_NS) * HOUR_NS, sealed_ns)
        marks = read_marks(connection, job.lake.path)
    wanted = state.fingerprints
    result.add(
        DIFFERENT,
        (
            f"{time_text(hour)}: {wanted[hour].messages:,} messages in the database,"
            f" {held.get(hour, NOTHING).messages:,} in the archive"
            for hour in differing(wanted, held)
            if hour in wanted
        ),
    )
    marked = {hour: each for hour, each in marks.items() if job.covers(hour // DAY_NS)}
    result.add(LOST_MARKED, shortfalls(marked, held, "when it was marked"))
    result.notes.append(f"The database has marked {len(marks):,} hours as archived here.")
