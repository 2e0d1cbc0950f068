"""Parquet files as DataFrames, and DataFrames as Parquet files.

Workers read and write with pyarrow, on a mounted file system or an object store alike, so no
library of Hadoop is needed. Everything else is Spark's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from store.pipeline.columns import ARROW, NAMES, PARTITIONS, file_columns
from store.pipeline.database import FOREVER
from store.pipeline.delta import DataFile
from store.pipeline.errors import SPARK_ERRORS, StoreError, of_file, of_spark, of_store
from store.pipeline.files import chunks, for_reading, for_writing, listed, on_store, settle
from store.pipeline.fingerprints import HASH_WORDS, XOR_WORDS, Fingerprints, collected
from store.pipeline.limits import HOUR_NS, MAX_PORTION_ROWS, MIN_PORTION_ROWS, ROW_GROUP_BYTES
from store.pipeline.source import in_shares

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

KEY: Final = ("ts", *HASH_WORDS)
"""The columns that identify a message: its timestamp, and its hash as words."""

PATH: Final = pa.field("path", pa.string())
"""The column with the path of a message's file, as `DataFile` has it."""

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 32 * 1024 * 1024
"""A batch has at most so many rows, and about so many bytes at most."""

_DIGESTS: Final = pa.schema([PATH, ("size_bytes", pa.int64()), ("digest", pa.string())])


def spread(
    session: SparkSession, work: Callable[[T], Batches], portions: Sequence[T], schema: pa.Schema
) -> DataFrame:
    """Return what ``work`` yields for each portion, one task for each.

    ``work`` is a function of a module, or a `functools.partial` of one: workers import it.
    """
    count = len(portions)
    numbers = session.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_task, work, list(portions)), from_arrow_schema(schema))


def _task(work: Callable[[T], Batches], portions: Sequence[T], batches: Batches) -> Batches:
    for batch in batches:
        for number in batch["id"].to_pylist():
            yield from work(portions[number])


def shuffle_partitions(session: SparkSession) -> int:
    """Return the number of tasks of a step that reads everything."""
    return int(session.conf.get("spark.sql.shuffle.partitions") or "1")


