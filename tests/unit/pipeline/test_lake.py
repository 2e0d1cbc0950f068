"""An archive's table without Spark: a commit that is made survives a loss of power."""

from __future__ import annotations

import errno
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store.pipeline import lake as lakes
from store.pipeline import listing, storage
from store.pipeline.actions import Written
from store.pipeline.errors import PipelineError
from store.pipeline.delta import DeltaArchive

FILE = Written("run-1/day=2024-10-04/shard=0/part-1.parquet", "2024-10-04", 0, 4, 1, 5, 5)


@pytest.fixture
def lake(tmp_path: Path) -> DeltaArchive:
    """An archive with a file that is not published yet."""
    found = DeltaArchive(str(tmp_path / "archive")).create()
    file = tmp_path / "archive" / "messages" / FILE.path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1")
    return found


def test_a_commit_is_on_the_disk_when_it_is_told(
    lake: DeltaArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(storage, "_sync", synced.append)
    lake.publish([FILE], {})
    log = tmp_path / "archive" / "messages" / "_delta_log"
    assert synced == [log / f"{1:020}.json", log, log.parent, log.parent.parent, tmp_path]
    assert [each.rows for each in lake.files()] == [FILE.rows]
    lake.replace(lake.files(), [])
    assert synced[5] == log / f"{2:020}.json"


def test_every_commit_of_the_log_is_on_the_disk_from_the_first_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(storage, "_sync", synced.append)
    lake = DeltaArchive(str(tmp_path / "new")).create()
    lake.vacuum()
    log = tmp_path / "new" / "messages" / "_delta_log"
    assert [each for each in synced if each.suffix] == sorted(log.glob("*.json"))


def test_a_disk_that_does_not_take_a_commit_is_told(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(place: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(place))

    monkeypatch.setattr(storage, "_sync", sync)
    with pytest.raises(PipelineError, match=r"could not be read or written \(.*Input/output error"):
        lake.publish([FILE], {})


def test_folders_of_which_no_file_system_knows_a_call_are_passed_over(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(place: Path) -> None:
        if place.is_dir():
            raise OSError(errno.EINVAL, "Invalid argument", str(place))

    monkeypatch.setattr(storage, "_sync", sync)
    lake.publish([FILE], {})
    assert len(lake.files()) == 1


@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_no_archive_is_begun_over_the_files_of_a_lost_log(
    lake: DeltaArchive, tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "archive" / "messages" / "run-1" / "day=2026-01-01" / "part.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"messages")
    log = tmp_path / "archive" / "messages" / "_delta_log"
    shutil.rmtree(log)
    if damage == "emptied":
        log.mkdir()
    for begin in (lake.create, lake.require_usable):
        with pytest.raises(PipelineError, match=r"2 Parquet files, but the log .* is missing"):
            begin()
    assert file.read_bytes() == b"messages"
    assert list(log.glob("*")) == []


def named(number: int, day: int) -> Written:
    text = f"2024-10-{day:02}"
    return replace(FILE, path=f"run-1/day={text}/shard=0/part-{number}.parquet", day=text)


def test_what_is_known_of_a_log_goes_on_with_its_commits(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "require_visible", lambda *_: None)
    rng, other = random.Random(5), DeltaArchive(lake.path)
    lake.digests()
    for number in range(12):
        if number % 3 < 2:
            lake.publish(
                [named(number, rng.randrange(1, 4)) for number in (number, number + 50)], {}
            )
        else:
            gone = rng.sample(lake.files(), 2)
            lake.replace(gone, [named(number + 100, rng.randrange(1, 4))])
        fresh = DeltaArchive(lake.path).open()
        assert lake.digests() == other.renew().digests() == fresh.digests()
        assert sorted(lake.files()) == sorted(other.files()) == sorted(fresh.files())
        some = {each.day for each in rng.sample(fresh.files(), 1)}
        assert sorted(lake.files(some)) == [
            each for each in sorted(fresh.files()) if each.day in some
        ]


def test_only_directories_with_many_small_files_are_crowded(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "require_visible", lambda *_: None)
    large = [replace(named(number, 2), size_bytes=2**30) for number in range(100, 110)]
    lake.publish([*(named(number, 1) for number in range(8)), named(8, 2), *large], {})
    assert {each.day for each in lake.crowded()} == {19_997}
    assert len(lake.crowded()) == 8
    lake.publish([named(number, 3) for number in range(20, 32)], {})
    assert [len(lake.files({each})) for each in (19_997, 19_999)] == [8, 12]
    assert len(lake.crowded()) == 20
    monkeypatch.setattr(listing, "COMPACT_FILES_AT_ONCE", 8)
    assert {each.day for each in lake.crowded()} == {19_997}


def test_a_log_that_is_gone_is_told_by_who_reads_on(lake: DeltaArchive, tmp_path: Path) -> None:
    lake.publish([FILE], {})
    shutil.rmtree(tmp_path / "archive" / "messages" / "_delta_log")
    with pytest.raises(PipelineError, match="missing or damaged"):
        lake.renew()
