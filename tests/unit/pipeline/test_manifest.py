"""An archive's table without Spark: its commits survive a loss of power, a kill and a lost log."""

from __future__ import annotations

import errno
import json
import shutil
import struct
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st

from store.pipeline import delta, files
from store.pipeline.database import as_of
from store.pipeline.delta import DataFile, DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import Fingerprint
from store.pipeline.limits import HOUR_NS
from store.pipeline.manifest import Manifest, read_manifest

DAY = 20_000
FILE = DataFile("day=2024-10-04/shard=0/part-1.parquet", DAY, 0, 4, 1, 5, 5, "0" * 64)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaArchive:
    """Create an archive with a file that is not published yet."""
    found = DeltaArchive(str(tmp_path / "archive")).open_for_writing()
    file = tmp_path / "archive" / "messages" / FILE.path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1")
    monkeypatch.setattr(delta, "require_visible", lambda *_: None)
    return found


@pytest.fixture
def log(lake: DeltaArchive) -> Path:
    return Path(lake.messages, "_delta_log")


@pytest.fixture
def copies(lake: DeltaArchive) -> Path:
    return Path(lake.path, "manifest")


def publish(archive: DeltaArchive, added: list[DataFile], *removed: DataFile) -> None:
    archive.commit(added, removed, is_new=not removed)


def named(number: int, day: int) -> DataFile:
    return FILE._replace(path=f"day=2024-10-{day:02}/shard=0/part-{number}.parquet")


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.glob("*.json")}


@pytest.mark.parametrize("error", [None, errno.EIO, errno.EINVAL])
def test_a_commit_and_its_copy_are_on_the_disk_when_it_is_done(
    lake: DeltaArchive, log: Path, copies: Path, monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    """Let a sync fail, and do without on a file system that cannot sync directories."""
    synced: list[Path] = []

    def sync(place: Path) -> None:
        synced.append(place)
        if error == errno.EIO or (error is not None and place.is_dir()):
            raise OSError(error, "Input/output error", str(place))

    monkeypatch.setattr(files, "_sync", sync)
    if error == errno.EIO:
        with pytest.raises(PipelineError, match=r"be read or written: .*Input/output error"):
            publish(lake, [FILE])
        return
    publish(lake, [FILE])
    folders = [log, log.parent, log.parent.parent, copies.parent.parent]
    assert synced[:5] == [log / f"{1:020}.json", *folders]
    assert synced[6:] == [copies / f"{1:020}.json", copies, *folders[2:]]
    assert [each.rows for each in lake.files()] == [FILE.rows]
    assert contents(copies) == contents(log)


def test_the_commits_are_a_chain_that_names_files_and_hours(lake: DeltaArchive) -> None:
    hour, less = Fingerprint(2, 2, 3, 4, 5), Fingerprint(1, 2, 3, 4, 5)
    lake.commit([FILE], (), {0: hour}, ("me", 7))
    lake.commit([], lake.files(), {0: less})
    found = read_manifest(f"{lake.path}/manifest")
    assert (found.version, found.broken, found.positions) == (2, [], {"me": 7})
    assert (found.files, found.removed) == ({}, {FILE.path})
    assert (found.required, lake.recorded_hours()) == ({0: hour}, {0: less})
    assert (lake.log_faults(), lake.agrees) == ([], True)


def test_days_that_changed_since_a_commit_are_known(lake: DeltaArchive) -> None:
    commits = [lake.manifest.before]
    publish(lake, [FILE])
    commits.append(lake.manifest.before)
    publish(lake, [named(3, 4)], *lake.files())
    publish(lake, [named(2, 5)])
    assert sorted(lake.files()) == sorted(DeltaArchive(lake.path).open().files())
    assert [lake.changed_since(each) for each in commits] == [{DAY, DAY + 1}] * 2
    DeltaTable(lake.messages).create_checkpoint()
    assert lake.stored() == [FILE.path], "a checkpoint has no messages"
    assert lake.changed_since(lake.manifest.before) == set()
    assert lake.changed_since("0" * 64) is None
    before = lake.manifest.before
    lake.commit([], lake.files({DAY}))
    assert lake.changed_since(before) == {DAY}


def test_a_copy_that_is_altered_or_missing_stops_writers_until_it_is_there_again(
    lake: DeltaArchive, copies: Path
) -> None:
    publish(lake, [FILE])
    publish(lake, [named(2, 5)])
    whole = contents(copies)
    newest = f"{2:020}.json"
    for number, old, new in ((0, b"commitInfo", b"{"), (1, b"0000", b"0001"), (2, b"part-2", b"x")):
        name = f"{number:020}.json"
        for altered in (whole[name].replace(old, new), None if name != newest else b""):
            if altered is None:
                (copies / name).unlink()
            else:
                (copies / name).write_bytes(altered)
            again = DeltaArchive(lake.path).open()
            assert again.manifest.broken or again.log_faults()
            with pytest.raises(PipelineError, match=r"do not agree \(0.*storenode pipeline repair"):
                again.open_for_writing()
            (copies / name).write_bytes(whole[name])
    (copies / newest).unlink()  # a job was killed before it had copied its commit
    again = DeltaArchive(lake.path).open()
    assert (again.manifest.version, again.uncopied_faults(), again.log_faults()) == (2, [], [])
    again.open_for_writing()
    assert contents(copies) == whole
    shutil.rmtree(copies)
    again = DeltaArchive(lake.path).open()
    assert again.uncopied_faults() == [f"{0:020}.json is missing"]
    with pytest.raises(PipelineError, match=r"is missing\): run `storenode pipeline repair"):
        again.open_for_writing()
    assert again.copy_commits() == 3
    assert contents(copies) == whole


def test_a_commit_of_another_program_is_none_of_the_archive(lake: DeltaArchive) -> None:
    publish(lake, [FILE])
    retention = {"delta.logRetentionDuration": "interval 9 days"}
    DeltaTable(lake.messages).alter.set_table_properties(retention)
    again = DeltaArchive(lake.path).open()
    assert (again.version, again.manifest.version, again.recorded_hours()) == (2, 1, None)
    assert (again.changed_since(again.manifest.before), again.agrees) == (None, False)
    with pytest.raises(PipelineError, match=r"newest commit of the log is 2, that of the manif"):
        again.open_for_writing()


NAMES = ["add", "remove", "commitInfo", "path", "partitionValues", "day", "dataChange"]
KEYS = NAMES + [f"storenode.{name}" for name in ("before", "files", "hours", "position", "store")]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS), inner | inner.map(json.dumps), max_size=4)
    ),
    max_leaves=12,
)
HOURS = b'{"commitInfo":{"storenode.files":"{}","storenode.before":"","storenode.hours":"%s"}}'
LINES = VALUES.map(json.dumps).map(str.encode) | st.binary(max_size=6)