def over_files(
    session: SparkSession,
    work: Callable[[list[DataFile]], Batches],
    files: Iterable[DataFile],
    schema: pa.Schema,
) -> DataFrame:
    """Return what ``work`` yields for portions of the files, those of a directory together."""
    ordered = sorted(files)
    even = -(-sum(each.rows for each in ordered) // shuffle_partitions(session))
    share = min(MAX_PORTION_ROWS, max(MIN_PORTION_ROWS, even))
    portions = in_shares(ordered, lambda each: each.rows, share)
    return spread(session, work, portions, schema)


def read_files(
    session: SparkSession,
    files: Iterable[DataFile],
    names: Iterable[str],
    low_ns: int = 0,
    high_ns: int = FOREVER,
) -> DataFrame:
    """Return some columns of the messages in some files, with times from ``low_ns`` to ``high_ns``.

    ``high_ns`` is excluded; FOREVER excludes nothing. ``day``, ``shard`` and ``path`` are those of
    the file.
    """
    fields = [
        PATH if name == PATH.name else ARROW.field(name).with_nullable(True) for name in names
    ]
    schema = pa.schema(fields)
    return over_files(session, partial(_messages, schema, low_ns, high_ns), files, schema)


def _messages(schema: pa.Schema, low_ns: int, high_ns: int, files: list[DataFile]) -> Batches:
    of_file_only = {*PARTITIONS, PATH.name}
    names = [name for name in schema.names if name not in of_file_only]
    bounded = (low_ns, high_ns) != (0, FOREVER)
    read = [*names, "ts"] if (bounded or not names) and "ts" not in names else names
    for file in files:
        values = {"day": file.day, "shard": file.shard, PATH.name: file.path}
        for batch in batches_of(file.path, read, low_ns, high_ns):
            rows = batch
            if bounded:
                ts = batch["ts"]
                wanted = pc.and_(pc.greater_equal(ts, low_ns), pc.less(ts, high_ns))
                rows = batch.filter(wanted)
            columns = [
                pa.repeat(pa.scalar(values[each.name], each.type), len(rows))
                if each.name in values
                else rows[each.name]
                for each in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def batches_of(path: str, names: Sequence[str], low_ns: int = 0, high_ns: int = FOREVER) -> Batches:
    """Read some columns of a file, without row groups that have no message of a range of time."""
    schema = pa.schema([ARROW.field(name).with_nullable(True) for name in names])
    try:
        # Neighbouring columns are fetched from an object store in one request.
        with for_reading(path) as source, pq.ParquetFile(source, pre_buffer=on_store(path)) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                if not _overlaps(group, low_ns, high_ns):
                    continue
                rows = group.num_rows * BATCH_BYTES // max(1, group.total_byte_size)
                for batch in file.iter_batches(
                    batch_size=min(BATCH_ROWS, max(1, rows)),
                    row_groups=[number],
                    columns=schema.names,
                    use_threads=False,
                ):
                    if batch.num_rows:
                        columns = [batch.column(each.name).cast(each.type) for each in schema]
                        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise of_file(path, error) from error


def _overlaps(group: pq.RowGroupMetaData, low_ns: int, high_ns: int) -> bool:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == "ts":
            bounds = column.statistics
            known = bounds is not None and bounds.has_min_max
            return not known or bool(bounds.min < high_ns and bounds.max >= low_ns)
    return True


def start_of(length_ns: int) -> Column:
    """Return the start of the slice of time that the column ``ts`` is in."""
    return (F.col("ts") - F.pmod("ts", F.lit(length_ns))).alias("start_ns")


def sums() -> list[Column]:
    """Return the aggregates that a fingerprint consists of: the count, and the XOR of hashes."""
    words = zip(HASH_WORDS, XOR_WORDS, strict=True)
    return [F.count(F.lit(1)).alias("count"), *(F.bit_xor(h).alias(x) for h, x in words)]


def fingerprints_of(
    session: SparkSession, files: Sequence[DataFile], length_ns: int
) -> Fingerprints:
    """Compute the fingerprints of the messages in some files, by slice."""
    if not files:
        return {}
    rows = read_files(session, files, KEY).groupBy(start_of(length_ns)).agg(*sums())
    try:
        return collected(rows.collect())
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def file_digests(session: SparkSession, files: Iterable[DataFile]) -> dict[str, tuple[int, str]]:
    """Compute size and SHA-256 of files, by path; files that cannot be read are left out."""
    try:
        rows = over_files(session, _digests, files, _DIGESTS).collect()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    return {row["path"]: (row["size_bytes"], row["digest"]) for row in rows}


def _digests(files: list[DataFile]) -> Batches:
    for file in files:
        found, size = sha256(), 0
        try:
            for data in chunks(file.path):
                found.update(data)
                size += len(data)
        except StoreError as error:  # which says nothing about the file
            raise of_file(file.path, error) from error
        except OSError:
            continue
        row = {"path": file.path, "size_bytes": size, "digest": found.hexdigest()}
        yield pa.RecordBatch.from_pylist([row], _DIGESTS)


WRITTEN: Final = pa.schema([("path", pa.string()), ("rows", pa.int64())])
"""A file that was written: its path relative to the table, and its number of rows."""

_FILES: Final = pa.schema([ARROW.field(name) for name in file_columns()])
_PARENTS: Final = ("parents.list.element.id", "parents.list.element.hint")
_LEAVES: Final = (*(name for name in _FILES.names if name != "parents"), *_PARENTS)
_RANDOM: Final = frozenset({"hash", *HASH_WORDS})
"""Columns whose bytes are as good as random: they cannot be compressed."""

_DISTINCT: Final = _RANDOM | {"ts", "payload"}
"""Columns whose values seldom repeat: no dictionary is tried for them."""

_BOUNDED: Final = ("ts", "pubsub_topic", "content_topic", "channel", "message_id", "lamport")
"""Columns with statistics."""

_ZSTD_LEVEL: Final = 1
"""Payloads are mostly encrypted: a higher level takes half as much time again and saves nothing."""

_FOLDERS: Final = 3
"""Directories above a file that are synced: its shard, its day, and the table."""


def write_files(rows: DataFrame, folder: str, partitions: int, *, by_hour: bool) -> dict[str, int]:
    """Write rows with all columns below a folder; return the paths within it and their rows.

    The rows of an hour of a day and shard are in one file, in the order of time; those of the whole
    day unless ``by_hour``.
    """
    hour = F.expr(f"ts div {HOUR_NS}" if by_hour else "0")
    ordered = (
        rows.select(*NAMES)
        .repartition(partitions, *PARTITIONS, hour)
        .sortWithinPartitions(*PARTITIONS, "ts", "hash")
    )
    done = ordered.mapInArrow(partial(write_batches, folder), from_arrow_schema(WRITTEN))
    return {row["path"]: row["rows"] for row in done.collect()}


def write_batches(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows that are sorted by day and shard to one file for each; yield `WRITTEN`.

    Raises:
        OSError: something cannot be written.
    """
    written = []
    file: _File | None = None
    for batch in batches:
        for directory, rows in _by_directory(batch):
            if file is None or file.directory != directory:
                if file is not None:
                    written.append(file.close())
                file = _File(folder, directory)
            file.add(rows)
    if file is not None:
        written.append(file.close())
        settle((f"{folder}/{name}" for name, _ in written), _FOLDERS)
        paths, counts = zip(*written, strict=True)
        yield pa.record_batch([pa.array(paths), pa.array(counts)], schema=WRITTEN)


class _File:
    """A file that grows by a row group at a time."""

    def __init__(self, folder: str, directory: tuple[int, int]) -> None:
        self.directory = directory
        day, shard = directory
        self._name = f"day={np.datetime64(day, 'D')}/shard={shard}/part-{uuid.uuid4().hex}.parquet"
        self._rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._sink = for_writing(f"{folder}/{self._name}")
        self._writer = pq.ParquetWriter(
            self._sink,
            _FILES,
            compression={name: "none" if name in _RANDOM else "zstd" for name in _LEAVES},
            compression_level={name: _ZSTD_LEVEL for name in _LEAVES if name not in _RANDOM},
            use_dictionary=[name for name in _LEAVES if name not in _DISTINCT],
            write_statistics=list(_BOUNDED),
            store_schema=False,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._rows += rows.num_rows
        if sum(each.nbytes for each in self._batches) >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[str, int]:
        self._flush()
        self._writer.close()
        self._sink.close()
        return self._name, self._rows

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._batches = []


def _by_directory(batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    """Yield the rows of each day and shard, which are next to each other."""
    day, shard = (
        batch[name].cast(pa.int32()).to_numpy(zero_copy_only=False) for name in PARTITIONS
    )
    rows = pa.RecordBatch.from_arrays([batch[name] for name in _FILES.names], schema=_FILES)
    edges = np.flatnonzero((np.diff(day) != 0) | (np.diff(shard) != 0)) + 1
    for low, high in pairwise([0, *edges.tolist(), len(day)]):
        if low < high:
            yield (int(day[low]), int(shard[low])), rows.slice(low, high - low)


_WRITTEN: Final = pa.schema([pa.field("path", pa.string())])


def write_rows(
    rows: DataFrame, folder: str, column: str | None = None, values: Sequence[str] = ()
) -> None:
    """Write rows to a new folder; a ``column`` that has some ``values`` becomes directories."""
    if column is None:
        work = partial(_written, folder, to_arrow_schema(rows.schema))
        rows.mapInArrow(work, from_arrow_schema(_WRITTEN)).collect()
    for value in values:
        some = rows.where(F.col(str(column)) == value).drop(str(column))
        write_rows(some, f"{folder}/{column}={value}")


def _written(folder: str, schema: pa.Schema, batches: Batches) -> Batches:
    """Write a file for the task, which a repeated task replaces."""
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    first = next(batches, None)
    if first is None and number > 0:
        return
    path = f"{folder}/part-{number:05}.parquet"
    with for_writing(path) as sink, pq.ParquetWriter(sink, schema, compression="zstd") as file:
        if first is not None:
            file.write_batch(first.cast(schema))
            for batch in batches:
                file.write_batch(batch.cast(schema))
    yield pa.record_batch([pa.array([path])], schema=_WRITTEN)


def read_rows(session: SparkSession, folder: str, names: Sequence[str]) -> DataFrame:
    """Read some columns of `ARROW` of what `write_rows` wrote.

    Raises:
        PipelineError: the folder cannot be read.
        KeyError: the files lack a column.
    """
    schema = pa.schema([ARROW.field(name) for name in names])
    try:
        paths = [f"{folder}/{each}" for each in listed(folder) if each.endswith(".parquet")]
        for path in paths[:1]:
            with for_reading(path) as source:
                found = pq.read_schema(source)
            for name in names:
                found.field(name)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise of_store(folder, error, "directory") from error
    return spread(session, partial(_read, schema), paths, schema)


def _read(schema: pa.Schema, path: str) -> Batches:
    for rows in batches_of(path, schema.names):
        yield rows.cast(schema)
