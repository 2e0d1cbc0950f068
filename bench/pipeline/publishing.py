"""Rows as a publication of an archive, without Spark: for archives that no database has held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from store.pipeline.actions import Written
from store.pipeline.lake import Lake
from store.pipeline.limits import DAY_NS
from store.pipeline.writing import day_text, write_batches


def write_rows(lake: Lake, run: str, batches: Iterator[pa.RecordBatch]) -> list[Written]:
    """Write rows with all columns as a job's tasks do; the files, which nothing names yet."""
    folder = Path(lake.path, "messages", run)
    found = []
    for batch in write_batches(f"file://{folder}", batches):
        for path, count in zip(batch["path"].to_pylist(), batch["rows"].to_pylist(), strict=True):
            ts = pq.ParquetFile(folder / path).read(columns=["ts"])["ts"].to_numpy()
            size, low, high = (folder / path).stat().st_size, int(ts.min()), int(ts.max())
            shard = int(Path(path).parent.name.removeprefix("shard="))
            of_day = day_text(low // DAY_NS)
            found.append(Written(f"{run}/{path}", of_day, shard, size, count, low, high))
    return found


def publish_rows(lake: Lake, run: str, batches: Iterator[pa.RecordBatch]) -> Sequence[Written]:
    """Write rows, and have the log name their files."""
    written = write_rows(lake, run, batches)
    lake.publish(written, {})
    return written
