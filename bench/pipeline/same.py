"""A Spark data source that costs nothing to read: one batch of the source's, sent again and again.

What a query over it takes is what Spark itself takes for such rows, whatever reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from store.pipeline.columns import spark_schema
from store.pipeline.source import Options, StorenodeReader

_NAME: Final = "same"
_TASKS: Final = 2


def keep_batch(url: str, names: Sequence[str], path: Path) -> None:
    """Write the first batch that the source reads to a file."""
    reader = StorenodeReader(Options({"url": url, "columns": ",".join(names)}))
    batch = next(iter(reader.read(reader.partitions()[0])))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def read_again(session: SparkSession, path: Path, names: Sequence[str], messages: int) -> None:
    """Read so many messages, the same ones over and over, and do nothing with them."""
    session.dataSource.register(Same)
    options = {"path": str(path), "columns": ",".join(names), "messages": str(messages)}
    rows = session.read.format(_NAME).options(**options).load()
    rows.write.format("noop").mode("overwrite").save()


class Same(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` is given."""
        return _NAME

    def schema(self) -> StructType:
        """The columns that were kept."""
        return spark_schema(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it is `schema()`
        """Reads the batch as often as is asked for."""
        return _Reader(self.options["path"], int(self.options["messages"]))


class _Reader(DataSourceReader):
    def __init__(self, path: str, messages: int) -> None:
        self._path = path
        self._messages = messages

    def partitions(self) -> Sequence[InputPartition]:
        """As many tasks as the machines of the measures have cores."""
        few, more = divmod(self._messages, _TASKS)
        return [InputPartition(few + (each < more)) for each in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batch, until there are as many messages as this task has."""
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        left = int(partition.value)
        while left > 0:
            part = batch.slice(0, left)
            yield part
            left -= part.num_rows
