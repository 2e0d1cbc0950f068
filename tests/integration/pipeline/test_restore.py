"""Restores of what retention dropped, and exact comparisons of archives and databases."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from store.db.check import check
from store.db.locks import COMMIT_ORDER
from store.db.retention import prune
from store.domain.retention import RetentionPolicy
from store.pipeline import verify as kinds
from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import DiffReport, diff
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import LEVELS_NS, DatabaseMessages, fingerprint, recorded_in
from store.pipeline.restore import RestoreJob, RestoreReport, restore
from store.pipeline.spark import TERMINATED
from storenode.client.messages import new_message
from storenode.message.hashing import content_digest
from tests.integration.database.rows import opened
from tests.integration.pipeline.conftest import QUICKLY
from tests.integration.pipeline.test_verify import by_size, commit_damage, rewrite, tampered
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    archived_from,
    in_lake,
    is_locked,
    messages_in,
    more,
    plain,
    rows,
    stored_ids,
    verified,
)
from tests.support.command import Command
from tests.support.node import running_node
from tests.support.pages import ROOT
from tests.support.polling import until
from tests.support.reconcile_pair import reconcile
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


async def pruned(url: str, days: int, *, requires_archive: bool = True) -> list[str]:
    """Drop what is older, in as many rounds as a node that works beside it makes necessary."""
    policy = RetentionPolicy(age_ns=days * DAY, requires_archive=requires_archive)
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
    report = check(url)
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


def test_another_content_under_the_same_hash_is_a_conflict(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """Archive two databases, of which one has a message and the other one with its hash."""
    urls, lakes, digests = [new_database(), new_database()], [tmp_path / "1", tmp_path / "2"], []
    for url, lake, fields in zip(urls, lakes, ((b"ab", "c"), (b"a", "bc")), strict=True):
        more(url, new_message(*fields, "/waku/2/rs/1/0", NOW - DAY))
        archived_from(spark, url, lake)
        digests.append(content_digest("/waku/2/rs/1/0", *fields, None, NOW - DAY).hex())
    ((ts, digest),) = stored_ids(urls[0])
    line = f"{digest.hex()} at {ts}: content digest {digests[0]}, and {digests[1]} in "
    one, other = (messages_in(spark, each) for each in lakes)
    for second in (other, DatabaseMessages(spark, urls[1])):
        output = tmp_path / f"o-{second.count}-{type(second).__name__}"
        result = diff(spark, one, second, output=str(output))
        assert (result.sound, result.hours_differing, result.conflicts) == (False, 1, 1)
        assert (result.first_lacks, result.second_lacks, lacking(output, "*")) == (0, 0, [])
        assert result.lines()[-1] == f"  {line}{second.name}"
    (fault,) = verified(spark, lakes[0], url=urls[1]).faults
    assert (fault.kind, fault.where) == (kinds.CONFLICTING, (f"{line}the database",))
    report = run(spark, urls[1], lakes[0])
    assert (report.messages, report.new, report.conflicts, report.sound) == (1, 0, 1, False)
    assert "0 were there" in report.lines()[0]


def test_messages_that_are_there_twice_hide_no_difference(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """Archive three messages of an hour; then let two copies have one of them twice each."""
    url, lakes = new_database(), [tmp_path / "1", tmp_path / "2"]
    more(url, *(plain(number, NOW - DAY) for number in (0, 2, 4)))
    archived_from(spark, url, lakes[0])
    shutil.copytree(lakes[0], lakes[1])
    commit_damage(lakes[0], lambda rows: [rows[0], rows[0], rows[2]])
    commit_damage(lakes[1], lambda rows: [rows[1], rows[1], rows[2]])
    result = diff(spark, *(messages_in(spark, each) for each in lakes))
    assert (result.first_lacks, result.second_lacks, result.hours_differing) == (1, 1, 1)


def test_nothing_of_a_damaged_archive_is_restored(
    spark: SparkSession, lake_path: Path, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    url = new_database()
    pq.write_to_dataset(pa.table({"number": [1]}), tmp_path / "other")
    with pytest.raises(PipelineError, match="is not the output of a diff"):
        run(spark, url, lake_path, diff=str(tmp_path / "other"))
    commit_damage(lake_path, tampered)
    with pytest.raises(PipelineError, match="Nothing was restored, since 2 messages"):
        run(spark, url, lake_path)
    rewrite(by_size(lake_path)[0], lambda rows: [{**row, "version": 7} for row in rows])
    with pytest.raises(PipelineError, match="Nothing was restored or compacted, since 1 files"):
        run(spark, url, lake_path)
    assert stored_ids(url) == set()


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
        wait_for(lambda: is_locked(url, granted=False) or process.poll() is not None, "it waits")
        assert process.poll() is None, process.communicate()
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (TERMINATED, b""), err
        assert not [word for word in (b"Traceback", b"WARNING") if word in err], err
    wait_for(lambda: not is_locked(url), "the lock is gone")
    assert before <= stored_ids(url) <= set(in_lake(archived))
    run(spark, url, archived)
    assert stored_ids(url) == set(in_lake(archived))
    assert check(url).findings == []
    assert run(spark, url, archived).new == 0


Ids = list[tuple[int, bytes]]
_TYPES = {"BIGINT": "long", "BLOB": "binary"}
_PAGE = (ROOT / "docs" / "pipeline-analysis.md").read_text(encoding="utf-8")
(_ROW,) = re.findall(r"^\| `lacks=first`.* \| (.*) \|$", _PAGE, re.MULTILINE)
DOCUMENTED = re.findall(r"`(\w+)` (\w+)", _ROW)


def lacking(output: Path, side: str) -> Ids:
    files = [str(path) for path in output.glob(f"lacks={side}/*.parquet")]
    if not files:
        return []
    with duckdb.connect() as connection:
        table = connection.read_parquet(files, hive_partitioning=False)
        columns = zip(table.columns, map(str, table.types), strict=True)
        assert [(name, _TYPES[kind]) for name, kind in columns] == DOCUMENTED
        return table.project("ts, hash").order("ts, hash").fetchall()


def test_two_archives_that_both_lack_something(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(lake_path, other)
    more(url, *(plain(90_000 + number, TODAY - DAY + number) for number in range(5)))
    archived_from(spark, url, lake_path)
    second = new_database()
    more(second, *(plain(91_000 + number, TODAY - DAY + number * HOUR) for number in range(7)))
    archived_from(spark, second, other)
    output = tmp_path / "o{u}t*"
    sides = [messages_in(spark, each) for each in (lake_path, other)]
    result = diff(spark, *sides, output=str(output))
    online, _ = reconcile(in_lake(lake_path), in_lake(other))
    assert lacking(output, "first") == online.to_receive.pairs()
    assert lacking(output, "second") == online.to_send.pairs()
    assert (result.first_lacks, result.second_lacks, result.hours_differing) == (7, 5, 7)
    database = diff(spark, sides[0], DatabaseMessages(spark, url))
    assert (database.sound, database.hours_differing) == (True, 0)
    database = diff(spark, sides[0], DatabaseMessages(spark, second))
    assert (database.first_lacks, database.second_lacks) == (7, len(in_lake(lake_path)))
    bounded = diff(spark, *sides, bounds=(TODAY - DAY + 3, TODAY - DAY + 3 * HOUR + 1))
    assert (bounded.first_lacks, bounded.second_lacks) == (3, 2)


def test_an_archive_and_its_database_have_the_same_fingerprints(
    spark: SparkSession, url: str, archived: Path
) -> None:
    hours, ids = recorded_in(DeltaArchive(str(archived)).open()), stored_ids(url)
    assert hours == DatabaseMessages(spark, url).hours
    wanted = 0
    for _, digest in ids:
        wanted ^= int.from_bytes(digest, "big")
    for level, length_ns in LEVELS_NS.items():
        found = fingerprint("it", level, hours)
        assert (found.messages, found.xor) == (len(ids), f"{wanted:064x}")
        assert len(found.slices) == len({ts // length_ns for ts, _ in ids})
        part = fingerprint("it", level, hours, TODAY - DAY, NOW)
        assert 0 < part.messages < found.messages
        assert part.lines()[-1].endswith(part.xor)
