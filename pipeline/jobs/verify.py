"""`verify`: is an archive what it says it is, and does it hold what the database does?

Every message's hash is computed anew, and every hour's fingerprint. Rows must be messages that a
node may store, of the sizes that it stores, in the directory of their day and shard, and each there
once. Against a database, every hour that it holds must be in the archive.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from message.limits import MAX_TOPIC_BYTES
from pipeline.columns import spark_schema
from pipeline.contents import part_of
from pipeline.database import FOREVER, connected, read_state
from pipeline.decode import NO_SHARD
from pipeline.errors import SPARK_ERRORS, of_spark
from pipeline.fingerprints import (
    HASH_WORDS,
    NOTHING,
    Fingerprints,
    aggregates,
    collected,
    differing,
    start_of,
)
from pipeline.lake import Lake, LakeFile
from pipeline.limits import DAY_NS, HOUR_NS, MAX_LISTED, SHARD_PARTITIONS
from pipeline.paths import literally
from pipeline.progress import Say, shown, silent
from pipeline.reports import time_text

WRONG_HASH: Final = "hash is not that of the message"
WRONG_WORDS: Final = "h0 to h3 are not the hash"
WRONG_PLACE: Final = "in the directory of another shard"
WRONG_DAY: Final = "hour in the directory of another day"
NOT_ELIGIBLE: Final = "no message that a node stores"
TOO_LONG: Final = "a topic is longer than may be"
TWICE: Final = "there more than once"
UNREADABLE: Final = "file cannot be read"
WRONG_ROWS: Final = "file has another number of rows than the table says"
WRONG_HOUR: Final = "hour is not what was noted when it was archived"
DIFFERENT: Final = "hour is not the same in the database"

_CHECKED: Final = (
    "ts",
    "hash",
    *HASH_WORDS,
    "pubsub_topic",
    "content_topic",
    "payload",
    "meta",
    "ephemeral",
)
_MAX_ALIKE: Final = 10_000
"""Words of hashes that occur several times and are looked into."""

_STATIC_PREFIX: Final = "/waku/2/rs/"
_STATIC: Final = r"^/waku/2/rs/(?:0|[1-9][0-9]{0,4})/(0|[1-9][0-9]{0,4})$"


@dataclass(frozen=True)
class Fault:
    """Something wrong: what, where, and how many of its kind; ``where`` names some of them."""

    kind: str
    count: int
    where: tuple[str, ...]


@dataclass
class Verified:
    """What was looked at and what was found; ``database`` tells whether one was compared."""

    messages: int = 0
    files: int = 0
    hours: int = 0
    database: bool = False
    faults: list[Fault] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    def add(self, kind: str, where: Iterable[str], count: int | None = None) -> None:
        """Note a fault, if there is one."""
        listed = list(where)
        number = len(listed) if count is None else count
        if number:
            self.faults.append(Fault(kind, number, tuple(listed[:MAX_LISTED])))

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "sound": self.sound,
            "messages": self.messages,
            "files": self.files,
            "hours": self.hours,
            "compared_with_database": self.database,
            "faults": [
                {"kind": each.kind, "count": each.count, "where": list(each.where)}
                for each in self.faults
            ],
        }

    def lines(self) -> list[str]:
        """The same in words."""
        told = [
            f"Verified {self.messages:,} messages of {self.hours:,} hours in {self.files:,} files."
        ]
        for fault in self.faults:
            told.append(f"{fault.kind}: {fault.count:,}")
            told += [f"  {where}" for where in fault.where]
            if fault.count > len(fault.where):
                told.append(f"  and {fault.count - len(fault.where):,} more")
        told.append("Nothing is wrong." if self.sound else "The archive is not sound.")
        return told


@dataclass(frozen=True)
class Verifying:
    """What to look at: an archive, a range of time, and a database to compare with if any."""

    lake: Lake
    url: str | None = None
    low_ns: int = 0
    high_ns: int = FOREVER
    say: Say = silent


def verify(session: SparkSession, job: Verifying) -> Verified:
    """Verify an archive; nothing is changed.

    Raises:
        PipelineError: there is no archive, or the database does not serve.
    """
    lake = job.lake.open()
    low, high = job.low_ns // DAY_NS, -(-job.high_ns // DAY_NS)
    files = [each for each in lake.files() if low <= each.day < high]
    result = Verified(files=len(files), database=job.url is not None)
    total = sum(each.rows for each in files)
    with shown(session, job.say, "verify", total):
        held = _Rows(session, files, result).check()
    result.hours = len(held)
    _check_hours(lake, {each.day for each in files}, held, result)
    if job.url is not None:
        _check_database(job.url, job, held, result)
    return result


def expected_hash() -> Column:
    """The hash of a row's message (14/WAKU2-MESSAGE).

    Text is cast to bytes first: bytes and text concatenate to text. Spark gives hexadecimal digits,
    which are made bytes: to compare digits instead costs twice as much.
    """
    parts = (
        F.col("pubsub_topic").cast("binary"),
        F.col("payload"),
        F.col("content_topic").cast("binary"),
        F.coalesce("meta", F.lit(b"")),
        F.unhex(F.lpad(F.hex("ts"), 16, "0")),
    )
    return F.unhex(F.sha2(F.concat(*parts), 256))


def row_faults() -> dict[str, Column]:
    """What can be wrong with a single row, as conditions; a missing value makes them true."""
    words = F.concat(*(_word_digits(word) for word in HASH_WORDS))
    eligible = (
        (F.col("ts") > 0)
        & (F.length("pubsub_topic") > 0)
        & (F.length("content_topic") > 0)
        & ~F.col("pubsub_topic").contains("\0")
        & ~F.col("content_topic").contains("\0")
        & ~F.coalesce("ephemeral", F.lit(False))
    )
    short = F.greatest(F.octet_length("pubsub_topic"), F.octet_length("content_topic"))
    return {
        NOT_ELIGIBLE: _unless(eligible),
        WRONG_HASH: _unless(expected_hash() == F.col("hash")),
        WRONG_WORDS: _unless(words == F.hex("hash")),
        TOO_LONG: _unless(short <= MAX_TOPIC_BYTES),
        WRONG_PLACE: _unless(_in_place()),
    }


def _unless(condition: Column) -> Column:
    return ~F.coalesce(condition, F.lit(False))


def _word_digits(word: str) -> Column:
    """Sixteen digits of a word in the order of the hash's bytes: it is little-endian."""
    digits = F.lpad(F.hex(word), 16, "0")
    return F.concat(*(F.substring(digits, 2 * octet + 1, 2) for octet in reversed(range(8))))


