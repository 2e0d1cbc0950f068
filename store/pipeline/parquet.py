"""Parquet files as DataFrames, and DataFrames as Parquet files.

Workers read and write with pyarrow, on a mounted file system or an object store alike, so no
library of Hadoop is needed. Everything else is Spark's.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.columns import ARROW, CONTENT_DIGEST, HASH_WORDS, NAMES, PARTITIONS
from store.pipeline.database import FOREVER
from store.pipeline.delta import DataFile, DeltaArchive
from store.pipeline.errors import PipelineError, StoreError, of_file, spark_errors
from store.pipeline.files import chunks, file_system, for_reading, on_store, settle
from store.pipeline.fingerprints import XOR_WORDS, Fingerprints, collected
from store.pipeline.limits import HOUR_NS, MAX_PORTION_ROWS, MIN_PORTION_ROWS
from store.pipeline.source import in_shares
from storenode.message.limits import CONTENT_DIGEST_BYTES

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

KEY: Final = ("ts", *HASH_WORDS)
"""The columns that identify a message: its timestamp, and its hash as words."""

PATH: Final = pa.field("path", pa.string())
"""The column with the path of a message's file, as `DataFile` has it."""

BATCH_ROWS: Final = 65_536
_FORMAT: Final = ds.ParquetFileFormat()

UNREADABLE: Final = "file cannot be read"
CHANGED_FILE: Final = "file is not the one that the manifest names"

CONTENT: Final = ("ts", "hash", CONTENT_DIGEST)
_DIGESTED: Final = ("ts", "pubsub_topic", "payload", "content_topic", "meta")
_SALT: Final = secrets.randbits(62)  # publishers who knew it could choose equal sums

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
    names: Sequence[str],
    low_ns: int = 0,
    high_ns: int = FOREVER,
) -> DataFrame:
    """Return some columns of the messages in some files, with times from ``low_ns`` to ``high_ns``.

    ``high_ns`` is excluded; FOREVER excludes nothing. ``day``, ``shard`` and ``path`` are those of
    the file; `CONTENT_DIGEST` is computed.
    """
    columns = [name for name in names if name != CONTENT_DIGEST]
    is_digested = len(columns) < len(names)
    schema = pa.schema(
        PATH if name == PATH.name else ARROW.field(name).with_nullable(True)
        for name in dict.fromkeys([*columns, *(_DIGESTED if is_digested else ())])
    )
    rows = over_files(session, partial(_messages, schema, low_ns, high_ns), files, schema)
    return rows.select(*columns, _digest()) if is_digested else rows


def _digest() -> Column:
    topics = [f"cast({name} as binary)" for name in ("pubsub_topic", "content_topic")]
    fields = (topics[0], "payload", topics[1], "coalesce(meta, X'')")
    framed = [f"unhex(lpad(hex(octet_length({each})), 8, '0')), {each}" for each in fields]
    text = f"sha2(concat({', '.join(framed)}, unhex(lpad(hex(ts), 16, '0'))), 256)"
    return F.expr(f"unhex(left({text}, {2 * CONTENT_DIGEST_BYTES}))").alias(CONTENT_DIGEST)


