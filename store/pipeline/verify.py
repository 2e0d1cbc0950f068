"""`verify`: compare an archive with its messages' hashes, its commits and the database.

Every hash is computed anew, and every hour's count and XOR. Rows must be messages that a node may
store, in the directory of their day and shard, and each there once. The files, hours and commits
that the manifest names must be there unchanged, and so must the hours that the database has marked
as archived here. The database is compared as of the archive's newest commit: messages that came
later are not archived yet, which is no fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.database import FOREVER, connected, read_as_of, read_marks
from store.pipeline.delta import DataFile, DeltaArchive, Manifest, read_manifest, short_hours
from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark
from store.pipeline.files import checked
from store.pipeline.fingerprints import HASH_WORDS, NOTHING, Fingerprints
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_LISTED, SHARD_PARTITIONS
from store.pipeline.parquet import (
    KEPT,
    PATH,
    batches_of,
    file_digests,
    joined_by_hour,
    read_files,
    start_of,
    sums,
)
from store.pipeline.reports import JobReport, time_text
from store.pipeline.source import NO_SHARD
from store.pipeline.spark import Say, shown, silent
from storenode.message.limits import HASH_BYTES, MAX_TOPIC_BYTES

WRONG_HASH: Final = "hash is not that of the message"
WRONG_WORDS: Final = "h0 to h3 are not the hash"
WRONG_PLACE: Final = "in the directory of another shard"
NOT_ELIGIBLE: Final = "no message that a node stores"
TOO_LONG: Final = "a topic is longer than may be"

CHECKED: Final = (
    "ts",
    "hash",
    *HASH_WORDS,
    "pubsub_topic",
    "content_topic",
    "payload",
    "meta",
    "ephemeral",
    "shard",
)
"""The columns that are checked."""

_TOPICS: Final = ("pubsub_topic", "content_topic")
_NUMBER: Final = "(0|[1-9][0-9]{0,4})"
_SHARD_TOPIC: Final = rf"\A/waku/2/rs/{_NUMBER}/{_NUMBER}\z"
_MAX_UINT16: Final = 0xFFFF


def row_faults() -> Mapping[str, Column]:
    """Return a condition for each kind of fault; it is true for the rows that have it."""
    return {
        NOT_ELIGIBLE: _unless(_is_eligible()),
        WRONG_HASH: _unless(F.sha2(_hashed(), 256) == F.lower(F.hex("hash"))),
        WRONG_WORDS: _unless(
            (_words_hex() == F.hex("hash")) & (F.octet_length("hash") == HASH_BYTES)
        ),
        TOO_LONG: _unless(_all_topics(lambda name: F.octet_length(name) <= MAX_TOPIC_BYTES)),
        WRONG_PLACE: _unless(_shard_of_topic() == F.col("shard")),
    }


def count_faults(rows: DataFrame) -> tuple[int, dict[str, int]]:
    """Count the rows, and those that have each kind of fault, if there are any."""
    counted = [F.count_if(fault).alias(kind) for kind, fault in row_faults().items()]
    (found,) = rows.agg(F.count(F.lit(1)).alias("rows"), *counted).collect()
    return found["rows"], {kind: found[kind] for kind in row_faults() if found[kind]}


def _unless(condition: Column) -> Column:
    return ~F.coalesce(condition, F.lit(False))


def _is_eligible() -> Column:
    lasting = ~F.coalesce("ephemeral", F.lit(False))
    return (F.col("ts") > 0) & lasting & _all_topics(_is_topic)


def _is_topic(name: str) -> Column:
    whole = F.is_valid_utf8(name) & (F.octet_length(name) > 0)
    return whole & ~F.contains(name, F.lit("\0"))


def _all_topics(condition: Callable[[str], Column]) -> Column:
    first, second = map(condition, _TOPICS)
    return first & second


def _hashed() -> Column:
    """Return the bytes whose SHA-256 is the hash (14/WAKU2-MESSAGE)."""
    time = F.unhex(F.lpad(F.hex("ts"), 16, "0"))
    topics = [F.col(name).cast("binary") for name in _TOPICS]
    meta = F.coalesce("meta", F.lit(b""))
    return F.concat(topics[0], F.col("payload"), topics[1], meta, time)


def _words_hex() -> Column:
    """Return the words as the digits of the hash, to whose bytes they are little-endian."""
    words = (F.lpad(F.hex(word), 16, "0") for word in reversed(HASH_WORDS))
    return F.regexp_replace(F.reverse(F.concat(*words)), "(.)(.)", "$2$1")


def _shard_of_topic() -> Column:
    """Return what `store.pipeline.source.shard_of` does."""
    cluster, shard = (
        F.regexp_extract("pubsub_topic", _SHARD_TOPIC, group).try_cast("int") for group in (1, 2)
    )
    is_static = (cluster <= _MAX_UINT16) & (shard <= _MAX_UINT16)
    number = F.when(is_static, shard % SHARD_PARTITIONS).otherwise(NO_SHARD)
    return F.when(F.col("pubsub_topic").isNotNull(), number)


WRONG_DAY: Final = "hour in the directory of another day"
TWICE: Final = "there more than once"
UNREADABLE: Final = "file cannot be read"
WRONG_ROWS: Final = "file has another number of rows than the table says"
DIFFERENT: Final = "hour is not the same in the database"
LOST_MARKED: Final = "hour was marked as archived here, and is no longer here in full"
LOST_HOUR: Final = "hour of the manifest is no longer here in full"
LOST_FILE: Final = "file of the manifest is not in the table"
CHANGED_FILE: Final = "file is not the one that the manifest names"
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

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {**super().as_json(), "faults": [asdict(each) for each in self.faults]}

    def fault_lines(self) -> list[str]:
        """Return the faults in words."""
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
        """Return the report in words."""
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
    say: Say = silent
    manifest: str | None = None

    def covers(self, day: int) -> bool:
        """Return True if a day (since the epoch) is verified; days are verified as a whole."""
        return self.low_ns // DAY_NS <= day < -(-self.high_ns // DAY_NS)


def verify(session: SparkSession, job: VerifyJob) -> VerifyReport:
    """Verify an archive; change nothing."""
    archive = job.archive.open()
    copy = _read_copy(job.manifest)
    files = [each for each in archive.files() if job.covers(each.day)]
    result = VerifyReport(files=len(files), compared_with_database=job.url is not None)
    try:
        with shown(job.say, "verify", sum(each.rows for each in files)):
            digests = {path: each for path, (_, each) in file_digests(session, files).items()}
            stored = _check_files(session, job, files, digests, result)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    result.hours = len(stored)
    _check_manifest(job, copy, digests, stored, result)
    if job.url is not None:
        _check_database(job.url, job, stored, result)
    return result


def _check_files(
    session: SparkSession,
    job: VerifyJob,
    files: list[DataFile],
    digests: Mapping[str, str],
    result: VerifyReport,
) -> Fingerprints:
    """Check the rows of all files that can be read; return what they hold by hour."""
    unreadable = [each for each in files if not _is_readable(job.archive, each, digests)]
    result.add(UNREADABLE, map(job.archive.within, unreadable))
    lost = {each.path for each in unreadable}
    readable = {each.path: each for each in files if each.path not in lost}
    if not readable:
        return {}
    read = read_files(session, readable.values(), (*CHECKED, "day", PATH.name))
    faults = [fault.alias(kind) for kind, fault in row_faults().items()]
    rows = read.select(PATH.name, start_of(HOUR_NS), "day", "ts", "hash", *HASH_WORDS, *faults)
    counts = [F.count_if(F.col(f"`{kind}`")).alias(kind) for kind in row_faults()]
    parts = rows.groupBy(PATH.name, "day", "start_ns").agg(*sums(), *counts).persist(KEPT)
    _check_counts(job.archive, readable, parts, result)
    _list_faults(job.archive, rows, parts, result)
    stored = joined_by_hour(parts)
    parts.unpersist()
    keys = read_files(session, readable.values(), ("ts", "hash"))
    counted = keys.groupBy("ts", "hash").agg(F.count(F.lit(1)).alias("count"))
    again = counted.where("count > 1").persist(KEPT)
    several = again.count()
    if several:
        listed = again.orderBy("ts", "hash").limit(MAX_LISTED).collect()
        where = (f"{_hex(row)} at {row['ts']}: {row['count']} times" for row in listed)
        result.add(TWICE, where, several)
    again.unpersist()
    return stored


def _is_readable(archive: DeltaArchive, file: DataFile, digests: Mapping[str, str]) -> bool:
    """Return True if a file can be read: it is the one that was read back, or it is read now."""
    digest = digests.get(file.path)
    record = archive.manifest.files.get(archive.within(file))
    if digest is None:
        return False
    if record is not None and record.digest == digest:
        return True
    try:
        for _ in batches_of(file.path, CHECKED[:-1]):
            pass
    except PipelineError:
        return False
    return True


def _check_counts(
    archive: DeltaArchive, files: Mapping[str, DataFile], parts: DataFrame, result: VerifyReport
) -> None:
    """Check the rows of each file; ``parts`` are aggregates of files by hour."""
    counted = parts.groupBy(PATH.name).agg(F.sum("count").alias("count")).collect()
    counts = dict.fromkeys(files, 0) | {row["path"]: row["count"] for row in counted}
    result.messages = sum(counts.values())
    result.add(
        WRONG_ROWS,
        (
            f"{archive.within(files[path])}: {count:,} rows, {files[path].rows:,} in the table"
            for path, count in counts.items()
            if count != files[path].rows
        ),
    )
    misplaced = parts.where(
        F.col("start_ns").isNotNull() & (F.expr(f"start_ns div {DAY_NS}") != F.unix_date("day"))
    )
    where = (
        f"{row['count']:,} messages of {time_text(row['start_ns'])} in"
        f" {archive.within(files[row['path']])}"
        for row in misplaced.limit(MAX_LISTED).collect()
    )
    result.add(WRONG_DAY, where, misplaced.count())


def _list_faults(
    archive: DeltaArchive, rows: DataFrame, parts: DataFrame, result: VerifyReport
) -> None:
    (counts,) = parts.agg(*(F.sum(f"`{kind}`").alias(kind) for kind in row_faults())).collect()
    for kind in row_faults():
        if not counts[kind]:
            continue
        few = rows.where(F.col(f"`{kind}`")).select("ts", "hash", "path").limit(MAX_LISTED)
        prefix = f"{archive.messages}/"
        where = (
            f"{_hex(row)} at {row['ts']} in {row['path'].removeprefix(prefix)}"
            for row in few.collect()
        )
        result.add(kind, where, counts[kind])


def _hex(row: Row) -> str:
    return bytes(row["hash"] or b"").hex()


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
    job: VerifyJob,
    copy: Manifest | None,
    digests: Mapping[str, str],
    stored: Fingerprints,
    result: VerifyReport,
) -> None:
    """Compare log, files and hours with the manifest, and with a copy of it."""
    archive, own = job.archive, job.archive.manifest
    manifests = [own] if copy is None else [copy, own]
    broken = [f"{each.path}/{line}" for each in manifests for line in each.broken]
    result.add(BROKEN_MANIFEST, broken + [f"{own.path}/{line}" for line in archive.log_faults(own)])
    is_cut = copy is not None and own.digests[: len(copy.digests)] != copy.digests
    if copy is not None and is_cut:
        result.add(CUT_MANIFEST, [_first_difference(own, copy)])
    # Where the archive's own manifest continues the copy, the copy says nothing more.
    wanted = manifests if is_cut else [own]
    newest = max(each.version for each in wanted)
    if newest > archive.version:
        result.add(LOST_COMMIT, [f"{newest}: the newest commit of the log is {archive.version}"])
    paths = set(map(archive.within, archive.files()))
    files = {path: each for some in wanted for path, each in some.files.items()}
    files = {path: each for path, each in files.items() if job.covers(each.day)}
    result.add(LOST_FILE, sorted(files.keys() - paths))
    result.add(
        CHANGED_FILE,
        sorted(
            path
            for path, each in files.items()
            if each.digest != digests.get(f"{archive.messages}/{path}", each.digest)
            and each.digest is not None
        ),
    )
    hours: Fingerprints = {}
    for each in wanted:
        hours |= {
            hour: sum_
            for hour, sum_ in each.required.items()
            if job.covers(hour // DAY_NS) and sum_.messages >= hours.get(hour, NOTHING).messages
        }
    result.add(LOST_HOUR, hours_in_words(hours, stored, "in the manifest"))
    result.notes += _notes(archive, own)


def _first_difference(own: Manifest, copy: Manifest) -> str:
    pairs = zip_longest(own.digests, copy.digests)
    first = next(number for number, (one, other) in enumerate(pairs) if one != other)
    what = "is not here" if first > own.version else "is another here"
    return f"commit {first:,} of {len(copy.digests):,} in {copy.path} {what}"


def _notes(archive: DeltaArchive, own: Manifest) -> list[str]:
    if not own.digests:
        return ["The manifest of the archive is gone."]
    found = f"The manifest has {len(own.digests):,} commits."
    missing = archive.version - own.version
    if missing > 0:
        found += f" The next job copies {missing:,} more to it."
    if own.replaces:
        found += f" It was begun in place of one with {own.replaces:,}."
    if own.foreign:
        found += f" Other programs made {len(own.foreign):,} of them."
    named = set(map(archive.within, archive.files()))
    unnamed = sum(path not in named and path not in own.removed for path in archive.stored())
    notes = [found]
    if unnamed:
        notes.append(
            f"{unnamed:,} files below {archive.path}/messages are named by no commit: jobs that"
            " were killed left them."
        )
    return notes


def hours_in_words(wanted: Fingerprints, stored: Fingerprints, where: str) -> list[str]:
    """Return a line for each hour that lacks something; ``where`` is the place of ``wanted``."""
    return [
        f"{time_text(hour)}: {stored.get(hour, NOTHING).messages:,} messages,"
        f" {wanted[hour].messages:,} {where}"
        for hour in short_hours(wanted, stored)
    ]


def _check_database(url: str, job: VerifyJob, stored: Fingerprints, result: VerifyReport) -> None:
    """Compare with the database as of the archive's newest commit, and with its marks."""
    sealed_ns = min(job.high_ns, time.time_ns()) // HOUR_NS * HOUR_NS
    low_ns = -(-job.low_ns // HOUR_NS) * HOUR_NS
    positions = job.archive.manifest.positions
    with connected(url) as connection:
        wanted, later = read_as_of(connection, positions, low_ns, sealed_ns)
        marks = read_marks(connection, job.archive.path)
    result.not_archived_yet = catch_up(wanted, later, stored)
    if result.not_archived_yet:
        result.notes.append(
            f"{result.not_archived_yet:,} messages came after the archive's newest commit: they"
            " are not archived yet."
        )
    result.add(
        DIFFERENT,
        [
            f"{time_text(hour)}: {wanted[hour].messages:,} messages in the database,"
            f" {stored.get(hour, NOTHING).messages:,} in the archive"
            for hour in sorted(wanted)
            if wanted[hour] != stored.get(hour, NOTHING)
        ],
    )
    marked = {hour: each for hour, each in marks.items() if job.covers(hour // DAY_NS)}
    result.add(LOST_MARKED, hours_in_words(marked, stored, "when it was marked"))
    result.notes.append(f"The database has marked {len(marks):,} hours as archived here.")


def catch_up(wanted: Fingerprints, later: list[Fingerprints], stored: Fingerprints) -> int:
    """Advance the hours of ``wanted`` by later commits while that makes them what is held.

    An archive may hold messages of commits after the one that it names, in the order of commits.
    Hours that no commit makes equal stay as they are. Returns how many messages are not held.
    """
    newest = dict(wanted)
    for commit in later:
        for hour, each in commit.items():
            if hour in newest:
                newest[hour] = newest[hour].joined(each)
                if newest[hour] == stored.get(hour):
                    wanted[hour] = newest[hour]
    return sum(newest[hour].messages - each.messages for hour, each in wanted.items())
