"""ArchiveJob writes each message once despite kills, late arrivals and concurrent jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline import archive as archiving
from store.pipeline import delta
from store.pipeline.archive import ArchiveJob, ArchiveReport, archive
from store.pipeline.database import connected, lock_archiving
from store.pipeline.delta import DeltaArchive, read_manifest
from store.pipeline.diff import diff
from store.pipeline.errors import PipelineError
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.restore import RestoreJob, restore
from store.pipeline.verify import VerifyJob, verify
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    asked,
    held,
    hours_of,
    in_lake,
    marks,
    messages,
    more,
    plain,
    published,
    rows,
)
from tests.support.spark import wait_for


class Killed(BaseException):
    """A death in the middle: nothing of the job's own runs afterwards."""


def run(spark: SparkSession, url: str, lake: Path, **options: object) -> ArchiveReport:
    return archive(spark, ArchiveJob(url, DeltaArchive(str(lake)), **options))  # type: ignore[arg-type]


def assert_complete(url: str, lake: Path) -> None:
    """Assert that archive and database have the same messages and every hour is marked."""
    assert in_lake(lake) == sorted(held(url))
    assert set(marks(url)) == hours_of(held(url))


def test_an_archive_holds_every_message_once(url: str, archived: Path) -> None:
    assert in_lake(archived) == sorted(held(url))
    xor = asked(archived, "select bit_xor(h0), bit_xor(h1), bit_xor(h2), bit_xor(h3) from lake")
    marks(url)  # folds
    days = "select bit_xor(x0), bit_xor(x1), bit_xor(x2), bit_xor(x3) from storenode.buckets"
    assert xor == rows(url, f"{days} where level = 2")
    places = asked(
        archived, "select distinct shard, pubsub_topic, epoch_ns(day)::bigint - ts from lake"
    )
    assert all(-DAY < behind <= 0 for _, _, behind in places)
    assert {(shard, topic) for shard, topic, _ in places} >= {
        (0, "/waku/2/rs/1/0"),
        (1, "/waku/2/rs/1/1"),
        (7, "/waku/2/rs/1/7"),
        (63, "/waku/2/rs/65535/65535"),
        (-1, "named"),
    }


def test_an_archive_recomputed_row_by_row_by_duckdb_is_what_its_commits_record(
    archived: Path,
) -> None:
    """Recompute hashes, hours, directories and files in DuckDB, without code of the job."""
    found = asked(
        archived,
        """
        select sha256(encode(pubsub_topic) || payload || encode(content_topic)
                   || coalesce(meta, ''::blob) || unhex(lpad(hex(ts), 16, '0'))), hash,
               epoch_ns(day::timestamp) = ts // 86_400_000_000_000 * 86_400_000_000_000,
               ts // 3_600_000_000_000 * 3_600_000_000_000, h0, h1, h2, h3
        from lake
        """,
    )
    assert len(found) == len(messages())
    for computed, digest, is_placed, _, *words in found:
        assert (computed, is_placed) == (digest.hex(), True)
        assert digest == b"".join(word.to_bytes(8, "little", signed=True) for word in words)
    hours: dict[int, list[int]] = {}
    for _, _, _, hour, *words in found:
        sums = hours.setdefault(hour, [0, 0, 0, 0, 0])
        hours[hour] = [sums[0] + 1, *(x ^ h for x, h in zip(sums[1:], words, strict=True))]
    recorded = read_manifest(str(archived / "manifest"))
    assert {hour: list(each) for hour, each in recorded.required.items()} == hours
    files = {str(Path(each).relative_to(archived / "messages")): Path(each) for each in
             published(archived)}  # fmt: skip
    assert {path: each.digest for path, each in recorded.files.items()} == {
        path: sha256(file.read_bytes()).hexdigest() for path, file in files.items()
    }


