"""Comparing: the result is exact, and the same as that of two nodes that reconcile."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import diff
from store.pipeline.message_sets import (
    LEVELS_NS,
    DatabaseMessages,
    fingerprint,
    recorded_in,
)
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    archived_from,
    in_lake,
    messages_in,
    more,
    plain,
    stored_ids,
)
from tests.support.pages import ROOT
from tests.support.reconcile_pair import reconcile

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


def test_what_an_archive_lacks_of_a_database_is_what_two_nodes_would_find(
    spark: SparkSession, url: str, archived: Path, tmp_path: Path
) -> None:
    lake = messages_in(spark, archived)
    same = diff(spark, lake, DatabaseMessages(spark, url))
    assert (same.sound, same.hours_differing) == (True, 0)
    new = [plain(90_000 + number, TODAY - DAY + number * HOUR // 7) for number in range(20)]
    more(url, *new, plain(3, TODAY - 30 * DAY))
    output = tmp_path / "o{u}t*"
    result = diff(spark, lake, DatabaseMessages(spark, url), output=str(output))
    online, _ = reconcile(in_lake(archived), sorted(stored_ids(url)))
    assert lacking(output, "first") == online.to_receive.pairs()
    assert lacking(output, "second") == online.to_send.pairs() == []
    assert (result.first_lacks, result.second_lacks, result.hours_differing) == (21, 0, 4)


def test_two_archives_that_both_lack_something(
    spark: SparkSession,
    url: str,
    lake_path: Path,
    tmp_path: Path,
    new_database: Callable[[], str],
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
    assert (result.first_lacks, result.second_lacks) == (7, 5)
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
