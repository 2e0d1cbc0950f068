"""Work that Spark hands out and that needs nothing of Spark: a function of Arrow, on portions.

What is done so never goes through rows of the JVM, which cost more than most of what a job does
with a message. Spark decides where and when, does it again where a worker dies, and collects.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.limits import MAX_PORTION_ROWS, MIN_PORTION_ROWS
from store.pipeline.portions import shared_out

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]
_NUMBER: Final = "id"


def spread(
    session: SparkSession,
    work: Callable[[T], Batches],
    portions: Sequence[T],
    schema: pa.Schema,
) -> DataFrame:
    """What ``work`` makes of each portion, as rows of a ``schema``; a task for each portion.

    ``work`` is a function of a module, or a `functools.partial` of one: workers import it.
    """
    count = len(portions)
    numbers = session.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_task, work, list(portions)), from_arrow_schema(schema))


@cache
def spare_loaded() -> None:
    """Keep what a worker has loaded out of garbage collection.

    PySpark collects after every task, which takes longer than a small task where many libraries
    are loaded.
    """
    gc.freeze()


def _task(work: Callable[[T], Batches], portions: Sequence[T], batches: Batches) -> Batches:
    spare_loaded()
    for batch in batches:
        for number in batch[_NUMBER].to_pylist():
            yield from work(portions[number])


def good_tasks(session: SparkSession) -> int:
    """How many tasks there should be of a step that goes through everything."""
    return int(session.conf.get("spark.sql.shuffle.partitions") or "1")


def in_portions(
    session: SparkSession, items: Sequence[T], rows_of: Callable[[T], int]
) -> list[list[T]]:
    """Neighbouring items together, so that every core has some, and no task next to nothing."""
    even = -(-sum(map(rows_of, items)) // good_tasks(session))
    share = min(MAX_PORTION_ROWS, max(MIN_PORTION_ROWS, even))
    return shared_out(items, rows_of, share)