def test_a_second_run_has_nothing_to_do(spark: SparkSession, url: str, lake_path: Path) -> None:
    files = published(lake_path)
    first = run(spark, url, lake_path)
    assert (first.messages, first.hours_marked_before, first.hours_marked) == (
        0,
        0,
        len(hours_of(held(url))),
    )
    second = run(spark, url, lake_path)
    assert (second.messages, second.hours_marked, second.hours_marked_before) == (
        0,
        0,
        first.hours_marked,
    )
    assert published(lake_path) == files
    assert second.sound
    assert_complete(url, lake_path)


def test_a_dry_run_writes_nothing(spark: SparkSession, url: str, tmp_path: Path) -> None:
    report = run(spark, url, tmp_path / "lake", dry_run=True)
    assert report.messages_to_do == len(messages())
    assert not (tmp_path / "lake").exists()
    assert marks(url) == {}


def test_late_arrivals_come_after_and_take_marks_away(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    run(spark, url, lake_path)
    more(url, plain(90_001, TODAY - DAY + 5), plain(90_002, TODAY - 40 * DAY), plain(3, NOW - 1))
    assert run(spark, url, lake_path, dry_run=True).messages_to_do == 3
    result = run(spark, url, lake_path)
    assert result.messages == 3
    assert result.hours_marked == 3
    assert in_lake(lake_path) == sorted(held(url))


def test_a_range_of_time_is_all_that_is_archived(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    low, high = TODAY - DAY + HOUR // 2, TODAY - DAY + 5 * HOUR
    lake = tmp_path / "lake"
    result = run(spark, url, lake, low_ns=low, high_ns=high)
    wanted = sorted(each for each in held(url) if low <= each[0] < high)
    assert in_lake(lake) == wanted
    assert result.messages == len(wanted)
    # Of the first hour a half is missing.
    assert result.hours_marked == 4
    assert result.sound


@pytest.mark.parametrize(
    "step",
    [
        (archiving, "write_files"),
        (archiving, "read_back"),
        (DeltaArchive, "commit"),
        (delta.Manifest, "append"),
        (archiving, "mark_archived"),
    ],
    ids=lambda step: step[1],
)
def test_a_job_that_is_killed_leaves_the_last_good_state(
    spark: SparkSession,
    url: str,
    lake_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[object, str],
) -> None:
    owner, place = step
    before = in_lake(lake_path)
    more(url, *(plain(90_000 + number, TODAY - DAY + number) for number in range(20)))

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, die)
        with pytest.raises(Killed):
            run(spark, url, lake_path)
    published_already = place in {"append", "mark_archived"}
    assert in_lake(lake_path) == (sorted(held(url)) if published_already else before)
    assert marks(url) == {}
    result = run(spark, url, lake_path)
    assert result.messages == (0 if published_already else 20)
    with connected(url):
        assert in_lake(lake_path) == sorted(held(url))
    assert result.hours_marked == len(hours_of(held(url)))


DYING = """
import os, signal, sys
from store.pipeline import source
from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.delta import DeltaArchive
from store.pipeline.spark import spark_session
from tests.integration.pipeline.conftest import QUICK_START

source.MIN_STEP_MESSAGES = 100
commit, committed = DeltaArchive.commit, []

def commit_or_die(archive, added, *rest, **more):
    if sum(committed) >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    commit(archive, added, *rest, **more)
    committed.extend(each.rows for each in added)

DeltaArchive.commit = commit_or_die
with spark_session("local[2]", QUICK_START) as session:
    archive(session, ArchiveJob(sys.argv[1], DeltaArchive(sys.argv[2])))
"""


@pytest.mark.parametrize("share", [10, 50, 90])
def test_a_first_archive_that_is_killed_repeats_only_what_was_not_committed(
    url: str, tmp_path: Path, spark: SparkSession, share: int
) -> None:
    lake = tmp_path / "lake"
    late = str(len(messages()) * share // 100)
    process = subprocess.run([sys.executable, "-c", DYING, url, str(lake), late], check=False)
    assert process.returncode == -signal.SIGKILL
    wait_for(lambda: not locked(url), "the lock is gone")
    stayed = in_lake(lake)
    assert marks(url) == {}
    result = run(spark, url, lake)
    assert len(stayed) + result.messages == len(messages())
    assert 0 < result.messages <= len(messages()) * (100 - share) // 100
    assert_complete(url, lake)
    assert verify(spark, VerifyJob(DeltaArchive(str(lake)), url)).sound


def locked(url: str) -> bool:
    return bool(
        rows(
            url,
            "select 1 from pg_locks l join pg_database d on d.oid = l.database"
            " where l.locktype = 'advisory' and d.datname = current_database()",
        )
    )


def test_two_jobs_at_once_are_one_too_many(spark: SparkSession, url: str, lake_path: Path) -> None:
    with connected(url) as connection:
        lock_archiving(connection)
        with pytest.raises(PipelineError, match="Another job is archiving this database"):
            run(spark, url, lake_path)


def test_a_job_for_another_database_does_not_publish_over_this_one(
    spark: SparkSession, url: str, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that two databases with one archive do not store a common message twice."""
    more(url, plain(90_001, NOW - 7))
    read_back = archiving.read_back

    def meanwhile(*given: object) -> object:
        monkeypatch.undo()
        run(spark, url, lake_path)
        return read_back(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(archiving, "read_back", meanwhile)
    monkeypatch.setattr(archiving, "lock_archiving", lambda _connection: None)
    with pytest.raises(PipelineError, match="Another job has written to the archive"):
        run(spark, url, lake_path)
    assert in_lake(lake_path) == sorted(held(url))


def test_an_archive_elsewhere_takes_no_part_in_retention_without_mark_here(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    low = TODAY - DAY
    run(spark, url, lake_path, low_ns=low)
    before = marks(url)
    copy = tmp_path / "copy"
    result = run(spark, url, copy, high_ns=low)
    assert (result.sound, result.marked_archive, result.hours_marked) == (False, str(lake_path), 0)
    assert (result.messages > 0, marks(url)) == (True, before)
    assert f"the marks of the database name {lake_path}" in " ".join(result.lines())
    result = run(spark, url, copy, high_ns=low, mark_here=True)
    assert (result.sound, result.messages) == (True, 0)
    assert set(marks(url)) == hours_of(held(url))
    assert run(spark, url, copy, high_ns=low).sound
    assert run(spark, url, lake_path).sound


def test_a_moved_archive_takes_over_the_marks_that_it_bears_out(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    run(spark, url, lake_path)
    wanted = set(marks(url))  # folds
    moved = lake_path.rename(tmp_path / "moved")
    dropped, lost = sorted(wanted)[1:3]
    rows(url, "delete from storenode.messages where ts >= %s and ts < %s", dropped, lost + HOUR)
    rows(
        url, "delete from storenode.buckets where start_ns in (%s, %s) and level < 2", dropped, lost
    )
    DeltaTable(moved / "messages").delete(f"ts >= {lost} and ts < {lost + HOUR}")
    result = run(spark, url, moved, mark_here=True)
    assert (result.marks_taken_over, result.marks_left_elsewhere, result.hours_damaged) == (
        len(wanted) - 1,
        1,
        [],
    )
    named = rows(url, "select start_ns, archive from storenode.archived")
    assert {hour for hour, path in named if path == str(moved)} == wanted - {lost}
    again = run(spark, url, moved, mark_here=True)
    assert (again.marks_taken_over, again.marks_left_elsewhere) == (0, 1)


@pytest.mark.parametrize("mark_here", [False, True])
def test_an_hour_of_which_a_file_was_lost_is_not_marked(
    spark: SparkSession, url: str, lake_path: Path, *, mark_here: bool
) -> None:
    """Remove a row of a file whose hours were recorded when it was written."""
    file = Path(max(published(lake_path), key=lambda each: Path(each).stat().st_size))
    content = pq.ParquetFile(file).read()
    pq.write_table(content.slice(1), file)
    hour = content["ts"][0].as_py() // HOUR * HOUR
    result = run(spark, url, lake_path, mark_here=mark_here)
    assert (result.hours_damaged, result.sound) == ([hour], False)
    assert set(marks(url)) == hours_of(held(url)) - {hour}
    file.unlink()
    with pytest.raises(PipelineError, match="could not be read"):
        run(spark, url, lake_path, mark_here=mark_here)
    assert set(marks(url)) == hours_of(held(url)) - {hour}


def test_only_files_that_a_commit_removed_are_deleted_and_only_after_a_week(
    spark: SparkSession, url: str, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep files that no commit names: they may belong to commits that the log has lost."""
    monkeypatch.setattr(delta, "COMPACT_AT_FILES", 2)
    before = set(published(lake_path))
    more(url, plain(90_000, TODAY - DAY + 1))
    assert run(spark, url, lake_path).compacted_files >= 2
    assert len(published(lake_path)) <= len(before)
    assert_complete(url, lake_path)
    gone = [Path(each) for each in before - set(published(lake_path))]
    unknown = lake_path / "messages" / "day=2020-01-01" / "shard=0" / "part-unknown.parquet"
    unknown.parent.mkdir(parents=True)
    unknown.write_bytes(b"half a file")
    week_ago_s = time.time() - (VACUUM_AFTER_HOURS + 1) * 3_600
    os.utime(unknown, (week_ago_s, week_ago_s))
    assert (run(spark, url, lake_path).removed_files, all(each.exists() for each in gone)) == (
        0,
        True,
    )
    monkeypatch.setattr(delta, "VACUUM_AFTER_HOURS", 0)
    with_the_new_one = len(gone) + 1
    assert run(spark, url, lake_path).removed_files == with_the_new_one
    assert (unknown.exists(), any(each.exists() for each in gone)) == (True, False)
    notes = verify(spark, VerifyJob(DeltaArchive(str(lake_path)))).notes
    assert any(note.startswith("1 files below ") for note in notes)
    assert in_lake(lake_path) == sorted(held(url))


def test_messages_that_the_database_lost_keep_their_hour_unmarked(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    """Simulate the promotion of a lagging standby: only the archive has the messages it lacks."""
    before = in_lake(lake_path)
    other = sorted(held(url))[40]
    rows(url, "delete from storenode.messages where hash = %s", other[1])
    rows(url, "delete from storenode.archived")
    # The summaries are made as the promoted server has them.
    rows(
        url,
        "update storenode.commits set summary = summary || %s where position = 1",
        bytes_of_removal(other),
    )
    result = run(spark, url, lake_path)
    assert result.hours_differing == [other[0] // HOUR * HOUR]
    assert not result.sound
    assert "the archive has messages of it that the database lacks" in " ".join(result.lines())
    assert in_lake(lake_path) == before


def bytes_of_removal(message: tuple[int, bytes]) -> bytes:
    minute = message[0] // (HOUR // 60) * (HOUR // 60)
    return minute.to_bytes(8, "little") + (-1).to_bytes(8, "little", signed=True) + message[1]


def test_a_path_may_look_like_a_pattern(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """Use two directories of which one, read as a pattern, matches the other."""
    lake, other = tmp_path / "{a,b} l*ke?" / "day=3#", tmp_path / "a lake1" / "day=3#"
    run(spark, url, lake)
    more(url, *(plain(90_000 + number, TODAY - DAY + number) for number in range(9)))
    assert run(spark, url, other).messages == len(held(url))
    output = tmp_path / "o{u}t*"
    sides = [ArchiveMessages(spark, DeltaArchive(str(each))) for each in (lake, other)]
    found = diff(spark, *sides, output=str(output))
    assert (found.first_lacks, found.second_lacks) == (9, 0)
    with pytest.raises(PipelineError, match="exists already"):
        diff(spark, *sides, output=str(output))
    assert restore(spark, RestoreJob(DeltaArchive(str(other)), url, diff=str(output))).messages == 9
    assert run(spark, url, lake).messages == 9
    result = verify(spark, VerifyJob(DeltaArchive(str(lake)), url))
    assert (result.sound, result.messages) == (True, len(held(url)))
