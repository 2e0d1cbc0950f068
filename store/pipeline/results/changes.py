"""What an archive holds of days that have changed since an audit, and what of it is new.

Days whose files are the same ones hold the same messages. Of the others the messages of each
channel and hour are compared by number and XOR of hashes, so that files which were only made one
change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.columns import ARROW
from store.pipeline.contents import over_files
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import HASH_WORDS, NOTHING, XOR_WORDS, Fingerprint, numbers_of
from store.pipeline.lake import LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.results.tables import HOURS

_SUMMED: Final = ("messages", *XOR_WORDS)
_READ: Final = ("ts", *HASH_WORDS, "channel")
_SUMS: Final = pa.schema(
    [("channel", pa.string()), *((name, pa.int64()) for name in ("start_ns", *_SUMMED))]
)

Hour = tuple[str | None, int]
"""A channel (None: messages that are none of SDS), and the start of an hour."""

Held = Mapping[Hour, Fingerprint]


def hours_of(session: SparkSession, files: list[LakeFile], digests: Mapping[str, str]) -> DataFrame:
    """What some files hold by channel and hour, as `HOURS`."""
    sums = over_files(session, _summed, files, _SUMS).groupBy("channel", "start_ns")
    words = (F.bit_xor(word).alias(word) for word in XOR_WORDS)
    hour = F.timestamp_micros((F.col("start_ns") / F.lit(1_000)).cast("long"))
    days = session.createDataFrame(pa.table([[*digests], [*digests.values()]], ["day", "files"]))
    day = F.date_format(hour, "yyyy-MM-dd")
    rows = sums.agg(F.sum("messages").alias("messages"), *words).withColumn("hour", hour)
    known = rows.withColumn("day", day).join(F.broadcast(days), "day")
    return known.withColumn("day", F.to_date("day")).select(*HOURS.names)


def as_hours(held: Held, digests: Mapping[int, str]) -> pa.Table:
    """What is held as `HOURS`; ``digests`` are those of the days, in days since the epoch."""
    keys = sorted(held, key=lambda each: (each[1], each[0] is not None, each[0] or ""))
    starts = np.array([start for _, start in keys], np.int64)
    days = starts // DAY_NS
    sums = np.array([held[key] for key in keys], np.int64).reshape(len(keys), len(_SUMMED))
    columns = {
        "day": pa.array(days.astype(np.int32)).cast(pa.date32()),
        "channel": pa.array([channel for channel, _ in keys], pa.string()),
        "start_ns": pa.array(starts),
        "hour": pa.array(starts // 1_000).cast(HOURS.field("hour").type),
        **{name: pa.array(sums[:, place]) for place, name in enumerate(_SUMMED)},
        "files": pa.array([digests[day] for day in days.tolist()], pa.string()),
    }
    return pa.table([columns[name] for name in HOURS.names], schema=HOURS)


def from_hours(rows: pa.Table) -> Held:
    """What `HOURS` say."""
    columns = (rows[name].to_pylist() for name in ("channel", "start_ns", *_SUMMED))
    return {
        (channel, start): Fingerprint(*sums) for channel, start, *sums in zip(*columns, strict=True)
    }


def held_in(rows: pa.RecordBatch) -> Held:
    """What some messages are by channel and hour; they have `_READ`."""
    return _as_held(by_channel(rows)) if len(rows) else {}


def differing(rows: pa.RecordBatch, before: Held) -> tuple[Held, pa.Array]:
    """What some messages are by channel and hour, and which of them are of hours in which it is
    not the same as ``before``.
    """
    if not len(rows):
        return {}, pa.array([], pa.bool_())
    sums, number = _summed_up(rows)
    now = _as_held(sums)
    changed = np.array([before.get(key, NOTHING) != each for key, each in now.items()], np.bool_)
    return now, pa.array(changed[number])


def _as_held(sums: pa.RecordBatch) -> dict[Hour, Fingerprint]:
    columns = (sums[name].to_pylist() for name in sums.schema.names)
    return {
        (channel, start): Fingerprint(*rest) for channel, start, *rest in zip(*columns, strict=True)
    }


def _summed(files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        for rows in batches_of(file.path, _READ):
            yield by_channel(rows)


def by_channel(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Number and XOR of messages with `_READ` by channel and hour, as `_SUMS`."""
    return _summed_up(rows)[0]


def _summed_up(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """See `by_channel`; and of each message the row that it is in."""
    names = rows["channel"].dictionary_encode()
    codes = names.indices.fill_null(-1).to_numpy()
    starts = numbers_of(rows["ts"]) // HOUR_NS * HOUR_NS
    order = np.lexsort((starts, codes))
    codes, starts = codes[order], starts[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(codes) != 0) | (np.diff(starts) != 0)
    begins = np.flatnonzero(new)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new) - 1
    words = [np.bitwise_xor.reduceat(numbers_of(rows[word])[order], begins) for word in HASH_WORDS]
    counts = np.diff(np.append(begins, len(order)))
    channel = names.dictionary.take(pa.array(codes[begins], mask=codes[begins] < 0))
    columns = (starts[begins], counts, *words)
    sums = pa.record_batch([channel, *(pa.array(each) for each in columns)], schema=_SUMS)
    return sums, number


def plain_words(files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    """The first words of the hashes of messages that are none of SDS."""
    for file in files:
        for rows in batches_of(file.path, ("h0", "channel")):
            words = rows["h0"].filter(pc.is_null(rows["channel"]))
            yield pa.record_batch([words], ["h0"])


def read(files: Iterable[LakeFile], names: tuple[str, ...]) -> pa.RecordBatch:
    """Some columns of some files, as one batch."""
    batches = [rows for file in files for rows in batches_of(file.path, names)]
    schema = pa.schema([ARROW.field(name).with_nullable(True) for name in names])
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema)
