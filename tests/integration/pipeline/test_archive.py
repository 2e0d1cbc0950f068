"""ArchiveJob writes each message once despite kills, late arrivals and concurrent jobs."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.db.locks import ARCHIVING
from store.pipeline import archive as archiving
from store.pipeline import delta, parquet, source
from store.pipeline.archive import ArchiveJob, forecast
from store.pipeline.database import DatabaseState, connected, lock, read_state
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.manifest import read_manifest
from tests.integration.pipeline.test_restore import pruned
from tests.integration.pipeline.test_verify import changed, rewrite
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    archived_from,
    asked,
    hours_of,
    in_lake,
    marks,
    messages,
    more,
    plain,
    published,
    rows,
    stored_ids,
    verified,
)
from tests.integration.storage.followers import LongTransaction
from tests.integration.storage.node import running
from tests.integration.storage.world import random_batch


class Killed(BaseException):
    """A death in the middle: nothing of the job's own runs afterwards."""


def die(*_: object, **__: object) -> None:
    raise Killed


def to_do(
    url: str,
    lake: Path,
    **options: Any,  # noqa: ANN401
) -> int:
    return forecast(ArchiveJob(url, DeltaArchive(str(lake)), **options)).messages_to_do


def assert_complete(url: str, lake: Path) -> None:
    """Assert that archive and database have the same messages and every hour is marked."""
    assert in_lake(lake) == sorted(stored_ids(url))
    assert set(marks(url)) == hours_of(stored_ids(url))