def _in_place() -> Column:
    """The shard of a row is that of its directory.

    The usual topic is put together again from its directory's shard, which needs no expression to
    be matched with every row.
    """
    topic, held = F.col("pubsub_topic"), part_of(F.col("path"), "/shard=")
    cluster = F.substring_index(F.substring_index(topic, "/", -2), "/", 1)
    usual = F.concat(F.lit(_STATIC_PREFIX), cluster, F.lit("/"), held)
    shard = F.regexp_extract(topic, _STATIC, 1)
    number = F.when(shard == "", NO_SHARD).otherwise(shard.cast("int") % SHARD_PARTITIONS)
    return F.when(topic == usual, True).otherwise(held == number.cast("string"))


class _Rows:
    """The rows of some files, and what is wrong with them."""

    def __init__(self, session: SparkSession, files: list[LakeFile], result: Verified) -> None:
        self._session = session
        self._result = result
        self._files = {relative(each.path): each for each in files}

    def check(self) -> Fingerprints:
        """Note every fault; returns what the files hold by hour."""
        rows = self._collect()
        found: dict[str, int] = {}
        for row in rows:
            path = relative(row["path"])
            found[path] = found.get(path, 0) + row["count"]
        self._result.messages = sum(found.values())
        self._result.add(
            WRONG_ROWS,
            (
                f"{path}: {found.get(path, 0):,} rows, {each.rows:,} in the table"
                for path, each in self._files.items()
                if found.get(path, 0) != each.rows
            ),
        )
        for number, kind in enumerate(row_faults()):
            count = sum(row[f"fault{number}"] for row in rows)
            if count:
                self._result.add(kind, self._listed(row_faults()[kind]), count)
        self._check_days(rows)
        self._check_twice()
        return collected(rows)

    def _collect(self) -> list[Row]:
        """Per file and hour a fingerprint and the number of faults.

        A file that cannot be read is noted, and the others are tried again.
        """
        broken: list[str] = []
        rows: list[Row] = []
        while self._files:
            try:
                rows = self._grouped().collect()
                break
            except SPARK_ERRORS as error:
                text = unquote(str(error))
                named = [path for path in self._files if f"/messages/{path}" in text]
                if not named:
                    raise of_spark(error) from error
                broken += named
                for path in named:
                    del self._files[path]
        self._result.add(UNREADABLE, broken)
        return rows

    def _grouped(self) -> DataFrame:
        faults = [
            F.count_if(condition).alias(f"fault{number}")
            for number, condition in enumerate(row_faults().values())
        ]
        return self._read().groupBy("path", start_of(HOUR_NS)).agg(*aggregates(), *faults)

    def _read(self) -> DataFrame:
        paths = [literally(each.path) for each in self._files.values()]
        rows = self._session.read.schema(spark_schema(_CHECKED)).parquet(*paths)
        return rows.withColumn("path", F.col("_metadata.file_path"))

    def _listed(self, condition: Column) -> list[str]:
        rows = self._read().where(condition).select("ts", "hash", "path").limit(MAX_LISTED)
        return [
            f"{(row['hash'] or b'').hex()} at {row['ts']} in {relative(row['path'])}"
            for row in rows.collect()
        ]

    def _check_days(self, rows: list[Row]) -> None:
        wrong = [
            row
            for row in rows
            if row["start_ns"] is not None
            and row["start_ns"] // DAY_NS != self._files[relative(row["path"])].day
        ]
        self._result.add(
            WRONG_DAY,
            (
                f"{row['count']:,} messages of {time_text(row['start_ns'])} in"
                f" {relative(row['path'])}"
                for row in wrong
            ),
        )

    def _check_twice(self) -> None:
        """Look for messages that are there more than once.

        One word of the hash finds nearly nothing, which then is compared in full.
        """
        if not self._files:
            return
        rows = self._read().select("ts", "hash", "h0")
        alike = rows.groupBy("h0").count().where("count > 1").limit(_MAX_ALIKE).collect()
        if not alike:
            return
        twice = (
            rows.where(F.col("h0").isin([row["h0"] for row in alike]))
            .groupBy("ts", "hash")
            .count()
            .where("count > 1")
        )
        listed = [
            f"{row['hash'].hex()} at {row['ts']}: {row['count']} times"
            for row in twice.limit(MAX_LISTED).collect()
        ]
        self._result.add(TWICE, listed, twice.count())


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


def _check_database(url: str, job: Verifying, held: Fingerprints, result: Verified) -> None:
    sealed_ns = min(job.high_ns, time.time_ns()) // HOUR_NS * HOUR_NS
    with connected(url) as connection:
        state = read_state(connection, -(-job.low_ns // HOUR_NS) * HOUR_NS, sealed_ns)
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
