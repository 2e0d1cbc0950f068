"""RestoreJob: an archive gives back what retention dropped, and nodes that serve see it at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.db.check import check
from store.db.locks import COMMIT_ORDER
from store.db.retention import prune
from store.domain.retention import RetentionPolicy
from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import DiffReport, diff
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import DatabaseMessages
from store.pipeline.restore import RestoreJob, RestoreReport, restore
from store.pipeline.spark import TERMINATED
from storenode.client.messages import new_message
from tests.integration.database.rows import opened
from tests.integration.pipeline.conftest import QUICKLY
from tests.integration.pipeline.test_verify import by_size, rewrite, tampered
from tests.integration.pipeline.world import (
    DAY,
    NOW,
    TODAY,
    archived_from,
    in_lake,
    is_locked,
    messages_in,
    more,
    rows,
    stored_ids,
    verified,
)
from tests.support.command import Command
from tests.support.node import running_node
from tests.support.polling import until
from tests.support.spark import PATIENCE_S, wait_for


def run(spark: SparkSession, url: str, lake: Path, **options: object) -> RestoreReport:
    return restore(spark, RestoreJob(DeltaArchive(str(lake)), url, **options))  # type: ignore[arg-type]


def compared(spark: SparkSession, url: str, lake: Path, output: Path | None = None) -> DiffReport:
    return diff(
        spark,
        messages_in(spark, lake),
        DatabaseMessages(spark, url),
        output=None if output is None else str(output),
    )


async def pruned(url: str, days: int) -> list[str]:
    """Drop what is older, in as many rounds as a node that works beside it makes necessary."""
    policy = RetentionPolicy(age_ns=days * DAY, requires_archive=True)
    dropped: list[str] = []
    async with await opened(url) as connection:

        async def done() -> bool:
            report = await prune(connection, policy, NOW)
            dropped.extend(each.partition.name for each in report.dropped)
            assert all("a later round tries again" in each for each in report.problems)
            return not report.problems

        await until(done)
    return dropped


def test_what_retention_dropped_comes_back(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """Archive, verify, drop a part, compare, restore, compare again: nothing differs.

    Paths may look like patterns, and like directories of a table.
    """
    lake, everything = tmp_path / "{a,b} l*ke?" / "day=3#", stored_ids(url)
    archived_from(spark, url, lake)
    assert verified(spark, lake, url=url).sound
    with running_node(
        tmp_path / "node", "--retention", "off", "--gossip", "off", database_url=url
    ) as node:
        assert "messages_20261118" in asyncio.run(pruned(url, 1))
        lost = everything - stored_ids(url)
        assert len(lost) > len(everything) // 4
        output = tmp_path / "o{u}t*"
        follower = Command.of(node).start("follow", "--no-data", "--json", "--from-beginning")
        result = compared(spark, url, lake, output)
        assert (result.first_lacks, result.second_lacks) == (0, len(lost))
        dry = run(spark, url, lake, diff=str(output), dry_run=True)
        assert (dry.messages, stored_ids(url)) == (len(lost), everything - lost)
        restored = run(spark, url, lake, diff=str(output))
        assert (restored.messages, restored.new) == (len(lost), len(lost))
        assert compared(spark, url, lake).sound
        assert stored_ids(url) == everything
        assert_followed(follower, {digest.hex() for _, digest in lost})
        digest = sorted(lost)[7][1].hex()
        answer = Command.of(node).ok("query", "--hash", digest, "--json").out
        assert digest in answer
    # The server learns by and by that the node, which made partitions of its own time, has gone.
    wait_for(lambda: not is_locked(url), "the lock is gone")
    report = check(url, now_ns=lambda: NOW)
    assert report.findings == []
    assert report.full
    assert run(spark, url, lake).new == 0
    assert verified(spark, lake, url=url).sound


def assert_followed(follower: subprocess.Popen[bytes], hashes: set[str]) -> None:
    """Wait until a follower was given some messages; the test's own timeout is the deadline."""
    assert follower.stdout is not None
    try:
        while hashes:
            line = follower.stdout.readline()
            assert line, "the follower ended"
            hashes.discard(json.loads(line)["message_hash"])
    finally:
        follower.kill()
        follower.communicate()


def test_a_message_whose_hash_another_one_has_is_reported_and_not_restored(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    lake, url, other = tmp_path / "lake", new_database(), new_database()
    more(url, new_message(b"ab", "c/1/x/proto", "/waku/2/rs/1/0", NOW - DAY))
    archived_from(spark, url, lake)
    more(other, new_message(b"a", "bc/1/x/proto", "/waku/2/rs/1/0", NOW - DAY))
    report = run(spark, other, lake)
    assert (report.messages, report.new, report.conflicts, report.sound) == (1, 0, 1, False)
    assert "0 were there" in report.lines()[0]


def test_nothing_of_a_damaged_archive_is_restored(
    spark: SparkSession, lake_path: Path, new_database: Callable[[], str]
) -> None:
    url = new_database()
    rewrite(by_size(lake_path)[0], tampered)
    with pytest.raises(PipelineError, match="Nothing was restored, since 2 messages"):
        run(spark, url, lake_path)
    assert stored_ids(url) == set()


def test_what_is_no_diff_is_refused(
    spark: SparkSession, url: str, archived: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"number": [1]}), tmp_path / "part.parquet")
    with pytest.raises(PipelineError, match="is not the output of a diff"):
        run(spark, url, archived, diff=str(tmp_path))


def test_a_restore_that_is_ended_is_run_again(
    spark: SparkSession, archived: Path, new_database: Callable[[], str]
) -> None:
    """End it by SIGTERM when some rows are stored and others only wait for their commit."""
    url = new_database()
    low, high = TODAY - DAY, TODAY - DAY // 2
    before = {each for each in in_lake(archived) if low <= each[0] < high}
    assert run(spark, url, archived, low_ns=low, high_ns=high).new == len(before)
    assert stored_ids(url) == before
    assert rows(url, "select distinct source from storenode.commits") == [("restore",)]
    arguments = ("pipeline", "restore", str(archived), "--database-url", url, "--quiet", *QUICKLY)
    with psycopg.connect(url) as blocking:
        blocking.execute("select pg_advisory_xact_lock(%s)", (COMMIT_ORDER,))
        process = Command().start(*arguments)
        wait_for(lambda: waiting(url) or process.poll() is not None, "it waits")
        assert process.poll() is None, process.communicate()
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (TERMINATED, b""), err
        assert not [word for word in (b"Traceback", b"WARNING") if word in err], err
    wait_for(lambda: not is_locked(url), "the lock is gone")
    assert before <= stored_ids(url) <= set(in_lake(archived))
    run(spark, url, archived)
    assert stored_ids(url) == set(in_lake(archived))
    assert check(url, now_ns=lambda: NOW).findings == []
    assert run(spark, url, archived).new == 0


def waiting(url: str) -> bool:
    return bool(
        rows(
            url,
            "select 1 from pg_locks l join pg_stat_activity a using (pid) where not l.granted"
            " and l.locktype = 'advisory' and a.datname = current_database()",
        )
    )
