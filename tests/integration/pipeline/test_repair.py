"""RepairJob: a log that is lost is made anew from files and manifest, or nothing is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline import verify as kinds
from store.pipeline.archive import ArchiveJob, ArchiveReport, archive
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.repair import RepairJob, RepairReport, repair
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.world import DAY, TODAY, held, in_lake, more, plain, published


def run(spark: SparkSession, lake: Path, **options: bool) -> RepairReport:
    return repair(spark, RepairJob(DeltaArchive(str(lake)), **options))  # type: ignore[arg-type]


def archived_again(spark: SparkSession, url: str, lake: Path) -> ArchiveReport:
    return archive(spark, ArchiveJob(url, DeltaArchive(str(lake))))


def faults(spark: SparkSession, lake: Path) -> dict[str, int]:
    result = verify(spark, VerifyJob(DeltaArchive(str(lake))))
    return {each.kind: each.count for each in result.faults}


def log_of(lake: Path) -> Path:
    return lake / "messages" / "_delta_log"


def tree(lake: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lake.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", ["removed", "emptied", "torn"])
def test_a_lost_log_is_restored(
    spark: SparkSession, url: str, lake_path: Path, damage: str
) -> None:
    before = published(lake_path)
    statistics = DeltaTable(lake_path / "messages").get_add_actions(flatten=True)
    if damage == "torn":
        (log_of(lake_path) / f"{0:020}.json").write_bytes(b"{")
    else:
        shutil.rmtree(log_of(lake_path))
    if damage == "emptied":
        log_of(lake_path).mkdir()
    damaged = tree(lake_path)
    told = run(spark, lake_path, dry_run=True)
    assert (told.files, told.commits_restored > 0, tree(lake_path) == damaged) == (
        len(before),
        True,
        True,
    )
    result = run(spark, lake_path)
    assert (result.sound, result.files) == (True, len(before))
    assert (result.damaged_log is not None) == (damage == "torn")
    assert sorted(published(lake_path)) == sorted(before)
    remade = DeltaTable(lake_path / "messages").get_add_actions(flatten=True)
    columns = ["path", "num_records", "min.ts", "max.ts", "partition.day", "partition.shard"]
    assert [sorted(map(str, remade[name].to_pylist())) for name in columns] == [
        sorted(map(str, statistics[name].to_pylist())) for name in columns
    ]
    assert faults(spark, lake_path) == {}
    assert archived_again(spark, url, lake_path).messages == 0
    assert (run(spark, lake_path).commits_restored, in_lake(lake_path)) == (0, sorted(held(url)))


def test_lost_commits_are_restored(spark: SparkSession, url: str, lake_path: Path) -> None:
    newest = DeltaTable(lake_path / "messages").version()
    more(url, plain(90_000, TODAY - DAY))
    archived_again(spark, url, lake_path)
    whole = tree(log_of(lake_path))
    (log_of(lake_path) / f"{newest + 1:020}.json").unlink()
    assert faults(spark, lake_path)[kinds.LOST_FILE] == 1
    with pytest.raises(PipelineError, match=r"has lost commits.* Run `storenode pipeline repair`"):
        archived_again(spark, url, lake_path)
    result = run(spark, lake_path)
    assert (result.sound, result.commits_restored, result.files_removed) == (True, newest + 2, 0)
    assert tree(log_of(lake_path)) == whole
    assert in_lake(lake_path) == sorted(held(url))
    assert archived_again(spark, url, lake_path).messages == 0
    assert faults(spark, lake_path) == {}


def test_a_commit_that_was_altered_is_found_and_restored(
    spark: SparkSession, lake_path: Path
) -> None:
    commit = log_of(lake_path) / f"{1:020}.json"
    whole = commit.read_bytes()
    lines = whole.splitlines(keepends=True)
    commit.write_bytes(b"".join(line for line in lines if b'"add"' not in line))
    assert kinds.BROKEN_MANIFEST in faults(spark, lake_path)
    assert run(spark, lake_path).commits_restored > 0
    assert commit.read_bytes() == whole
    assert faults(spark, lake_path) == {}


def test_a_file_that_does_not_agree_is_refused_or_left_out(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    by_rows = sorted(map(Path, published(lake_path)), key=lambda p: pq.read_metadata(p).num_rows)
    changed, lost = by_rows[-2:]
    pq.write_table(pq.ParquetFile(changed).read().slice(1), changed)
    lost.unlink()
    shutil.rmtree(log_of(lake_path))
    damaged = tree(lake_path)
    result = run(spark, lake_path)
    assert result.refused
    found = {each.kind: each.count for each in result.faults}
    assert (found[kinds.CHANGED_FILE], found[kinds.UNREADABLE]) == (1, 1)
    assert lost.name in " ".join(result.lines())
    assert tree(lake_path) == damaged
    assert run(spark, lake_path, leave_out=True).files_removed == 2
    assert faults(spark, lake_path).keys() == {kinds.LOST_HOUR}
    # The database still has all of it.
    archived_again(spark, url, lake_path)
    assert faults(spark, lake_path) == {}
    assert in_lake(lake_path) == sorted(held(url))


def test_files_that_are_gone_are_left_out_and_archived_again(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    """The log, which is whole, names them."""
    file = Path(max(published(lake_path), key=lambda each: Path(each).stat().st_size))
    file.unlink()
    before = tree(lake_path)
    refused = run(spark, lake_path)
    assert (refused.refused, refused.faults[0].kind) == (True, kinds.UNREADABLE)
    assert file.name in " ".join(refused.lines())
    assert tree(lake_path) == before
    result = run(spark, lake_path, leave_out=True)
    assert (result.refused, result.commits_restored, result.files_removed) == (False, 0, 1)
    assert faults(spark, lake_path).keys() == {kinds.LOST_HOUR}
    assert archived_again(spark, url, lake_path).messages > 0
    assert faults(spark, lake_path) == {}
    assert in_lake(lake_path) == sorted(held(url))


def test_a_commit_does_not_lead_out_of_the_archive(
    spark: SparkSession, lake_path: Path, tmp_path: Path
) -> None:
    outside = shutil.copy(published(lake_path)[0], tmp_path / "part-1.parquet")
    copy = max((lake_path / "manifest").iterdir())
    path = Path(published(lake_path)[0]).relative_to(lake_path / "messages")
    text = copy.read_text()
    assert str(path) in text
    copy.write_text(text.replace(str(path), f"../../{Path(outside).name}"))
    shutil.rmtree(log_of(lake_path))
    result = run(spark, lake_path)
    assert result.refused
    assert "'../../part-1.parquet'" in " ".join(result.lines())
    assert not log_of(lake_path).exists()


def test_without_a_manifest_nothing_is_made(spark: SparkSession, lake_path: Path) -> None:
    shutil.rmtree(lake_path / "manifest")
    shutil.rmtree(log_of(lake_path))
    with pytest.raises(PipelineError, match="There is no manifest in"):
        run(spark, lake_path)
    assert not log_of(lake_path).exists()
