"""What is in files of an archive, as Arrow batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from store.pipeline.columns import ARROW
from store.pipeline.errors import of_file
from store.pipeline.paths import on_store
from store.pipeline.storage import for_reading

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 32 * 1024 * 1024
"""Rows of one batch, and about so many bytes of them."""


def batches_of(
    path: str,
    names: Iterable[str],
    low_ns: int | None = None,
    high_ns: int | None = None,
    may_hold: Callable[[pq.RowGroupMetaData], bool] = lambda _: True,
) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, of the types of `store.pipeline.columns.ARROW`; no batch is empty.

    Parts of the file that by its own statistics hold nothing from ``low_ns`` up to ``high_ns``
    (exclusive), or that ``may_hold`` says no of, are passed over; all of a part comes that holds
    something.

    Raises:
        PipelineError: it cannot be read, or is no file of an archive.
    """
    schema = pa.schema([ARROW.field(name) for name in names])
    try:
        # Of a store, neighbouring columns are fetched by one request.
        ahead = on_store(path)
        with for_reading(path) as source, pq.ParquetFile(source, pre_buffer=ahead) as file:
            for number in range(file.num_row_groups):
                part = file.metadata.row_group(number)
                if not (_within(part, low_ns, high_ns) and may_hold(part)):
                    continue
                size = part.num_rows * BATCH_BYTES // max(1, part.total_byte_size)
                for batch in file.iter_batches(
                    batch_size=min(BATCH_ROWS, max(1, size)),
                    row_groups=[number],
                    columns=schema.names,
                    use_threads=False,
                ):
                    if batch.num_rows:
                        yield _as(batch, schema)
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise of_file(path, error) from error


def rows_and_bytes(path: str) -> tuple[int, int]:
    """How many rows a file says that it has, and its size.

    Raises:
        PipelineError: it cannot be read.
    """
    try:
        with for_reading(path) as source:
            return pq.read_metadata(source).num_rows, int(source.size())
    except (OSError, pa.ArrowException) as error:
        raise of_file(path, error) from error


def _within(part: pq.RowGroupMetaData, low_ns: int | None, high_ns: int | None) -> bool:
    if low_ns is None or high_ns is None:
        return True
    for place in range(part.num_columns):
        column = part.column(place)
        if column.path_in_schema == "ts":
            told = column.statistics
            if told is None or not told.has_min_max:
                return True
            return bool(told.min < high_ns and told.max >= low_ns)
    return True


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a batch that may have come in another order, or with wider offsets."""
    columns = [batch.column(name) for name in schema.names]
    cast = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    fields = [field.with_nullable(True) for field in schema]
    return pa.RecordBatch.from_arrays(cast, schema=pa.schema(fields))
