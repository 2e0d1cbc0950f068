"""VerifyJob: a sound archive is found sound, and every kind of damage is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.pipeline import verify as kinds
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.delta import DeltaArchive
from store.pipeline.fingerprints import Fingerprint
from store.pipeline.verify import VerifyJob, VerifyReport, catch_up, verify
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    held,
    hours_of,
    in_lake,
    messages,
    more,
    plain,
    published,
)

TS, PAYLOAD, META = "ts", "payload", "meta"
Rows = list[dict[str, object]]


def run(spark: SparkSession, lake: Path, **options: object) -> VerifyReport:
    return verify(spark, VerifyJob(DeltaArchive(str(lake)), **options))  # type: ignore[arg-type]


def found(result: VerifyReport) -> dict[str, int]:
    return {fault.kind: fault.count for fault in result.faults}


def largest(lake: Path) -> Path:
    """Return the file with the most rows, and delete Spark's checksum of it, as a copy does."""
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


def test_messages_after_the_newest_commit_are_not_archived_yet(
    spark: SparkSession, url: str, archived: Path
) -> None:
    """Add a late message of an archived hour and the first message of another hour."""
    more(url, plain(90_001, TODAY - DAY), plain(90_002, TODAY - 9 * DAY))
    result = run(spark, archived, url=url)
    assert (result.sound, result.not_archived_yet) == (True, 2)
    assert "2 messages came after the archive's newest commit" in " ".join(result.lines())


def test_messages_that_the_archive_should_hold_are_missing_from_it(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    more(url, plain(90_001, TODAY - DAY), plain(90_002, TODAY - 9 * DAY))
    other = lake_path.with_name("other")
    archive(spark, ArchiveJob(url, DeltaArchive(str(other)), high_ns=TODAY - 8 * DAY))
    more(url, plain(90_003, TODAY - DAY + 1))
    hours = {ts // HOUR for ts, _ in held(url) if TODAY - 8 * DAY <= ts < NOW // HOUR * HOUR}
    result = run(spark, other, url=url)
    assert found(result) == {kinds.DIFFERENT: len(hours)}
    assert run(spark, other, url=url, high_ns=TODAY - 8 * DAY).sound


def test_an_archive_may_hold_some_of_the_commits_after_the_one_that_it_names() -> None:
    one, two = Fingerprint(1, 1, 0, 0, 0), Fingerprint(1, 2, 0, 0, 0)
    for stored, missing in ((one, 2), (one.joined(two), 1)):
        wanted = {0: one}
        later = [{0: two}, {0: two, HOUR: one}]
        assert catch_up(wanted, later, {0: stored}) == missing
        assert wanted == {0: stored}
    wanted = {0: one}
    assert catch_up(wanted, [{0: two}], {0: two}) == 1
    assert wanted == {0: one}


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
        (tampered, {kinds.WRONG_HASH: 2}),
        (moved, {kinds.WRONG_WORDS: 1, kinds.LOST_HOUR: 1}),
        (elsewhere, {kinds.WRONG_HASH: 1, kinds.WRONG_PLACE: 1}),
        (
            another_day,
            {
                kinds.WRONG_HASH: 1,
                kinds.WRONG_DAY: 1,
                kinds.LOST_HOUR: 1,
            },
        ),
        (twice, {kinds.WRONG_ROWS: 1, kinds.TWICE: 1}),
        (strange, {kinds.NOT_ELIGIBLE: 3, kinds.WRONG_HASH: 3, kinds.TOO_LONG: 1}),
        (fewer, {kinds.WRONG_ROWS: 1, kinds.LOST_HOUR: 1}),
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
    assert found(result) == {**wanted, kinds.CHANGED_FILE: 1}
    assert not result.sound
    text = " ".join(result.lines())
    assert file.name in text or "times" in text


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
