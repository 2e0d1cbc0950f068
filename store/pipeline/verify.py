"""`verify`: compare an archive with its messages' hashes, its commits and the database.

Every hash is computed again, and every hour's count and XOR. Rows must be messages that a node may
store, in the directory of their day and shard, and each there once. The files, hours and commits
that the manifest names must be there unchanged, and so must the hours that the database has marked
as archived here. The rows of files that are not as they were are not looked at. The database is
compared as of the archive's newest commit: messages that came later are not archived yet, which is
no fault. Where the hashes of an hour are the same, contents are compared, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline import parquet
from store.pipeline.columns import CONTENT_DIGEST, HASH_WORDS
from store.pipeline.database import FOREVER, connected, other_stores, read_as_of, read_marks
from store.pipeline.delta import DataFile, DeltaArchive
from store.pipeline.diff import CONTENT_COLUMNS, compared, conflict_lines
from store.pipeline.errors import USAGE, PipelineError, spark_errors
from store.pipeline.files import checked
from store.pipeline.fingerprints import NOTHING, Fingerprints, collected, differing, short_hours
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS, MAX_LISTED, SHARD_PARTITIONS
from store.pipeline.manifest import Manifest, day_of, read_manifest
from store.pipeline.message_sets import DatabaseMessages
from store.pipeline.reports import JobReport, time_text
from store.pipeline.source import NO_SHARD
from store.pipeline.spark import logged
from storenode.message.limits import HASH_BYTES, MAX_TOPIC_BYTES

WRONG_HASH: Final = "hash is not that of the message"
WRONG_WORDS: Final = "h0 to h3 are not the hash"
WRONG_PLACE: Final = "in the directory of another day or shard"
NOT_ELIGIBLE: Final = "no message that a node stores"

CHECKED: Final = (
    "ts",
    "hash",
    *HASH_WORDS,
    "pubsub_topic",
    "content_topic",
    "payload",
    "meta",
    "ephemeral",
    "day",
    "shard",
)
"""The columns that are checked."""

_NUMBER: Final = "(0|[1-9][0-9]{0,4})"
_PART: Final = (
    rf"try_cast(regexp_extract(pubsub_topic, r'\A/waku/2/rs/{_NUMBER}/{_NUMBER}\z', %d) as int)"
)
_SHARD_OF_TOPIC: Final = f"""
case when pubsub_topic is null then null
     when {_PART % 1} <= {0xFFFF} and {_PART % 2} <= {0xFFFF}
     then {_PART % 2} % {SHARD_PARTITIONS} else {NO_SHARD} end"""
_WORDS: Final = ", ".join(f"lpad(hex({word}), 16, '0')" for word in reversed(HASH_WORDS))
_TOPIC: Final = (
    f"is_valid_utf8(%s) and octet_length(%s) between 1 and {MAX_TOPIC_BYTES}"
    " and not contains(%s, chr(0))"
)

RULES: Final[Mapping[str, str]] = {
    NOT_ELIGIBLE: f"""
        ts > 0 and not coalesce(ephemeral, false)
        and {_TOPIC % (("pubsub_topic",) * 3)} and {_TOPIC % (("content_topic",) * 3)}""",
    # 14/WAKU2-MESSAGE
    WRONG_HASH: """
        sha2(concat(cast(pubsub_topic as binary), payload, cast(content_topic as binary),
            coalesce(meta, X''), unhex(lpad(hex(ts), 16, '0'))), 256) = lower(hex(hash))""",
    # The words are little-endian to the bytes of the hash.
    WRONG_WORDS: f"""
        regexp_replace(reverse(concat({_WORDS})), '(.)(.)', '$2$1') = hex(hash)
        and octet_length(hash) = {HASH_BYTES}""",
    WRONG_PLACE: f"shard = {_SHARD_OF_TOPIC} and ts div {DAY_NS} = unix_date(day)",
}
"""The conditions of a sound row, by the fault of a row that does not meet them."""


def row_faults() -> Mapping[str, Column]:
    """Return a condition for each kind of fault; it is true for the rows that have it."""
    return {kind: F.expr(f"not coalesce({rule}, false)") for kind, rule in RULES.items()}


def count_faults(rows: DataFrame) -> tuple[int, dict[str, int]]:
    """Count the rows, and those that have each kind of fault, if there are any."""
    counted = [F.count_if(fault).alias(kind) for kind, fault in row_faults().items()]
    (found,) = rows.agg(F.count(F.lit(1)).alias("rows"), *counted).collect()
    return found["rows"], {kind: found[kind] for kind in row_faults() if found[kind]}


TWICE: Final = "there more than once"
DIFFERENT: Final = "hour is not the same in the database"
CONFLICTING: Final = "message has another content in the database"
LOST_MARKED: Final = "hour was marked as archived here, and is no longer here in full"
LOST_HOUR: Final = "hour of the manifest is no longer here in full"
LOST_FILE: Final = "file of the manifest is not in the table"
UNKNOWN_FILE: Final = "file of the table is not in the manifest"
LOST_COMMIT: Final = "commit of the manifest is missing from the log"
BROKEN_MANIFEST: Final = "manifest is damaged"
CUT_MANIFEST: Final = "manifest does not begin as its copy does"


@dataclass(frozen=True)
class VerifyFault:
    """A kind of fault, how many there are, and the first `MAX_LISTED` places."""

    kind: str
    count: int
    where: tuple[str, ...]


@dataclass
class FaultList(JobReport):
    """The faults that a job has found."""

    faults: list[VerifyFault] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if nothing was found."""
        return not self.faults

    def add(self, kind: str, where: Iterable[str], count: int | None = None) -> None:
        """Add a kind of fault, unless there are none; ``count`` None: as many as ``where``."""
        listed = list(where)
        number = len(listed) if count is None else count
        if number:
            self.faults.append(VerifyFault(kind, number, tuple(listed[:MAX_LISTED])))

    def add_files(self, archive: DeltaArchive, files: Mapping[str, Iterable[DataFile]]) -> None:
        """Add files by the kind of their fault."""
        for kind, found in files.items():
            self.add(kind, map(archive.within, found))

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {**super().as_json(), "faults": [asdict(each) for each in self.faults]}

    def fault_lines(self) -> list[str]:
        """Return the faults as text."""
        found = []
        for fault in self.faults:
            found.append(f"{fault.kind}: {fault.count:,}")
            found += [f"  {where}" for where in fault.where]
            if fault.count > len(fault.where):
                found.append(f"  and {fault.count - len(fault.where):,} more")
        return found