def _messages(schema: pa.Schema, low_ns: int, high_ns: int, files: list[DataFile]) -> Batches:
    names = [name for name in schema.names if name not in {*PARTITIONS, PATH.name}]
    for file in files:
        values = {"day": file.day, "shard": file.shard, PATH.name: file.path}
        for batch in batches_of(file.path, names or ["ts"], low_ns, high_ns):
            columns = [
                pa.repeat(pa.scalar(values[each.name], each.type), len(batch))
                if each.name in values
                else batch[each.name]
                for each in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def batches_of(
    path: str,
    names: Sequence[str],
    low_ns: int = 0,
    high_ns: int = FOREVER,
    fields: pa.Schema = ARROW,
) -> Batches:
    """Read some columns of the messages of a file with times from ``low_ns`` to ``high_ns``.

    Row groups without such a time are not read. ``fields`` are those of the file.
    """
    ts = ds.field("ts")
    is_wanted = None if (low_ns, high_ns) == (0, FOREVER) else (ts >= low_ns) & (ts < high_ns)
    read = {*names} if is_wanted is None else {*names, "ts"}
    schema = pa.schema([fields.field(name).with_nullable(True) for name in read])
    try:
        with for_reading(path) as source:
            scanner = _FORMAT.make_fragment(source).scanner(
                schema=schema,
                columns=list(names),
                filter=is_wanted,
                batch_size=BATCH_ROWS,
                batch_readahead=0,
                use_threads=False,
            )
            yield from (batch for batch in scanner.to_batches() if batch.num_rows)
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise of_file(path, error) from error


def start_of(length_ns: int) -> Column:
    """Return the start of the slice of time that the column ``ts`` is in."""
    return (F.col("ts") - F.pmod("ts", F.lit(length_ns))).alias("start_ns")


def sums() -> list[Column]:
    """Return the aggregates that a fingerprint consists of: the count, and the XOR of hashes."""
    words = zip(HASH_WORDS, XOR_WORDS, strict=True)
    return [F.count(F.lit(1)).alias("count"), *(F.bit_xor(h).alias(x) for h, x in words)]


def content_sum() -> Column:
    """Return an aggregate of hashes and content digests that other contents change.

    It consists of sums, as an XOR is the same without a message that is duplicated.
    """
    digest = F.xxhash64(F.lit(_SALT), "hash", CONTENT_DIGEST)
    halves = (F.shiftright(digest, 32), digest.bitwiseAND(2**32 - 1))  # sums do not overflow
    return F.struct(*map(F.sum, halves)).alias("contents")


def contents_by_hour(messages: DataFrame) -> dict[int, Row]:
    """Compute the `content_sum` of messages, which have the columns `CONTENT`, by hour."""
    rows = messages.groupBy(start_of(HOUR_NS)).agg(content_sum())
    return {row["start_ns"]: row["contents"] for row in rows.collect()}


@spark_errors()
def fingerprints_of(session: SparkSession, files: Sequence[DataFile]) -> Fingerprints:
    """Compute the fingerprints of the messages in some files, by hour."""
    if not files:
        return {}
    rows = read_files(session, files, KEY).groupBy(start_of(HOUR_NS)).agg(*sums())
    return collected(rows.collect())


def file_digests(session: SparkSession, files: Iterable[DataFile]) -> dict[str, tuple[int, str]]:
    """Compute size and SHA-256 of files, by path; files that cannot be read are left out."""
    rows = over_files(session, _digests, files, _DIGESTS).collect()
    return {row["path"]: (row["size_bytes"], row["digest"]) for row in rows}


def lost_files(
    session: SparkSession, archive: DeltaArchive, files: Sequence[DataFile]
) -> dict[str, list[DataFile]]:
    """Return files that cannot be read, or are others than the commits record, by their fault."""
    known, digests = archive.manifest.files, file_digests(session, files)
    found: dict[str, list[DataFile]] = {UNREADABLE: [], CHANGED_FILE: []}
    for file in sorted(files):
        path = archive.within(file)
        if file.path not in digests:
            found[UNREADABLE].append(file)
        elif known.get(path, digests[file.path][1]) != digests[file.path][1]:
            found[CHANGED_FILE].append(file)
    return found


def require_whole(session: SparkSession, archive: DeltaArchive, files: Sequence[DataFile]) -> None:
    """Raise if files are not those that the commits record: hashes do not cover every column."""
    for kind, lost in lost_files(session, archive, files).items():
        if lost:
            raise PipelineError(
                f"Nothing was restored or compacted, since {len(lost):,} files are damaged"
                f" ({lost[0].path}: {kind}): `storenode pipeline verify` lists them."
            )


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


WRITTEN: Final = pa.schema([PATH, ("rows", pa.int64()), ("size_bytes", pa.int64())])
"""A file that was written: its path relative to the folder, its number of rows and its size."""

_OPTIONS: Final = _FORMAT.make_write_options(
    compression="zstd",
    # Payloads are mostly encrypted: a higher level costs half as much again, and saves nothing.
    compression_level=1,
    use_dictionary=["pubsub_topic", "content_topic", "channel", "sender", "meta", "version"],
    write_statistics=["ts", "pubsub_topic", "content_topic", "channel", "message_id", "lamport"],
    store_schema=False,
)
_MAX_OPEN_FILES: Final = 8
_FOLDERS: Final = 3
"""Directories above a file that are synced: in an archive its shard, its day, and the table."""


def write_files(rows: DataFrame, folder: str, tasks: int, *, by_hour: bool) -> list[Row]:
    """Write rows with all columns below a folder; return rows as `WRITTEN`.

    The rows of an hour of a day and shard are in one file, in the order of time; those of the whole
    day unless ``by_hour``.
    """
    hour = F.expr(f"ts div {HOUR_NS}" if by_hour else "0")
    ordered = (
        rows.select(*NAMES)
        .repartition(tasks, *PARTITIONS, hour)
        .sortWithinPartitions(*PARTITIONS, "ts", "hash")
    )
    return write_rows(ordered, folder, ARROW, PARTITIONS)


def write_rows(
    rows: DataFrame, folder: str, schema: pa.Schema, partitions: Sequence[str] = ()
) -> list[Row]:
    """Write rows that have a schema to new files of a folder; return rows as `WRITTEN`.

    Columns that are ``partitions`` become directories. What failed tasks have written stays.
    """
    work = partial(write_batches, folder, schema, tuple(partitions))
    return rows.mapInArrow(work, from_arrow_schema(WRITTEN)).collect()


def write_batches(
    folder: str, schema: pa.Schema, partitions: Sequence[str], batches: Batches
) -> Batches:
    """Write rows that are sorted by their partitions to one file for each; yield `WRITTEN`.

    A batch becomes a row group in each of its files.

    Raises:
        OSError: something cannot be written.
    """
    system, root = file_system(folder)
    written: list[dict[str, object]] = []

    def visit(file: ds.WrittenFile) -> None:
        name = file.path.removeprefix(f"{root}/")
        written.append({"path": name, "rows": file.metadata.num_rows, "size_bytes": file.size})

    rows = (batch.select(schema.names).cast(schema) for batch in batches)
    ds.write_dataset(
        pa.RecordBatchReader.from_batches(schema, rows),
        root,
        filesystem=system,
        format=_FORMAT,
        file_options=_OPTIONS,
        partitioning=ds.partitioning(pa.schema(map(schema.field, partitions)), flavor="hive"),
        basename_template=f"part-{uuid.uuid4().hex}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
        file_visitor=visit,
        preserve_order=True,
        use_threads=False,
        max_open_files=_MAX_OPEN_FILES,
        create_dir=not on_store(folder),
    )
    settle((f"{folder}/{each['path']}" for each in written), _FOLDERS)
    if written:
        yield pa.RecordBatch.from_pylist(written, WRITTEN)


def read_rows(
    session: SparkSession, paths: Sequence[str], names: Sequence[str], fields: pa.Schema = ARROW
) -> DataFrame:
    """Read some columns of files that `write_rows` has written, which have some ``fields``."""
    schema = pa.schema([fields.field(name) for name in names])
    return spread(session, partial(_read, schema), paths, schema)


def _read(schema: pa.Schema, path: str) -> Batches:
    for rows in batches_of(path, schema.names, fields=schema):
        yield rows.cast(schema)