@given(st.lists(LINES, max_size=3))
@example([b'{"commitInfo": []}'])
@example([HOURS % b"[[1e999]]"])
@example([HOURS % b"[[0, 9e99, 0, 0, 0, 0]]"])
def test_whatever_a_copy_holds_it_is_read_or_named(lines: list[bytes]) -> None:
    found = Manifest("manifest")
    found.add(f"{0:020}.json", b"\n".join(lines))
    assert (found.version, len(found.days)) == (0, 1)
    assert found.broken == [f"{0:020}.json is no commit of an archive"]


@pytest.mark.parametrize("damage", ["removed", "emptied"])
def test_no_archive_is_begun_over_the_files_of_a_lost_log(
    lake: DeltaArchive, log: Path, damage: str
) -> None:
    shutil.rmtree(log)
    if damage == "emptied":
        log.mkdir()
    for begin in (lake.open_for_writing, lake.require_usable, lake.open):
        with pytest.raises(PipelineError, match=r"1 Parquet files, but the log .* is missing"):
            begin()
    assert Path(lake.messages, FILE.path).read_bytes() == b"PAR1"
    assert list(log.glob("*")) == []


def test_the_sentence_on_a_damaged_log_has_no_backtrace(lake: DeltaArchive, log: Path) -> None:
    publish(lake, [FILE])
    publish(lake, [], FILE)
    commit = log / f"{1:020}.json"
    for damage in (lambda: commit.write_bytes(commit.read_bytes()[:50]), commit.unlink):
        damage()
        with pytest.raises(PipelineError, match="`storenode pipeline repair` restores") as caught:
            DeltaArchive(lake.path).open()
        assert len(caught.value.sentence) < 300, caught.value.sentence


def test_a_removed_table_is_distinguished_from_a_missing_archive(lake: DeltaArchive) -> None:
    shutil.rmtree(lake.messages)
    with pytest.raises(PipelineError, match="has a manifest, but the table"):
        lake.open()
    with pytest.raises(PipelineError, match="The log is gone"):
        lake.open_for_writing()


def test_only_directories_with_many_small_files_are_crowded(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [named(number, 2)._replace(size_bytes=2**30) for number in range(100, 110)]
    publish(lake, [*(named(number, 1) for number in range(8)), named(8, 2), *large])
    assert [each.day for each in lake.crowded()] == [DAY - 3] * 8
    publish(lake, [named(number, 3) for number in range(20, 32)])
    assert [len(lake.files({each})) for each in (DAY - 3, DAY - 1)] == [8, 12]
    assert len(lake.crowded()) == 20
    monkeypatch.setattr(delta, "COMPACT_FILES_AT_ONCE", 8)
    assert {each.day for each in lake.crowded()} == {DAY - 3}


def test_an_archive_may_hold_some_of_the_commits_after_the_one_that_it_names() -> None:
    one, two = Fingerprint(1, 1, 0, 0, 0), Fingerprint(1, 2, 0, 0, -1)
    first, both = (struct.pack("<12q", 0, *two, hour, *one) for hour in (-HOUR_NS, HOUR_NS))
    now = {0: one.joined(two).joined(two), HOUR_NS: one}
    gone = {HOUR_NS: Fingerprint(0, 0, 0, 0, 0)}
    for stored, missing in ((one, 3), (one.joined(two), 2), (now[0], 1)):
        assert as_of(now, [both, first], {0: stored}) == ({0: stored, **gone}, missing)
    assert as_of({0: one.joined(two)}, [first], {0: two}) == ({0: one}, 1)
