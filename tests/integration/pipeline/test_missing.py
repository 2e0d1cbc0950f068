"""Losses of an archive: `verify` finds them by the manifest, a copy of it, or the marks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline import verify as kinds
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.examine import CHANNELS
from store.pipeline.audit.results import note_audit
from store.pipeline.audit.tables import COUNTED
from store.pipeline.columns import empty
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.repair import RepairJob, repair
from store.pipeline.reports import time_text
from store.pipeline.verify import (
    BROKEN_MANIFEST,
    CHANGED_FILE,
    CUT_MANIFEST,
    LOST_COMMIT,
    LOST_FILE,
    LOST_HOUR,
    VerifyJob,
    VerifyReport,
    verify,
)
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    TODAY,
    held,
    hours_of,
    in_lake,
    more,
    plain,
    published,
)

GONE = "The manifest of the archive is gone."


def run(spark: SparkSession, url: str, lake: Path, **options: int) -> None:
    archive(spark, ArchiveJob(url, DeltaArchive(str(lake)), **options))  # type: ignore[arg-type]


def looked(spark: SparkSession, lake: Path, **options: str) -> VerifyReport:
    return verify(spark, VerifyJob(DeltaArchive(str(lake)), **options))  # type: ignore[arg-type]


def found(result: VerifyReport) -> set[str]:
    return {fault.kind for fault in result.faults}


def drop_day(lake: Path) -> str:
    """Remove a whole day from the table, as any tool may; returns the day."""
    table = DeltaTable(lake / "messages")
    day = sorted({str(each["day"]) for each in table.partitions()})[-2]
    table.delete(f"day = '{day}'")
    return day


def without_a_row(lake: Path) -> int:
    """Write a file without its first row; the start of that row's hour."""
    file = max(published(lake), key=lambda each: pq.read_metadata(each).num_rows)
    rows = pq.ParquetFile(file).read()
    pq.write_table(rows.slice(1), file)
    return start_ns(rows["ts"][0].as_py())


def without_a_file(lake: Path) -> int:
    """Remove a file; the start of an hour of which it has messages."""
    file = Path(max(published(lake), key=lambda each: pq.read_metadata(each).num_rows))
    hour = start_ns(pq.ParquetFile(file).read()["ts"][0].as_py())
    file.unlink()
    return hour


def without_an_hour(lake: Path) -> int:
    """Delete the messages of an hour by a commit, as any tool may; its start."""
    hour = sorted(hours_of(in_lake(lake)))[-20]
    DeltaTable(lake / "messages").delete(f"ts >= {hour} and ts < {hour + HOUR}")
    return hour


def start_ns(ts: int) -> int:
    return ts - ts % HOUR


@pytest.mark.parametrize(
    ("remove", "lines"),
    [
        (without_a_row, {LOST_HOUR, CHANGED_FILE, kinds.WRONG_ROWS}),
        (without_a_file, {LOST_HOUR, kinds.UNREADABLE}),
        (without_an_hour, {LOST_HOUR, LOST_FILE}),
    ],
)
def test_what_is_removed_has_a_line_that_names_it(
    spark: SparkSession, lake_path: Path, remove: Callable[[Path], int], lines: set[str]
) -> None:
    hour = remove(lake_path)
    result = looked(spark, lake_path)
    assert found(result) == lines
    said = result.lines()
    (head,) = [number for number, line in enumerate(said) if line.startswith(f"{LOST_HOUR}: ")]
    text = time_text(hour)
    assert any(line.startswith(f"  {text}") for line in said[head + 1 :]), said


