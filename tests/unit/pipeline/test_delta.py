"""An archive's table without Spark: its commits survive a loss of power, a kill and a lost log."""

from __future__ import annotations

import errno
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.pipeline import delta, files
from store.pipeline.delta import (
    CommitMetadata,
    DataFile,
    DeltaArchive,
    Manifest,
    WrittenFile,
    read_commits,
    read_manifest,
)
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import Fingerprint
from store.pipeline.limits import HOUR_NS
from store.pipeline.repair import require_manifest
from store.pipeline.verify import catch_up

DAY = 20_000
FILE = WrittenFile("day=2024-10-04/shard=0/part-1.parquet", 4, 1, 5, 5, "0" * 64)


@pytest.fixture
def lake(tmp_path: Path) -> DeltaArchive:
    """Create an archive with a file that is not published yet."""
    found = DeltaArchive(str(tmp_path / "archive")).open_for_writing()
    file = tmp_path / "archive" / "messages" / FILE.path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1")
    return found


@pytest.fixture
def log(lake: DeltaArchive) -> Path:
    return Path(lake.messages, "_delta_log")


@pytest.fixture
def manifest(lake: DeltaArchive) -> Path:
    return Path(lake.path, "manifest")


def publish(archive: DeltaArchive, added: list[WrittenFile], *removed: DataFile) -> None:
    digests = {each.path: each.digest for each in added}
    archive.commit(added, removed, CommitMetadata(digests), is_new=not removed)


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.glob("*.json")}


def test_a_commit_and_its_copy_are_on_the_disk_when_it_is_done(
    lake: DeltaArchive, log: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "_sync", synced.append)
    publish(lake, [FILE])
    folders = [log, log.parent, log.parent.parent, manifest.parent.parent]
    assert synced[:5] == [log / f"{1:020}.json", *folders]
    assert synced[6:] == [manifest / f"{1:020}.json", manifest, *folders[2:]]
    assert [each.rows for each in lake.files()] == [FILE.rows]
    assert contents(manifest) == contents(log)


@pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL])
def test_a_failed_sync_is_reported_unless_the_file_system_has_none_for_folders(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def sync(place: Path) -> None:
        if error == errno.EIO or place.is_dir():
            raise OSError(error, "Input/output error", str(place))

    monkeypatch.setattr(files, "_sync", sync)
    if error == errno.EIO:
        with pytest.raises(PipelineError, match=r"be read or written \(.*Input/output error"):
            publish(lake, [FILE])
    else:
        publish(lake, [FILE])
        assert len(lake.files()) == 1


def test_the_commits_are_a_chain_that_names_files_and_hours(lake: DeltaArchive) -> None:
    hour = Fingerprint(1, 2, 3, 4, 5)
    lake.commit([FILE], (), CommitMetadata({FILE.path: FILE.digest}, {0: hour}, "me", 7))
    lake.commit([], lake.files(), CommitMetadata(hours=None))
    found = read_manifest(f"{lake.path}/manifest")
    assert (found.version, found.broken, found.foreign) == (2, [], [])
    assert (found.files, found.removed) == ({}, {FILE.path})
    assert (found.required, found.unknown_days) == ({0: hour}, {DAY})
    assert (found.positions, lake.log_faults(found)) == ({"me": 7}, [])


def test_days_that_changed_are_known_until_messages_are_removed(
    lake: DeltaArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "require_visible", lambda *_: None)
    commits = [lake.commit_digest]
    publish(lake, [FILE])
    commits.append(lake.commit_digest)
    publish(lake, [named(3, 4)], *lake.files())
    publish(lake, [named(2, 5)])
    assert [lake.changed_since(each) for each in commits] == [{DAY, DAY + 1}] * 2
    assert lake.changed_since(lake.commit_digest) == set()
    assert lake.changed_since("0" * 64) is None
    other = DeltaArchive(lake.path).open()
    lake.commit([], lake.files(), CommitMetadata())
    assert [lake.changed_since(each) for each in commits] == [None, None]
    assert other.manifest.version > other.version
    assert other.changed_since(commits[0]) is None, "it has another state than its copies"
    assert other.commit_digest == other.manifest.digests[other.version]


@pytest.mark.parametrize("removed", [0, 1, None])
def test_a_copy_that_is_gone_or_altered_breaks_the_chain(
    lake: DeltaArchive, manifest: Path, removed: int | None
) -> None:
    publish(lake, [FILE])
    names = sorted(contents(manifest)) if removed is None else [f"{removed:020}.json"]
    if removed is not None:
        copy = manifest / names[0]
        copy.write_bytes(copy.read_bytes().replace(b"storenode", b"Storenode"))
        found = read_manifest(str(manifest))
        assert found.broken or lake.log_faults(found)
        copy.write_bytes(b"{")
        assert read_manifest(str(manifest)).broken == [f"{names[0]} cannot be read"]
    for name in names:
        (manifest / name).unlink()
    again = DeltaArchive(lake.path).open()
    if removed == 1:  # a job was killed before it had copied its commit
        assert again.log_faults(again.manifest) == []
        again.open_for_writing()
        assert contents(manifest).keys() == {f"{0:020}.json", f"{1:020}.json"}
        return
    assert again.manifest.broken or again.log_faults(again.manifest)
    with pytest.raises(PipelineError, match=r"is damaged.*--new-manifest"):
        again.open_for_writing()


def test_many_copies_become_one_file_that_is_read_as_they_were(
    lake: DeltaArchive, log: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "ROLL_AT", 3)
    monkeypatch.setattr(delta, "KEPT_SINGLE", 2)
    for number in range(9):
        lake.commit([], (), CommitMetadata(store_id="me", position=number))
        before = list(read_commits(str(manifest)))
        lake.manifest.roll()
        assert list(read_commits(str(manifest))) == before
    found = read_manifest(str(manifest))
    assert (found.version, found.broken, found.positions) == (9, [], {"me": 8})
    names = sorted(each.name for each in manifest.iterdir())
    assert (names[0], len(names) < 10) == (f"{0:020}-{2:020}.jsonl", True)
    whole = contents(log)
    shutil.rmtree(log)
    assert lake.restore_log(found) is None
    assert contents(log) == whole
    lines = (manifest / names[0]).read_bytes().splitlines(keepends=True)
    (manifest / names[0]).write_bytes(b"".join(lines[:-1]))
    assert read_manifest(str(manifest)).broken[0] == f"{2:020}.json cannot be read"


def test_copies_that_a_killed_job_has_rolled_and_not_deleted_are_not_rolled_again(
    lake: DeltaArchive, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "ROLL_AT", 3)
    monkeypatch.setattr(delta, "KEPT_SINGLE", 2)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for number in range(5):
        lake.commit([], (), CommitMetadata(store_id="me", position=number))
    for _ in range(2):
        before = list(read_commits(str(manifest)))
        with monkeypatch.context() as patch:
            patch.setattr(
                delta, "delete", lambda folder, names: die() if names else files.delete(folder, [])
            )
            with pytest.raises(KeyboardInterrupt):
                lake.manifest.roll()
        assert list(read_commits(str(manifest))) == before
        for number in range(4):
            lake.commit([], (), CommitMetadata(store_id="me", position=number))
    lake.manifest.roll()
    found = read_manifest(str(manifest))
    assert (found.version, found.broken) == (13, [])


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
LINES = VALUES.map(json.dumps).map(str.encode) | st.binary(max_size=6)


@given(st.lists(LINES, max_size=3))
@example([b'{"commitInfo": []}'])
@example([b'{"add": {"path": "x", "partitionValues": {"day": 0}}}', b'{"storenode.files": 1}'])
def test_whatever_a_copy_holds_it_is_read_or_named(lines: list[bytes]) -> None:
    found = Manifest("manifest")
    found.add(f"{0:020}.json", b"\n".join(lines))
    assert (found.version, len(found.days)) == (0, 1)
    assert set(found.broken) <= {
        f"{0:020}.json cannot be read",
        f"{0:020}.json does not follow the commit before it",
    }


def test_a_file_of_copies_with_a_boundless_name_is_damaged(lake: DeltaArchive) -> None:
    files.create(f"{lake.path}/manifest/{1:020}-{10**20 - 1}.jsonl", b"")
    assert read_manifest(f"{lake.path}/manifest").broken


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


def test_a_removed_table_is_distinguished_from_a_missing_archive(lake: DeltaArchive) -> None:
    shutil.rmtree(lake.messages)
    with pytest.raises(PipelineError, match="has a manifest, but the table"):
        lake.open()
    with pytest.raises(PipelineError, match="has lost commits"):
        lake.open_for_writing()
    shutil.rmtree(Path(lake.path, "manifest"))
    with pytest.raises(PipelineError, match="There is no archive in"):
        DeltaArchive(lake.path).open()
    with pytest.raises(PipelineError, match="There is no manifest in"):
        require_manifest(DeltaArchive(lake.path))


def named(number: int, day: int) -> WrittenFile:
    path = f"day=2024-10-{day:02}/shard=0/part-{number}.parquet"
    return FILE._replace(path=path)


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
        assert fresh.manifest.files.keys() == set(map(lake.within, lake.files()))
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
    assert [each.day for each in lake.crowded()] == [DAY - 3] * 8
    publish(lake, [named(number, 3) for number in range(20, 32)])
    assert [len(lake.files({each})) for each in (DAY - 3, DAY - 1)] == [8, 12]
    assert len(lake.crowded()) == 20
    monkeypatch.setattr(delta, "COMPACT_FILES_AT_ONCE", 8)
    assert {each.day for each in lake.crowded()} == {DAY - 3}


def test_an_archive_may_hold_some_of_the_commits_after_the_one_that_it_names() -> None:
    one, two = Fingerprint(1, 1, 0, 0, 0), Fingerprint(1, 2, 0, 0, 0)
    for stored, missing in ((one, 2), (one.joined(two), 1)):
        wanted = {0: one}
        later = [{0: two}, {0: two, HOUR_NS: one}]
        assert catch_up(wanted, later, {0: stored}) == missing
        assert wanted == {0: stored}
    wanted = {0: one}
    assert catch_up(wanted, [{0: two}], {0: two}) == 1
    assert wanted == {0: one}
