"""Which channels must be audited again: those whose messages, or what else an audit looked at for
them, may not be the same as at the last one.

Days whose files are the same ones hold the same messages. Of the others the messages of each
channel and hour are compared by number and XOR of hashes, so that files which were only made one
change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.missing import held_unread
from store.pipeline.causal.rounds import settled
from store.pipeline.columns import empty
from store.pipeline.contents import over_files, read_files
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import HASH_WORDS, XOR_WORDS, numbers_of
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import HOUR_NS
from store.pipeline.results.tables import HOURS, Results
from store.pipeline.writing import day_text

MAX_CHANGED_CHANNELS: Final = 100_000
"""Channels that are named to workers; where more have changed, all are audited."""

_SUMMED: Final = ("messages", *XOR_WORDS)
_READ: Final = ("ts", *HASH_WORDS, "channel")
_SUMS: Final = pa.schema(
    [("channel", pa.string()), *((name, pa.int64()) for name in ("start_ns", *_SUMMED))]
)


@dataclass(frozen=True)
class Changes:
    """What has changed since an audit.

    ``files`` are those of days that have changed, ``hours`` what these hold now, as `HOURS`, and
    ``days`` these days and those that are gone. ``channels``, ascending, are to be audited again;
    None: all.
    """

    files: list[LakeFile]
    hours: DataFrame
    days: set[str]
    channels: list[str] | None = None


def changes_since(session: SparkSession, lake: Lake, past: Results | None) -> Changes:
    """What has changed since an audit; None: since there was nothing."""
    digests = {day_text(day): digest for day, digest in lake.digests().items()}
    before = {} if past is None else past.days
    changed = {day for day, digest in digests.items() if before.get(day) != digest}
    files = [each for each in lake.files() if day_text(each.day) in changed]
    hours = settled(_hours(session, files, digests)) if files else empty(session, HOURS)
    days = changed | (before.keys() - digests.keys())
    channels = None if past is None else _channels(session, past, files, hours, days)
    return Changes(files, hours, days, channels)


def _channels(
    session: SparkSession,
    past: Results,
    files: list[LakeFile],
    hours: DataFrame,
    days: set[str],
) -> list[str] | None:
    if not days:
        return []
    references = past.tables["references"]
    found = [
        _differing(hours, past.hours.where(F.date_format("day", "yyyy-MM-dd").isin(sorted(days)))),
        # What else these hang on is not only in the channel, so they are audited every time.
        past.tables["channels"].where("unread").select("channel"),
        references.where("elsewhere is not null").select("channel"),
        held_unread(references, read_files(session, files, ("ts", "hash", "channel"))),
    ]
    every = reduce(DataFrame.union, (each.select("channel") for each in found))
    rows = every.where("channel is not null").distinct().limit(MAX_CHANGED_CHANNELS + 1).collect()
    return sorted(row["channel"] for row in rows) if len(rows) <= MAX_CHANGED_CHANNELS else None


def _differing(one: DataFrame, other: DataFrame) -> DataFrame:
    """Channels with an hour that is not the same on both sides."""
    names = ("channel", "start_ns", *_SUMMED)
    both = one.select(*names).union(other.select(*names)).groupBy(*names).count()
    return both.where("count = 1")


def _hours(session: SparkSession, files: list[LakeFile], digests: Mapping[str, str]) -> DataFrame:
    """What some files hold by channel and hour, as `HOURS`."""
    sums = over_files(session, _summed, files, _SUMS).groupBy("channel", "start_ns")
    words = (F.bit_xor(word).alias(word) for word in XOR_WORDS)
    hour = F.timestamp_micros((F.col("start_ns") / F.lit(1_000)).cast("long"))
    days = session.createDataFrame(pa.table([[*digests], [*digests.values()]], ["day", "files"]))
    day = F.date_format(hour, "yyyy-MM-dd")
    rows = sums.agg(F.sum("messages").alias("messages"), *words).withColumn("hour", hour)
    known = rows.withColumn("day", day).join(F.broadcast(days), "day")
    return known.withColumn("day", F.to_date("day")).select(*HOURS.names)


def _summed(files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        for rows in batches_of(file.path, _READ):
            yield by_channel(rows)


def by_channel(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Number and XOR of messages with `_READ` by channel and hour, as `_SUMS`."""
    names = rows["channel"].dictionary_encode()
    codes = names.indices.fill_null(-1).to_numpy()
    starts = numbers_of(rows["ts"]) // HOUR_NS * HOUR_NS
    order = np.lexsort((starts, codes))
    codes, starts = codes[order], starts[order]
    begins = np.flatnonzero(
        (np.diff(codes, prepend=codes[0] - 1) != 0) | (np.diff(starts, prepend=starts[0]) != 0)
    )
    words = (np.bitwise_xor.reduceat(numbers_of(rows[word])[order], begins) for word in HASH_WORDS)
    counts = np.diff(np.append(begins, len(order)))
    channel = names.dictionary.take(pa.array(codes[begins], mask=codes[begins] < 0))
    columns = (starts[begins], counts, *words)
    return pa.record_batch([channel, *(pa.array(each) for each in columns)], schema=_SUMS)
