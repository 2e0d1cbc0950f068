"""The files of an archive as a DataFrame, and what is computed from it by Spark SQL.

Workers read the files with pyarrow, from a mounted file system or an object store alike, so no
library of Hadoop is needed. Everything after that is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.columns import ARROW, PARTITIONS
from store.pipeline.database import FOREVER
from store.pipeline.delta import DataFile
from store.pipeline.errors import SPARK_ERRORS, StoreError, of_file, of_spark
from store.pipeline.files import chunks, for_reading, on_store
from store.pipeline.fingerprints import HASH_WORDS, XOR_WORDS, Fingerprints, collected
from store.pipeline.limits import MAX_PORTION_ROWS, MIN_PORTION_ROWS
from store.pipeline.slices import in_shares

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
    ordered = sorted(files, key=lambda each: each.sort_key)
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
    """Read some columns of a file, without row groups that have no message of a range of time.

    Raises:
        PipelineError: it cannot be read, or is no file of an archive.
    """
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
    """Compute the fingerprints of the messages in some files, by slice.

    Raises:
        PipelineError: one cannot be read.
    """
    if not files:
        return {}
    rows = read_files(session, files, KEY).groupBy(start_of(length_ns)).agg(*sums())
    try:
        return collected(rows.collect())
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def file_digests(session: SparkSession, files: Iterable[DataFile]) -> dict[str, tuple[int, str]]:
    """Compute the size and the SHA-256 of files, by path; files that cannot be read are left out.

    Raises:
        PipelineError: the store of the files does not answer.
    """
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
