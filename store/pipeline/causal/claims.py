"""The SDS messages of a history: rows of Spark, or files that workers read by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.causal.rows import CLAIMS
from store.pipeline.columns import ARROW
from store.pipeline.contents import over_files
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import numbers_of
from store.pipeline.lake import LakeFile
from storenode.message.limits import MAX_TIMESTAMP_NS

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]
ENTRIES: Final = pa.schema([("channel", pa.string()), ("entries", pa.int64())])
COUNTED: Final = ("ts", "channel", "parents")


@dataclass(frozen=True)
class Claims:
    """Messages with `CLAIMS`, from ``low_ns`` up to ``high_ns``, exclusive.

    ``rows`` are those of Spark. Where they come from ``files``, workers read these instead: what
    comes through the JVM costs several times as much. ``channels``: only these; None: all.
    """

    rows: DataFrame
    files: Sequence[LakeFile] | None = None
    low_ns: int = 0
    high_ns: int = MAX_TIMESTAMP_NS
    channels: Sequence[str] | None = None

    def mapped(self, work: Work, schema: pa.Schema, names: tuple[str, ...] = CLAIMS) -> DataFrame:
        """What ``work`` makes of some columns, some messages at a time, as rows of a ``schema``.

        ``ts`` and ``channel`` are among ``names``.
        """
        if self.files is None:
            return self.rows.select(*names).mapInArrow(work, from_arrow_schema(schema))
        read = partial(_of_files, work, names, (self.low_ns, self.high_ns), self.channels)
        return over_files(self.rows.sparkSession, read, self.files, schema)


def _of_files(
    work: Work,
    names: tuple[str, ...],
    within: tuple[int, int],
    channels: Sequence[str] | None,
    files: list[LakeFile],
) -> Batches:
    return work(_claims(files, names, *within, channels))


def claims_in(
    session: SparkSession,
    files: Sequence[LakeFile],
    names: tuple[str, ...],
    within: tuple[int, int],
    channels: Sequence[str] | None = None,
) -> DataFrame:
    """Some columns of the SDS messages of some files as rows of Spark."""
    schema = pa.schema([ARROW.field(name).with_nullable(True) for name in names])
    work = partial(_of_files, _unchanged, names, within, channels)
    return over_files(session, work, files, schema)


def _unchanged(batches: Batches) -> Batches:
    return batches


def _claims(
    files: list[LakeFile],
    names: tuple[str, ...],
    low_ns: int,
    high_ns: int,
    channels: Sequence[str] | None,
) -> Batches:
    known = None if channels is None else pa.array(channels, pa.string())
    for file in files:
        for rows in batches_of(file.path, names, low_ns, high_ns):
            ts = numbers_of(rows["ts"])
            wanted = (ts >= low_ns) & (ts < high_ns)
            channel = rows["channel"]
            named = channel.is_valid() if known is None else pc.is_in(channel, value_set=known)
            wanted &= named.to_numpy(zero_copy_only=False)
            if wanted.any():
                yield rows if wanted.all() else rows.filter(pa.array(wanted))


def entries_by_channel(claims: Claims) -> DataFrame:
    """(channel, entries) of parts of a history: how many IDs and references; a channel may occur
    several times.
    """
    return claims.mapped(counted, ENTRIES, COUNTED)


def counted(batches: Batches) -> Batches:
    """`ENTRIES` of some claims, for which `COUNTED` is read."""
    for rows in batches:
        entries = rows["parents"].value_lengths().fill_null(0).cast(pa.int64())
        table = pa.table([rows["channel"], pa.array(np.asarray(entries) + 1)], schema=ENTRIES)
        summed = table.group_by("channel").aggregate([("entries", "sum")])
        yield from summed.rename_columns({"entries_sum": "entries"}).to_batches()