@dataclass
class VerifyReport(FaultList):
    """The result of a verification, and the faults; ``notes`` are further sentences."""

    messages: int = 0
    files: int = 0
    hours: int = 0
    not_archived_yet: int = 0
    compared_with_database: bool = False
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as text."""
        found = [
            f"Verified {self.messages:,} messages of {self.hours:,} hours in {self.files:,} files."
        ]
        found += [*self.notes, *self.fault_lines()]
        return [*found, "Nothing is wrong." if self.sound else "The archive is not sound."]


@dataclass(frozen=True)
class VerifyJob:
    """An archive, a range of time, and the database to compare with, if any.

    ``manifest`` is the directory of a copy of the archive's manifest.
    """

    archive: DeltaArchive
    url: str | None = None
    low_ns: int = 0
    high_ns: int = FOREVER
    manifest: str | None = None
    connections: int = MAX_CONNECTIONS

    def covers(self, day: int) -> bool:
        """Return True if a day (since the epoch) is verified; days are verified as a whole."""
        return self.low_ns // DAY_NS <= day < -(-self.high_ns // DAY_NS)


@spark_errors()
def verify(session: SparkSession, job: VerifyJob) -> VerifyReport:
    """Verify an archive; change nothing."""
    archive = job.archive.open()
    copy = _read_copy(job.manifest)
    files = [each for each in archive.files() if job.covers(each.day)]
    result = VerifyReport(files=len(files), compared_with_database=job.url is not None)
    if job.url is not None:
        with connected(job.url) as connection:
            result.notes += other_stores(connection, archive.path, archive.manifest.positions)
    with logged("verify", sum(each.rows for each in files)):
        sound = _check_files(session, archive, files, result)
        hours = _check_rows(session, archive, sound, result) if sound else []
    stored = collected(hours)
    result.hours = len(stored)
    _check_manifest(job, copy, stored, result)
    if job.url is not None:
        database = DatabaseMessages(session, job.url, job.connections)
        _check_database(job, database, stored, result)
        with logged("contents"):
            _check_contents(database, sound, stored, hours, result)
    return result


def _check_files(
    session: SparkSession, archive: DeltaArchive, files: list[DataFile], result: FaultList
) -> list[DataFile]:
    """Return the files that are those that the manifest names, or that it does not name."""
    lost = parquet.lost_files(session, archive, files)
    sound = sorted({*files}.difference(*lost.values()))
    unknown = [each for each in sound if archive.within(each) not in archive.manifest.files]
    result.add_files(archive, {**lost, UNKNOWN_FILE: unknown})
    return sound


def _check_rows(
    session: SparkSession, archive: DeltaArchive, files: list[DataFile], result: VerifyReport
) -> list[Row]:
    """Check all rows of some files; return by hour what they hold."""
    kinds = row_faults()
    read = parquet.read_files(session, files, (*CHECKED, parquet.PATH.name, CONTENT_DIGEST))
    faults = [fault.alias(kind) for kind, fault in kinds.items()]
    rows = read.select(parquet.PATH.name, parquet.start_of(HOUR_NS), *CONTENT_COLUMNS, *faults)
    counts = [F.count_if(F.col(f"`{kind}`")).alias(kind) for kind in kinds]
    if result.compared_with_database:
        counts.append(parquet.content_sum())
    hours = rows.groupBy("start_ns").agg(*parquet.sums(), *counts).collect()
    result.messages = sum(row["count"] for row in hours)
    for kind in kinds:
        if count := sum(row[kind] for row in hours):
            few = rows.where(F.col(f"`{kind}`")).select("ts", "hash", "path").limit(MAX_LISTED)
            prefix = f"{archive.messages}/"
            where = (
                f"{_hex(row['hash'])} at {row['ts']} in {row['path'].removeprefix(prefix)}"
                for row in few.collect()
            )
            result.add(kind, where, count)
    keys = parquet.read_files(session, files, ("ts", "hash")).groupBy("ts", "hash")
    again = keys.agg(F.count(F.lit(1)).alias("count")).where("count > 1")
    if several := again.count():
        listed = again.orderBy("ts", "hash").limit(MAX_LISTED).collect()
        where = (f"{_hex(row['hash'])} at {row['ts']}: {row['count']} times" for row in listed)
        result.add(TWICE, where, several)
    return hours


def _hex(digest: bytes | None) -> str:
    return bytes(digest or b"").hex()


def _read_copy(path: str | None) -> Manifest | None:
    """Read the copy of a manifest."""
    if path is None:
        return None
    found = read_manifest(checked(path, "The copy of a manifest"))
    if not found.digests:
        raise PipelineError(
            f"There is no manifest in {found.path}: name a copy of the directory `manifest` of an"
            " archive.",
            USAGE,
        )
    return found


def _check_manifest(
    job: VerifyJob, copy: Manifest | None, stored: Fingerprints, result: VerifyReport
) -> None:
    """Compare log, files and hours with the manifest, and with a copy of it."""
    archive, own = job.archive, job.archive.manifest
    wanted = [own]
    if copy is not None and own.digests[: len(copy.digests)] != copy.digests:
        result.add(CUT_MANIFEST, [_first_difference(own, copy)])
        wanted = [copy, own]
    broken = [f"{each.path}/{line}" for each in wanted for line in each.broken]
    faults = [*archive.uncopied_faults(), *archive.log_faults()]
    result.add(BROKEN_MANIFEST, broken + [f"{own.path}/{line}" for line in faults])
    newest = max(each.version for each in wanted)
    if newest > archive.version:
        result.add(LOST_COMMIT, [f"{newest}: the newest commit of the log is {archive.version}"])
    paths = set(map(archive.within, archive.files()))
    files = {path for each in wanted for path in each.files if job.covers(day_of(path))}
    result.add(LOST_FILE, sorted(files - paths))
    hours: Fingerprints = {}
    for each in wanted:
        hours |= {
            hour: sum_
            for hour, sum_ in each.required.items()
            if job.covers(hour // DAY_NS) and sum_.messages >= hours.get(hour, NOTHING).messages
        }
    result.add(LOST_HOUR, hours_in_words(hours, stored, "in the manifest"))
    unnamed = sum(path not in paths and path not in own.removed for path in archive.stored())
    result.notes.append(f"The manifest has {len(own.digests):,} commits.")
    if unnamed:
        result.notes.append(
            f"{unnamed:,} files below {archive.path}/messages are named by no commit: jobs that"
            " were killed left them."
        )


def _first_difference(own: Manifest, copy: Manifest) -> str:
    pairs = zip_longest(own.digests, copy.digests)
    first = next(number for number, (one, other) in enumerate(pairs) if one != other)
    what = "is not here" if first > own.version else "is another here"
    return f"commit {first:,} of {len(copy.digests):,} in {copy.path} {what}"


def hours_in_words(
    wanted: Fingerprints, stored: Fingerprints, where: str, hours: list[int] | None = None
) -> list[str]:
    """Return a line for each of some hours, by default those that lack something.

    ``where`` is the place of ``wanted``.
    """
    return [
        f"{time_text(hour)}: {stored.get(hour, NOTHING).messages:,} messages,"
        f" {wanted[hour].messages:,} {where}"
        for hour in (short_hours(wanted, stored) if hours is None else hours)
    ]


def _check_database(
    job: VerifyJob, database: DatabaseMessages, stored: Fingerprints, result: VerifyReport
) -> None:
    """Compare with the database as of the archive's newest commit, and with its marks."""
    now_ns = time.time_ns()
    sealed_ns = min(job.high_ns, now_ns) // HOUR_NS * HOUR_NS
    low_ns = -(-job.low_ns // HOUR_NS) * HOUR_NS
    with connected(database.url) as connection:
        as_of = read_as_of(connection, job.archive.manifest.positions, (low_ns, sealed_ns), stored)
        marks = read_marks(connection, job.archive.path)
    wanted, result.not_archived_yet = as_of
    if result.not_archived_yet:
        result.notes.append(
            f"{result.not_archived_yet:,} messages came after the archive's newest commit: they"
            " are not archived yet."
        )
    if later := sum(max(now_ns, low_ns - 1) < hour < job.high_ns for hour in database.hours):
        result.notes.append(
            "Hours of the database that were not compared, since they begin in the future by the"
            f" clock of this machine, which says {time_text(now_ns)}: {later:,}."
        )
    other = sorted(hour for hour in wanted if wanted[hour] != stored.get(hour, NOTHING))
    result.add(DIFFERENT, hours_in_words(wanted, stored, "in the database", other))
    marked = {hour: each for hour, each in marks.items() if job.covers(hour // DAY_NS)}
    result.add(LOST_MARKED, hours_in_words(marked, stored, "when it was marked"))
    result.notes.append(f"The database has marked {len(marks):,} hours as archived here.")


def _check_contents(
    database: DatabaseMessages,
    files: list[DataFile],
    stored: Fingerprints,
    hours: list[Row],
    result: VerifyReport,
) -> None:
    """Find messages with another content in the database, in hours that have the same hashes."""
    same = {hour for hour, each in stored.items() if database.hours.get(hour) == each}
    theirs = parquet.contents_by_hour(database.messages(parquet.CONTENT, hours=sorted(same)))
    own = {row["start_ns"]: row["contents"] for row in hours if row["start_ns"] in same}
    if other := differing(own, theirs):
        days = {hour // DAY_NS for hour in other}
        few = [each for each in files if each.day in days]
        rows = parquet.read_files(database.session, few, CONTENT_COLUMNS)
        sides = [rows, database.messages(CONTENT_COLUMNS, hours=other)]
        found = compared(database.session, sides, other)
        lines = conflict_lines(found, "the database")
        result.add(CONFLICTING, lines, found.where("lacks is null").count())
