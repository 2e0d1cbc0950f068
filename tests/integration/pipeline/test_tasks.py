"""What Spark hands out: every portion once, and rows of any size in batches that are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from store.pipeline.limits import ARROW_BATCH_BYTES
from store.pipeline.tasks import in_portions, spread

MADE = pa.schema([("number", pa.int64()), ("text", pa.string())])
LARGE = 1_000_000


def made(texts: str, portion: list[int]) -> Iterator[pa.RecordBatch]:
    for number in portion:
        yield pa.record_batch([pa.array([number]), pa.array([texts[number]])], schema=MADE)


def test_every_portion_is_worked_on_once(spark: SparkSession) -> None:
    portions = [[0, 1], [], [2], [3, 4]]
    found = spread(spark, partial(made, "abcde"), portions, MADE).collect()
    assert sorted((row["number"], row["text"]) for row in found) == list(enumerate("abcde"))
    assert spread(spark, partial(made, ""), [], MADE).collect() == []


def test_portions_are_neighbours_of_about_the_same_size(spark: SparkSession) -> None:
    sizes = [90_000, 20_000, 300_000, 1_000, 150_000, 9_000_000, 5, 6]
    portions = in_portions(spark, sizes, int)
    assert [size for portion in portions for size in portion] == sizes
    assert portions[-1] == [5, 6]
    assert in_portions(spark, [1] * 10, int) == [[1] * 10]


def test_what_workers_make_is_not_sent_to_all_of_them_through_the_driver(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark expects a few bytes of a portion, however many rows are made of it."""
    rows = spread(spark, partial(made, "abcde"), [[0, 1], [2]], MADE)
    others = spread(spark, partial(made, "fghij"), [[1], [2, 3]], MADE)
    joined = rows.join(others, "number", "left")
    joined.explain()
    assert "Broadcast" not in capsys.readouterr().out
    assert joined.count() == 3


def sized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([pa.array([batch.nbytes])], ["size"])


def test_large_rows_reach_workers_a_few_at_a_time(spark: SparkSession) -> None:
    """Ten thousand is the number of rows of a batch, whatever they hold, unless it is bounded."""
    rows = spark.range(0, 150, 1, 1).selectExpr(f"cast(repeat('x', {LARGE}) as binary) as large")
    found = [row["size"] for row in rows.mapInArrow(sized, "size long").collect()]
    assert sum(found) > 150 * LARGE
    assert max(found) <= ARROW_BATCH_BYTES + 2 * LARGE
