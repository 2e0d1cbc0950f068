"""An archive's table without Spark: a commit that is made survives a loss of power."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from store.pipeline import delta, files
from store.pipeline.delta import (
    CommitMetadata,
    DataFile,
    DeltaArchive,
    WrittenFile,
    read_commits,
    read_manifest,
)
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import Fingerprint

DAY = 20_000
FILE = WrittenFile("day=2024-10-04/shard=0/part-1.parquet", DAY, 0, 4, 1, 5, 5, "0" * 64)


@pytest.fixture
def lake(tmp_path: Path) -> DeltaArchive:
    """Create an archive with a file that is not published yet."""
    found = DeltaArchive(str(tmp_path / "archive")).open_for_writing()
    file = tmp_path / "archive" / "messages" / FILE.path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1")
    return found


def publish(archive: DeltaArchive, added: list[WrittenFile], *removed: DataFile) -> None:
    digests = {each.path: each.digest for each in added}
    archive.commit(added, removed, CommitMetadata(digests), is_new=not removed)


def test_a_commit_and_its_copy_are_on_the_disk_when_it_is_done(
    lake: DeltaArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "_sync", synced.append)
    publish(lake, [FILE])
    log = tmp_path / "archive" / "messages" / "_delta_log"
    copies = tmp_path / "archive" / "manifest"
    assert synced[:5] == [log / f"{1:020}.json", log, log.parent, log.parent.parent, tmp_path]
    assert synced[6:] == [copies / f"{1:020}.json", copies, copies.parent, tmp_path]
    assert [each.rows for each in lake.files()] == [FILE.rows]
    for commit in log.glob("*.json"):
        assert (copies / commit.name).read_bytes() == commit.read_bytes()


def test_the_commits_are_a_chain_that_names_files_and_hours(lake: DeltaArchive) -> None:
    hour = Fingerprint(1, 2, 3, 4, 5)
    lake.commit([FILE], (), CommitMetadata({FILE.path: FILE.digest}, {0: hour}, "me", 7))
    lake.commit([], lake.files(), CommitMetadata(hours=None))
    found = read_manifest(f"{lake.path}/manifest")
    assert (found.version, found.broken, found.foreign) == (2, [], [])
    assert (found.files, found.removed) == ({}, {FILE.path})
    assert (found.required, found.unknown_days) == ({0: hour}, {DAY})
    assert found.positions == {"me": 7}
    assert lake.log_faults(found) == []


@pytest.mark.parametrize("removed", [0, 1])
def test_a_copy_that_is_gone_or_altered_breaks_the_chain(
    lake: DeltaArchive, removed: int, tmp_path: Path
) -> None:
    publish(lake, [FILE])
    copies = tmp_path / "archive" / "manifest"
    copy = copies / f"{removed:020}.json"
    data = copy.read_bytes()
    copy.write_bytes(data.replace(b"storenode", b"Storenode"))
    found = read_manifest(str(copies))
    assert found.broken or lake.log_faults(found)
    copy.write_bytes(b"{")
    assert read_manifest(str(copies)).broken == [f"{removed:020}.json cannot be read"]


def test_many_copies_become_one_file_that_is_read_as_they_were(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(delta, "ROLL_AT", 3)
    monkeypatch.setattr(delta, "KEPT_SINGLE", 2)
    folder = tmp_path / "archive" / "manifest"
    for number in range(9):
        lake.commit([], (), CommitMetadata(store_id="me", position=number))
        before = list(read_commits(str(folder)))
        lake.manifest.roll()
        assert list(read_commits(str(folder))) == before
    found = read_manifest(str(folder))
    assert (found.version, found.broken, found.positions) == (9, [], {"me": 8})
    names = sorted(each.name for each in folder.iterdir())
    assert names[0] == f"{0:020}-{2:020}.jsonl"
    assert len(names) < 10
    log = tmp_path / "archive" / "messages" / "_delta_log"
    whole = {each.name: each.read_bytes() for each in log.glob("*.json")}
    shutil.rmtree(log)
    assert lake.restore_log(found) is None
    assert {each.name: each.read_bytes() for each in log.glob("*.json")} == whole
    lines = (folder / names[0]).read_bytes().splitlines(keepends=True)
    (folder / names[0]).write_bytes(b"".join(lines[:-1]))
    assert read_manifest(str(folder)).broken[0] == f"{2:020}.json cannot be read"


def test_a_failed_sync_of_a_commit_is_reported(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(place: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(place))

    monkeypatch.setattr(files, "_sync", sync)
    with pytest.raises(PipelineError, match=r"could not be read or written \(.*Input/output error"):
        publish(lake, [FILE])


def test_folders_of_which_no_file_system_knows_a_call_are_passed_over(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(place: Path) -> None:
        if place.is_dir():
            raise OSError(errno.EINVAL, "Invalid argument", str(place))

    monkeypatch.setattr(files, "_sync", sync)
    publish(lake, [FILE])
    assert len(lake.files()) == 1


@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_no_archive_is_begun_over_the_files_of_a_lost_log(
    lake: DeltaArchive, tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "archive" / "messages" / "day=2026-01-01" / "part.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"messages")
    log = tmp_path / "archive" / "messages" / "_delta_log"
    shutil.rmtree(log)
    if damage == "emptied":
        log.mkdir()
    for begin in (lake.open_for_writing, lake.require_usable, lake.open):
        with pytest.raises(PipelineError, match=r"2 Parquet files, but the log .* is missing"):
            begin()
    assert file.read_bytes() == b"messages"
    assert list(log.glob("*")) == []


def named(number: int, day: int) -> WrittenFile:
    path = f"day=2024-10-{day:02}/shard=0/part-{number}.parquet"
    return FILE._replace(path=path, day=DAY - 4 + day)


def test_a_state_that_was_read_continues_with_the_commits_of_others(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "require_visible", lambda *_: None)
    rng, other = random.Random(5), DeltaArchive(lake.path).open()
    for number in range(6):
        gone = rng.sample(lake.files(), 2) if number % 3 == 2 else []
        publish(lake, [named(number, rng.randrange(1, 4)), named(number + 50, 2)], *gone)
        fresh = DeltaArchive(lake.path).open()
        assert sorted(lake.files()) == sorted(other.renew().files()) == sorted(fresh.files())
        assert read_manifest(f"{lake.path}/manifest").files.keys() == set(
            map(lake.within, lake.files())
        )
        some = {each.day for each in rng.sample(fresh.files(), 1)}
        assert sorted(lake.files(some)) == [
            each for each in sorted(fresh.files()) if each.day in some
        ]


def test_only_directories_with_many_small_files_are_crowded(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "require_visible", lambda *_: None)
    large = [named(number, 2)._replace(size_bytes=2**30) for number in range(100, 110)]
    publish(lake, [*(named(number, 1) for number in range(8)), named(8, 2), *large])
    assert {each.day for each in lake.crowded()} == {DAY - 3}
    assert len(lake.crowded()) == 8
    publish(lake, [named(number, 3) for number in range(20, 32)])
    assert [len(lake.files({each})) for each in (DAY - 3, DAY - 1)] == [8, 12]
    assert len(lake.crowded()) == 20
    monkeypatch.setattr(delta, "COMPACT_FILES_AT_ONCE", 8)
    assert {each.day for each in lake.crowded()} == {DAY - 3}
