"""Directories of Parquet that a job writes: by Spark, and on an object store by workers.

Spark would need libraries of Hadoop for an object store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from store.pipeline.columns import ARROW
from store.pipeline.errors import USAGE, PipelineError, of_store
from store.pipeline.paths import for_spark, literally, on_store
from store.pipeline.scan import Batches, batches_of, spread
from store.pipeline.storage import for_writing, listed, require_reachable

_WRITTEN = pa.schema([pa.field("path", pa.string())])


def require_nothing(session: SparkSession, path: str, what: str) -> None:
    """Raise if there is something at a path that was `checked`, as Spark sees it.

    Raises:
        PipelineError: something is there, or nobody can look; ``what`` was to be written.
    """
    if on_store(path):
        try:
            require_reachable(path)
            exists = bool(listed(path))
        except OSError as error:
            raise of_store(path, error, "output") from error
    else:
        found = session.read.format("binaryFile").option("recursiveFileLookup", "true")
        try:
            # A session of Spark Connect looks when it is asked for something, and no sooner.
            exists = bool(found.load(literally(for_spark(path))).columns)
        except PySparkException as error:
            exists = error.getCondition() != "PATH_NOT_FOUND"
    if exists:
        raise PipelineError(
            f"{path} exists already: name a directory that does not, for {what}.", USAGE
        )


def write_rows(
    rows: DataFrame, folder: str, column: str | None = None, values: Sequence[str] = ()
) -> None:
    """Write rows to a new folder at a path that was `checked`.

    ``column``, if it is given, becomes directories; it has one of some ``values``.
    """
    if not on_store(folder):
        parts = [] if column is None else [column]
        rows.write.mode("append").partitionBy(*parts).parquet(for_spark(folder))
    elif column is None:
        _write(rows, folder)
    else:
        for value in values:
            some = rows.where(F.col(column) == value).drop(column)
            _write(some, f"{folder}/{column}={value}")


def _write(rows: DataFrame, folder: str) -> None:
    work = partial(_written, folder, to_arrow_schema(rows.schema))
    rows.mapInArrow(work, from_arrow_schema(_WRITTEN)).collect()


def _written(folder: str, schema: pa.Schema, batches: Batches) -> Batches:
    """Write a file for the task, which a task that is run again writes over."""
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
    """Read some columns of `ARROW`, and maybe others, of what `write_rows` wrote.

    Raises:
        PipelineError: the store of the folder cannot be read.
    """
    if not on_store(folder):
        return session.read.parquet(literally(for_spark(folder)))
    try:
        found = [each.path for each in listed(folder) if each.path.endswith(".parquet")]
    except OSError as error:
        raise of_store(folder, error, "directory") from error
    schema = pa.schema([ARROW.field(name) for name in names])
    paths = [f"{folder}/{each}" for each in found]
    return spread(session, partial(_read, schema), paths, schema)


def _read(schema: pa.Schema, path: str) -> Iterator[pa.RecordBatch]:
    for rows in batches_of(path, schema.names):
        yield rows.cast(schema)