def test_a_removed_day_is_found_and_stays_found(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    day = drop_day(lake_path)
    for kinds_found in ({LOST_FILE, LOST_HOUR}, {LOST_HOUR}):
        result = looked(spark, lake_path)
        assert found(result) == kinds_found
        assert any(line.strip().startswith(f"{day}T") for line in result.lines())
        # A run about another time must not take the loss for the new state.
        run(spark, url, lake_path, low_ns=TODAY - 90 * DAY, high_ns=TODAY - 80 * DAY)
    run(spark, url, lake_path)
    assert looked(spark, lake_path, url=url).sound


def test_late_messages_do_not_hide_a_removed_day(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    """Restore the counts of the hours by late messages; a copy of the manifest shows the loss."""
    day = drop_day(lake_path)
    late = [plain(90_000 + hour, start_of(day) + hour * HOUR) for hour in range(24)]
    more(url, *late)
    run(spark, url, lake_path)
    assert looked(spark, lake_path, url=url).sound
    assert set(in_lake(lake_path)) == held(url)
    copy = shutil.copytree(lake_path / "manifest", lake_path.with_name("copy"))
    run(spark, url, lake_path, new_manifest=True)
    result = looked(spark, lake_path)
    assert result.sound, result.faults
    assert "begun in place of one with" in " ".join(result.lines())
    assert CUT_MANIFEST in found(looked(spark, lake_path, manifest=str(copy)))


def start_of(day: str) -> int:
    """Return the start of a day, in Unix nanoseconds."""
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1_000_000_000


def test_removed_commits_are_found(spark: SparkSession, lake_path: Path) -> None:
    for commit in (lake_path / "messages" / "_delta_log").glob("*[1-9].json"):
        commit.unlink()
    result = looked(spark, lake_path)
    assert found(result) == {LOST_COMMIT, LOST_FILE, LOST_HOUR}
    assert "the newest commit of the log is 0" in " ".join(result.lines())


def test_a_removed_messages_table_is_distinguished_from_a_missing_archive(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    shutil.rmtree(lake_path / "messages")
    with pytest.raises(PipelineError, match="has a manifest, but the table"):
        looked(spark, lake_path)
    with pytest.raises(PipelineError, match="has lost commits"):
        run(spark, url, lake_path)
    repair(spark, RepairJob(DeltaArchive(str(lake_path)), leave_out=True))
    assert found(looked(spark, lake_path)) == {LOST_HOUR}
    run(spark, url, lake_path)
    assert looked(spark, lake_path, url=url).sound


def test_a_copy_of_the_manifest_finds_what_was_removed_with_it(
    spark: SparkSession, lake_path: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(lake_path / "manifest", tmp_path / "copy")
    assert looked(spark, lake_path, manifest=str(copy)).sound
    drop_day(lake_path)
    shutil.rmtree(lake_path / "manifest")
    alone = looked(spark, lake_path)
    assert (found(alone), alone.notes[0]) == ({BROKEN_MANIFEST}, GONE)
    assert found(looked(spark, lake_path, manifest=str(copy))) == {
        BROKEN_MANIFEST,
        CUT_MANIFEST,
        LOST_FILE,
        LOST_HOUR,
    }
    with pytest.raises(PipelineError, match="There is no manifest in"):
        looked(spark, lake_path, manifest=str(tmp_path / "none"))


def test_marks_find_what_the_archive_that_they_name_has_lost(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    run(spark, url, lake_path)
    other = shutil.copytree(lake_path, tmp_path / "other")
    drop_day(lake_path)
    shutil.rmtree(lake_path / "manifest")
    assert kinds.LOST_MARKED in found(looked(spark, lake_path, url=url))
    result = looked(spark, other, url=url)
    assert result.sound
    assert "marked 0 hours as archived here" in " ".join(result.lines())


def test_removed_copies_are_found_and_not_continued_until_a_new_manifest_is_begun(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    more(url, plain(90_001, TODAY - DAY + 5))
    run(spark, url, lake_path)
    copies = lake_path / "manifest"
    whole = shutil.copytree(copies, tmp_path / "whole")
    assert len(list(whole.iterdir())) == 3
    more(url, plain(90_002, TODAY - DAY + 5))
    for removed in ({0}, {1}, {0, 1, 2}):
        shutil.rmtree(copies)
        shutil.copytree(whole, copies)
        for number in removed:
            (copies / f"{number:020}.json").unlink()
        assert found(looked(spark, lake_path)) == {BROKEN_MANIFEST}, removed
        with pytest.raises(PipelineError, match=r"is damaged.*--new-manifest"):
            run(spark, url, lake_path)
    run(spark, url, lake_path, new_manifest=True)
    assert len(list(lake_path.glob("log-before-*"))) == 1
    result = looked(spark, lake_path)
    assert result.sound, result.faults
    assert in_lake(lake_path) == sorted(held(url))


def test_a_copy_that_a_killed_job_did_not_write_is_written_by_the_next(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    newest = max((lake_path / "manifest").iterdir())
    data = newest.read_bytes()
    newest.unlink()
    result = looked(spark, lake_path)
    assert result.sound
    assert "The next job copies 1 more" in " ".join(result.lines())
    run(spark, url, lake_path)
    assert newest.read_bytes() == data


def test_a_table_beside_the_messages_is_not_begun_anew_over_the_files_of_a_lost_log(
    spark: SparkSession, lake_path: Path
) -> None:
    def note() -> None:
        counts = dict.fromkeys(COUNTED, 0)
        note_audit(DeltaArchive(str(lake_path)), empty(spark, CHANNELS), counts)

    note()
    table = lake_path / "audits"
    aside = (table / "_delta_log").rename(lake_path / "log")
    files = set(table.iterdir())
    assert found(looked(spark, lake_path)) == {kinds.BESIDE}
    with pytest.raises(PipelineError, match=r"audits holds \d Parquet files, but the log"):
        note()
    assert set(table.iterdir()) == files
    aside.rename(table / "_delta_log")
    assert looked(spark, lake_path).sound
    next(table.glob("*.parquet")).unlink()
    assert f"{table} lacks 1 of the" in " ".join(looked(spark, lake_path).lines())
