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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession

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
from store.pipeline.repeated import repeated
from store.pipeline.reports import time_text
from store.pipeline.requiring import Held, Required, required, shortfalls
from store.pipeline.storage import at_hand

WRONG_DAY: Final = "hour in the directory of another day"
TWICE: Final = "there more than once"
UNREADABLE: Final = "file cannot be read"
WRONG_ROWS: Final = "file has another number of rows than the table says"
WRONG_HOUR: Final = "hour is not what was noted when it was archived"
DIFFERENT: Final = "hour is not the same in the database"
LOST_MARKED: Final = "hour was marked as archived here, and is no longer here in full"

HOUR: Final = "hour"
DIGEST: Final = "digest"
_FOUND: Final = pa.schema(
    [
        *ROWS,
        pa.field("kind", pa.string()),
        pa.field("path", pa.string()),
        pa.field("where", pa.list_(pa.string())),
    ]
)
"""A finding about a file: the fingerprint of an `HOUR`, its SHA-256 as `DIGEST`, or a kind of
fault with its number and some places."""


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
        Held({*map(lake.within, lake.files())}, rows.digests, held, lake.version),
        job,
        result,
    )
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
        hours = by_kind.pop(HOUR, [])
        self.digests |= {row["path"]: row["where"][0] for row in by_kind.pop(DIGEST, [])}
        self._check_numbers(hours, by_kind)
        for kind in (UNREADABLE, *ROW_FAULTS):
            self._add(kind, by_kind.get(kind, []))
        self._check_days(hours)
        self._add(TWICE, repeated(self._session, self._held(hours)))
        return collected(hours)

    def _add(self, kind: str, rows: list[Row]) -> None:
        listed = [text for row in rows for text in row["where"]]
        self._result.add(kind, listed, sum(row["count"] for row in rows))

    def _check_numbers(self, hours: list[Row], faults: Mapping[str, list[Row]]) -> None:
        """Whether each file has the rows that it should."""
        found = Counter[str]()
        for row in hours:
            found[row["path"]] += row["count"]
        self._result.messages = found.total()
        unreadable = {row["path"] for row in faults.get(UNREADABLE, [])}
        self._result.add(
            WRONG_ROWS,
            (
                f"{path}: {found[path]:,} rows, {each.rows:,} in the table"
                for path, each in self._files.items()
                if found[path] != each.rows and path not in unreadable
            ),
        )

    def _held(self, hours: list[Row]) -> dict[int, list[tuple[str, int]]]:
        """By hour the files that have messages of it, and how many."""
        held: dict[int, list[tuple[str, int]]] = {}
        for row in hours:
            file = self._files[row["path"]].path
            held.setdefault(row["start_ns"], []).append((file, row["count"]))
        return held

    def _check_days(self, hours: list[Row]) -> None:
        self._result.add(
            WRONG_DAY,
            (
                f"{row['count']:,} messages of {time_text(row['start_ns'])} in {row['path']}"
                for row in hours
                if row["start_ns"] // DAY_NS != self._files[row["path"]].day
            ),
        )


def file_checks(
    session: SparkSession, files: Sequence[LakeFile], kinds: Sequence[str] = ROW_FAULTS
) -> list[Row]:
    """What workers find in files, as `_FOUND`: by file and hour a fingerprint, and the faults.

    Faults of ``kinds`` are looked for. A file that cannot be read is one, and has no hours.

    Raises:
        PipelineError: Spark gives up.
    """
    work = partial(_checked, tuple(kinds))
    try:
        return over_files(session, work, files, _FOUND).collect()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def _checked(kinds: Sequence[str], files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        path = relative(file.path)
        try:
            with at_hand(file.path) as here:
                found, faults = _look(file, here, kinds)
                digest = digest_of(here)
        except StoreError as error:  # which says nothing about the file
            raise of_file(file.path, error) from error
        except (PipelineError, FileNotFoundError):
            yield _row(UNREADABLE, path, 1, [path])
            continue
        yield _row(DIGEST, path, 0, [digest])
        if found:
            hours = as_rows(found)
            more = [
                pa.repeat(HOUR, len(hours)),
                pa.repeat(path, len(hours)),
                pa.nulls(len(hours), pa.list_(pa.string())),
            ]
            yield pa.record_batch([*hours.columns, *more], schema=_FOUND)
        for kind, (count, where) in faults.items():
            yield _row(kind, path, count, where)


def _row(kind: str, path: str, count: int, where: list[str]) -> pa.RecordBatch:
    given = {"kind": kind, "path": path, "count": count, "where": where}
    return pa.RecordBatch.from_pylist([given], _FOUND)


def _look(
    file: LakeFile, here: str, kinds: Sequence[str]
) -> tuple[Fingerprints, dict[str, tuple[int, list[str]]]]:
    """What a file holds by hour; of each kind of fault the number, and some that have it."""
    found: Fingerprints = {}
    faults: dict[str, tuple[int, list[str]]] = {}
    names = HASHED if tuple(kinds) == (WRONG_HASH,) else CHECKED
    for rows in batches_of(here, names):
        if names is CHECKED:
            add_rows(found, rows, HOUR_NS)
        for kind, which in row_faults(rows, [file.shard], kinds).items():
            places = np.flatnonzero(which)
            if len(places):
                count, where = faults.get(kind, (0, []))
                listed = rows.take(pa.array(places[: MAX_LISTED - len(where)]))
                faults[kind] = count + len(places), [*where, *_named(listed, file.path)]
    return found, faults


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