def test_an_archive_recomputed_row_by_row_by_duckdb_is_what_its_commits_record(
    url: str, archived: Path
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
    files = {path: archived / "messages" / path for path in recorded.files}
    assert sorted(map(str, files.values())) == sorted(published(archived))
    for path, file in files.items():
        assert recorded.files[path] == sha256(file.read_bytes()).hexdigest()
    assert in_lake(archived) == sorted(stored_ids(url))
    assert set(asked(archived, "select distinct shard, pubsub_topic from lake")) >= {
        (0, "/waku/2/rs/1/0"),
        (1, "/waku/2/rs/1/1"),
        (7, "/waku/2/rs/1/7"),
        (63, "/waku/2/rs/65535/65535"),
        (-1, "named"),
    }


def test_a_second_run_has_nothing_to_do_but_what_came_late(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    files, hours = published(lake_path), len(hours_of(stored_ids(url)))
    assert (to_do(url, tmp_path / "new"), marks(url)) == (len(messages()), {})
    assert not (tmp_path / "new").exists()
    first = archived_from(spark, url, lake_path)
    assert (first.messages, first.hours_marked_before, first.hours_marked) == (0, 0, hours)
    second = archived_from(spark, url, lake_path)
    assert (second.messages, second.hours_marked_before, second.hours_marked) == (0, hours, 0)
    assert (second.sound, published(lake_path)) == (True, files)
    assert_complete(url, lake_path)
    more(url, plain(90_001, TODAY - DAY + 5), plain(90_002, TODAY - 40 * DAY), plain(3, NOW - 1))
    assert to_do(url, lake_path) == 3
    third = archived_from(spark, url, lake_path)
    assert (third.messages, third.hours_marked) == (3, 3)
    assert in_lake(lake_path) == sorted(stored_ids(url))
    assert verified(spark, lake_path, url=url).sound


def test_a_range_of_time_is_all_that_is_archived(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    low, high = TODAY - DAY + HOUR // 2, TODAY - DAY + 5 * HOUR
    lake, within = tmp_path / "lake", {"low_ns": low, "high_ns": high}
    wanted = sorted(each for each in stored_ids(url) if low <= each[0] < high)
    assert to_do(url, lake, **within) >= len(wanted)
    result = archived_from(spark, url, lake, **within)
    assert in_lake(lake) == wanted
    # Of the first hour a half is missing.
    assert (result.messages, result.hours_marked, result.sound) == (len(wanted), 4, True)
    assert to_do(url, lake) == len(stored_ids(url)) - len(wanted)


def test_a_job_that_is_killed_at_any_step_leaves_the_last_good_state(
    spark: SparkSession, url: str, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        (parquet, "write_files", False),
        (archiving, "read_back", False),
        (DeltaArchive, "commit", False),
        (delta, "write_copy", True),
        (archiving, "mark_archived", True),
    ]
    for number, (owner, name, is_published) in enumerate(steps):
        before = in_lake(lake_path)
        more(url, *(plain(90_000 + number, TODAY - DAY + 10 * number + at) for at in range(4)))
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            with pytest.raises(Killed):
                archived_from(spark, url, lake_path)
        assert in_lake(lake_path) == (sorted(stored_ids(url)) if is_published else before), name
        assert marks(url) == {}
    # In several commits, the second of which does not come.
    before, commits = in_lake(lake_path), iter([DeltaArchive.commit])
    more(url, *(plain(91_000 + at, TODAY - DAY + at % 3 * HOUR + at) for at in range(60)))
    with monkeypatch.context() as patch:
        patch.setattr(source, "MIN_STEP_MESSAGES", 20)
        patch.setattr(DeltaArchive, "commit", property(lambda it: partial(next(commits, die), it)))
        with pytest.raises(Killed):
            archived_from(spark, url, lake_path)
    stayed = in_lake(lake_path)
    assert len(before) < len(stayed) < len(before) + 60
    written = {str(each) for each in lake_path.rglob("part-*.parquet")}
    assert written > set(published(lake_path)), "nothing is tidied up, as after SIGKILL"
    assert marks(url) == {}
    result, ids = archived_from(spark, url, lake_path), stored_ids(url)
    assert (result.messages, result.hours_marked) == (len(ids) - len(stayed), len(hours_of(ids)))
    assert_complete(url, lake_path)
    assert verified(spark, lake_path, url=url).sound


def test_a_transaction_that_begins_first_and_commits_last_is_archived_once(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    with connected(url) as connection:
        lock(connection, ARCHIVING, "archiving this database")
        with pytest.raises(PipelineError, match="Another job is archiving this database"):
            archived_from(spark, url, lake_path)
    asyncio.run(late_transaction(url))
    assert archived_from(spark, url, lake_path).messages == 13
    assert_complete(url, lake_path)


async def late_transaction(url: str) -> None:
    """Store messages in a transaction that begins first and commits last."""
    rng = random.Random(20261122)
    async with running(url) as node:
        slow = LongTransaction(node)
        await slow.open([random_batch(rng, 5, [TODAY - DAY])])
        await node.store(random_batch(rng, 8, [TODAY - DAY]))
        await slow.commit()


def test_a_job_for_another_database_does_not_publish_over_this_one(
    spark: SparkSession, url: str, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that two databases with one archive do not store a common message twice."""
    more(url, plain(90_001, NOW - 7))
    read_back = archiving.read_back

    def meanwhile(*given: object) -> object:
        monkeypatch.undo()
        archived_from(spark, url, lake_path)
        return read_back(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(archiving, "read_back", meanwhile)
    monkeypatch.setattr(archiving, "lock", lambda *_: None)
    with pytest.raises(PipelineError, match="Another job has written to the archive"):
        archived_from(spark, url, lake_path)
    assert in_lake(lake_path) == sorted(stored_ids(url))


def test_an_archive_elsewhere_takes_no_part_in_retention_without_mark_here(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    """Archive to another path, then damage files of it, and then mark its hours."""
    archived_from(spark, url, lake_path)
    low, before, copy = TODAY - DAY, marks(url), tmp_path / "copy"
    result = archived_from(spark, url, copy, high_ns=low)
    assert (result.sound, result.marked_archive, result.hours_marked) == (False, str(lake_path), 0)
    assert (result.messages > 0, marks(url)) == (True, before)
    assert f"the marks of the database name {lake_path}" in " ".join(result.lines())
    file, other = sorted(map(Path, published(copy)), key=lambda each: each.stat().st_size)[-2:]
    damaged = sorted({without_first_row(each) for each in (file, other)})
    result = archived_from(spark, url, copy, high_ns=low, mark_here=True)
    assert (result.sound, result.messages, result.hours_damaged) == (False, 0, damaged)
    assert marks(url) == before
    named = rows(url, "select start_ns, archive from storenode.archived")
    mine = {hour for hour, path in named if path == str(copy)}
    assert mine == {hour for hour in before if hour + HOUR <= low} - set(damaged)
    assert archived_from(spark, url, lake_path).sound
    other.unlink()
    with pytest.raises(PipelineError, match="could not be read"):
        archived_from(spark, url, copy, high_ns=low, mark_here=True)
    assert rows(url, "select start_ns, archive from storenode.archived") == named


def without_first_row(file: Path) -> int:
    """Remove the first row of a file, and return its hour."""
    content = pq.ParquetFile(file).read()
    pq.write_table(content.slice(1), file)
    start: int = content["ts"][0].as_py() // HOUR * HOUR
    return start


def test_only_files_that_a_commit_removed_are_deleted_and_only_after_a_week(
    spark: SparkSession, url: str, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep files that no commit names: they may belong to commits that the log has lost."""
    monkeypatch.setattr(delta, "COMPACT_AT_FILES", 2)
    before = set(published(lake_path))
    more(url, plain(90_000, TODAY - DAY + 1))
    contents = {Path(each): Path(each).read_bytes() for each in before}
    for file in contents:
        rewrite(file, lambda rows: changed(rows, {"version": 7}))
    with pytest.raises(PipelineError, match="Nothing was restored or compacted"):
        archived_from(spark, url, lake_path)
    for file, content in contents.items():
        file.write_bytes(content)
    assert archived_from(spark, url, lake_path).compacted_files >= 2
    assert len(published(lake_path)) <= len(before)
    assert_complete(url, lake_path)
    gone = [Path(each) for each in before - set(published(lake_path))]
    unknown = lake_path / "messages" / "day=2020-01-01" / "shard=0" / "part-unknown.parquet"
    unknown.parent.mkdir(parents=True)
    unknown.write_bytes(b"half a file")
    week_ago_s = time.time() - (VACUUM_AFTER_HOURS + 1) * 3_600
    os.utime(unknown, (week_ago_s, week_ago_s))
    assert DeltaArchive(str(lake_path)).open().vacuum() == 0
    assert all(each.exists() for each in gone)
    monkeypatch.setattr(delta, "VACUUM_AFTER_HOURS", 0)
    assert archived_from(spark, url, lake_path).removed_files == len(gone) + 1  # the new one
    assert (unknown.exists(), any(each.exists() for each in gone)) == (True, False)
    notes = verified(spark, lake_path).notes
    assert any(note.startswith("1 files below ") for note in notes)


def test_an_hour_that_retention_drops_meanwhile_is_named(
    spark: SparkSession, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = hours_of(stored_ids(url))

    def state_before(*given: Any) -> DatabaseState:  # noqa: ANN401
        monkeypatch.undo()
        state = read_state(*given)
        asyncio.run(pruned(url, 1, requires_archive=False))
        return state

    monkeypatch.setattr(archiving, "read_state", state_before)
    result = archived_from(spark, url, tmp_path / "lake")
    assert result.hours_dropped == sorted(hours - hours_of(stored_ids(url))) != []
    assert (result.hours_differing, result.sound) == ([], False)
    assert "was dropped from the database before all of it" in " ".join(result.lines())
    assert_complete(url, tmp_path / "lake")


def test_messages_that_the_database_lost_keep_their_hour_unmarked(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    """Simulate the promotion of a lagging standby: only the archive has the messages it lacks."""
    before = in_lake(lake_path)
    ts, digest = sorted(stored_ids(url))[40]
    rows(url, "delete from storenode.messages where hash = %s", digest)
    # The summaries are made as the promoted server has them.
    minute = ts // (HOUR // 60) * (HOUR // 60)
    removal = minute.to_bytes(8, "little") + (-1).to_bytes(8, "little", signed=True) + digest
    rows(url, "update storenode.commits set summary = summary || %s where position = 1", removal)
    result = archived_from(spark, url, lake_path)
    assert (result.hours_differing, result.sound) == ([ts // HOUR * HOUR], False)
    assert "the archive has messages of it that the database lacks" in " ".join(result.lines())
    assert in_lake(lake_path) == before
