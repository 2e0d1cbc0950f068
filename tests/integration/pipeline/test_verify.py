"""Verifying: a sound archive is found sound, and every kind of damage is found and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.pipeline import checking, requiring
from store.pipeline.errors import PipelineError
from store.pipeline.jobs import verify as kinds
from store.pipeline.jobs.verify import Verified, Verifying, file_checks, verify
from store.pipeline.lake import Lake
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    hours_of,
    in_lake,
    messages,
    more,
    plain,
    published,
)

TS, PAYLOAD, META = "ts", "payload", "meta"
Rows = list[dict[str, object]]


def run(spark: SparkSession, lake: Path, **options: object) -> Verified:
    return verify(spark, Verifying(Lake(str(lake)), **options))  # type: ignore[arg-type]


def found(result: Verified) -> dict[str, int]:
    return {fault.kind: fault.count for fault in result.faults}


def largest(lake: Path) -> Path:
    """The file with the most rows; Spark's checksum of it is gone, as after a copy."""
    file = max(map(Path, published(lake)), key=lambda path: pq.read_metadata(path).num_rows)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return file


def rewrite(lake: Path, change: Callable[[Rows], Rows]) -> Path:
    """Change the rows of a file, and keep its name."""
    file = largest(lake)
    table = pq.ParquetFile(file).read()
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), file)
    return file


def test_a_sound_archive_is_found_sound(spark: SparkSession, url: str, archived: Path) -> None:
    result = run(spark, archived, url=url)
    assert result.sound, result.lines()
    assert (result.messages, result.files) == (len(messages()), len(published(archived)))
    assert result.hours == len(hours_of(in_lake(archived)))
    assert result.as_json()["compared_with_database"]


def test_what_is_collected_does_not_grow_with_files_times_hours(
    spark: SparkSession, archived: Path
) -> None:
    files = Lake(str(archived)).open().files()
    rows = file_checks(spark, files)
    by_kind = Counter(row["kind"] for row in rows)
    hours = len(hours_of(in_lake(archived)))
    # All of it is one task.
    assert by_kind == {kinds.FILE: len(files), kinds.HOUR: hours}
    spans = [row["last_ns"] - row["start_ns"] for row in rows if row["kind"] == kinds.FILE]
    assert sum(span // HOUR + 1 for span in spans) > 2 * hours


def test_what_the_database_has_more_is_found(spark: SparkSession, url: str, archived: Path) -> None:
    more(url, plain(90_001, TODAY - DAY), plain(90_002, TODAY - 9 * DAY))
    result = run(spark, archived, url=url)
    assert found(result) == {kinds.DIFFERENT: 2}
    assert run(spark, archived, url=url, low_ns=TODAY - DAY // 2, high_ns=NOW).sound


def tampered(rows: Rows) -> Rows:
    rows[3][PAYLOAD] = b"something else"
    rows[5][META] = b"other"
    return rows


def moved(rows: Rows) -> Rows:
    rows[0]["h1"] = 0
    return rows


def elsewhere(rows: Rows) -> Rows:
    rows[0]["pubsub_topic"] = "/waku/2/rs/1/9"
    return rows


def another_day(rows: Rows) -> Rows:
    rows[0]["ts"] = TODAY - 9 * DAY
    return rows


def twice(rows: Rows) -> Rows:
    return [*rows, rows[0], rows[0]]


def strange(rows: Rows) -> Rows:
    rows[0]["content_topic"] = ""
    rows[1]["ephemeral"] = True
    rows[2]["content_topic"] = "c\0"
    rows[3]["content_topic"] = "c" * 1025
    return rows


def fewer(rows: Rows) -> Rows:
    return rows[1:]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (tampered, {checking.WRONG_HASH: 2}),
        (moved, {checking.WRONG_WORDS: 1, kinds.WRONG_HOUR: 1, requiring.LOST_HOUR: 1}),
        (elsewhere, {checking.WRONG_HASH: 1, checking.WRONG_PLACE: 1}),
        (
            another_day,
            {
                checking.WRONG_HASH: 1,
                kinds.WRONG_DAY: 1,
                kinds.WRONG_HOUR: 1,
                requiring.LOST_HOUR: 1,
            },
        ),
        (twice, {kinds.WRONG_ROWS: 1, kinds.TWICE: 1, kinds.WRONG_HOUR: 1}),
        (strange, {checking.NOT_ELIGIBLE: 3, checking.WRONG_HASH: 3, checking.TOO_LONG: 1}),
        (fewer, {kinds.WRONG_ROWS: 1, kinds.WRONG_HOUR: 1, requiring.LOST_HOUR: 1}),
    ],
)
def test_damage_is_found_and_named(
    spark: SparkSession,
    lake_path: Path,
    change: Callable[[Rows], Rows],
    wanted: dict[str, int],
) -> None:
    file = rewrite(lake_path, change)
    result = run(spark, lake_path)
    assert found(result) == {**wanted, requiring.CHANGED_FILE: 1}
    assert not result.sound
    told = " ".join(result.lines())
    assert file.name in told or "times" in told or "noted" in told


def test_files_that_cannot_be_read_are_named_and_the_others_verified(
    spark: SparkSession, lake_path: Path
) -> None:
    broken = largest(lake_path)
    rows = pq.read_metadata(broken).num_rows
    data = bytearray(broken.read_bytes())
    data[len(data) // 2 :] = b"\0" * (len(data) - len(data) // 2)
    broken.write_bytes(data)
    result = run(spark, lake_path)
    assert found(result)[kinds.UNREADABLE] == 1
    assert result.messages == len(messages()) - rows
    assert broken.name in " ".join(result.lines())


def test_a_foreign_file_under_the_name_of_one_is_found(
    spark: SparkSession, lake_path: Path
) -> None:
    file = largest(lake_path)
    pq.write_table(pa.table({"ts": ["text"], "colour": [1]}), file)
    assert found(run(spark, lake_path))[kinds.UNREADABLE] == 1


def test_a_path_without_an_archive_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="There is no archive in") as caught:
        run(spark, tmp_path)
    assert caught.value.code == 2
