"""Directories of Parquet files that a job writes, by Spark's workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from store.pipeline.columns import ARROW
from store.pipeline.errors import of_store
from store.pipeline.files import for_reading, for_writing, listed
from store.pipeline.scan import Batches, batches_of, spread

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
