"""RepairJob: a log that is lost is made anew from files and manifest, or nothing is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline import requiring
from store.pipeline.actions import Written
from store.pipeline.contents import known_hours
from store.pipeline.errors import PipelineError
from store.pipeline import verify as kinds
from store.pipeline.archive import ArchiveJob, ArchiveReport, archive
from store.pipeline.repair import RepairReport, RepairJob, repair
from store.pipeline.verify import VerifyJob, verify
from store.pipeline.delta import DeltaArchive, LakeFile
from store.pipeline.recording import record
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
def test_a_lost_log_is_made_anew(
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
    assert (told.added, told.anew, tree(lake_path) == damaged) == (len(before), True, True)
    result = run(spark, lake_path)
    assert (result.sound, result.added, result.messages) == (True, len(before), len(held(url)))
    assert (result.aside is not None) == (damage == "torn")
    assert sorted(published(lake_path)) == sorted(before)
    remade = DeltaTable(lake_path / "messages").get_add_actions(flatten=True)
    columns = ["path", "num_records", "min.ts", "max.ts", "partition.day", "partition.shard"]
    assert [sorted(map(str, remade[name].to_pylist())) for name in columns] == [
        sorted(map(str, statistics[name].to_pylist())) for name in columns
    ]
    assert faults(spark, lake_path) == {}
    assert archived_again(spark, url, lake_path).published == 0
    assert (run(spark, lake_path).added, in_lake(lake_path)) == (0, sorted(held(url)))


def rewrite(lake: DeltaArchive, day: int) -> int:
    """Put a copy in the place of a file of a day, as compaction does with several; its rows."""
    file = max(lake.open().files([day]), key=LakeFile.size)
    old = lake.within(file)
    path = f"{lake.begin_run()}/{old.split('/', 1)[1]}"
    source = Path(file.path.removeprefix("file://"))
    copy = source.parents[3] / path
    copy.parent.mkdir(parents=True)
    shutil.copy(source, copy)
    times = pq.ParquetFile(copy).read(["ts"])["ts"].to_pylist()
    name = str(copy.parent.parent.name).removeprefix("day=")
    size = copy.stat().st_size
    ends = min(times), max(times)
    lake.replace([file], [Written(path, name, file.shard, size, file.rows, *ends)])
    return file.rows


def test_lost_commits_are_made_good_by_one(spark: SparkSession, url: str, lake_path: Path) -> None:
    newest = DeltaTable(lake_path / "messages").version()
    late = TODAY - DAY
    more(url, plain(90_000, late))
    archived_again(spark, url, lake_path)
    lake = DeltaArchive(str(lake_path))
    rows = rewrite(lake, late // DAY)
    rewrite(lake, late // DAY - 1)
    record(spark, lake, known_hours(spark, lake, keep=True))
    for version in range(newest + 1, lake.version + 1):
        (log_of(lake_path) / f"{version:020}.json").unlink()
    assert faults(spark, lake_path)[requiring.LOST_FILE] == 3
    # A job that runs before the log is repaired makes nothing worse.
    record(spark, lake.open(), known_hours(spark, lake, keep=False))
    assert faults(spark, lake_path)[requiring.LOST_FILE] == 2
    result = run(spark, lake_path)
    assert (result.sound, result.anew) == (True, False)
    # The other day is there as it was before it was rewritten.
    assert (result.added, result.removed, result.messages) == (2, 1, rows + 1)
    assert in_lake(lake_path) == sorted(held(url))
    assert archived_again(spark, url, lake_path).published == 0
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
    assert (found[requiring.CHANGED_FILE], found[kinds.UNREADABLE]) == (1, 1)
    assert found[requiring.LOST_HOUR] > 1
    assert lost.name in " ".join(result.lines())
    assert tree(lake_path) == damaged
    assert run(spark, lake_path, leave_out=True).added == len(by_rows) - 2
    assert faults(spark, lake_path)[requiring.LOST_FILE] == 2
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
    assert (result.refused, result.added, result.removed) == (False, 0, 1)
    assert faults(spark, lake_path)[requiring.LOST_FILE] == 1
    assert archived_again(spark, url, lake_path).published > 0
    assert faults(spark, lake_path) == {}
    assert in_lake(lake_path) == sorted(held(url))


def test_an_entry_does_not_lead_out_of_the_archive(
    spark: SparkSession, lake_path: Path, tmp_path: Path
) -> None:
    outside = shutil.copy(published(lake_path)[0], tmp_path / "part-1.parquet")
    entries = lake_path / "manifest"
    entry = max(entries.iterdir())
    told = json.loads(entry.read_bytes())
    told["added"][0][0] = f"../../{Path(outside).name}"
    entry.write_text(json.dumps(told))
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
