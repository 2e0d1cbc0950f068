"""What sessions stated is kept beside the archive, and a later audit says what is not borne out."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from store.db.pool import Database
from store.db.summaries.statements import DatabaseStatements
from store.domain.coverage import Statement
from store.pipeline.archive import ArchiveJob, ArchiveReport, archive
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.audit.summary import AuditReport
from store.pipeline.claims import CLOCKS_NS, read_claims, try_claims
from store.pipeline.delta import DeltaArchive
from store.pipeline.fingerprints import NOTHING, Fingerprints
from store.pipeline.manifest import CommitMetadata
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.report.figures import Gathered
from store.pipeline.report.findings import findings_of
from store.pipeline.report.report import completeness_of
from store.pipeline.writing import known_hours
from tests.integration.pipeline.world import DAY, HOUR, TODAY, held, in_lake, more, plain, rows

SPAN = TODAY - DAY, TODAY - DAY + 3 * HOUR
OTHER = "0c8e0000-0000-4000-8000-000000000051"


def state(url: str, *spans: tuple[int, int], compared_ns: int, lost: int = 0) -> None:
    """Note that another store holds the same in some spans, as a session does at its end."""
    made = []
    for start, end in spans:
        digests = [digest for ts, digest in held(url) if start <= ts < end]
        xor = 0
        for digest in digests:
            xor ^= int.from_bytes(digest, "big")
        fingerprint = xor.to_bytes(32, "big")
        made.append(Statement(start, end, compared_ns, True, lost, 0, len(digests), fingerprint))

    async def note() -> None:
        database = await Database.open(url)
        try:
            await DatabaseStatements(database).note(OTHER, made, time.time_ns())
        finally:
            await database.close()

    asyncio.run(note())


def archived(spark: SparkSession, url: str, path: Path) -> ArchiveReport:
    return archive(spark, ArchiveJob(url, DeltaArchive(str(path)), mark_here=True))


def audited(spark: SparkSession, path: Path, against: Path | None = None) -> AuditReport:
    other = None if against is None else ArchiveMessages(spark, DeltaArchive(str(against)))
    return audit(spark, AuditJob(ArchiveMessages(spark, DeltaArchive(str(path))), against=other))


def tried(spark: SparkSession, path: Path, against: Path) -> tuple[int | None, int]:
    """How many claims the archive of another store could try, and how many are untrue."""

    def hours(of: Path) -> tuple[DeltaArchive, Fingerprints]:
        lake = DeltaArchive(str(of)).open()
        return lake, known_hours(spark, lake)

    found = try_claims(*hours(path), hours(against))
    return found.against, found.untrue


def lose_a_day(archive: DeltaArchive) -> None:
    """Remove the files of the day of the claims, with what they hold."""
    day = SPAN[0] // DAY
    hours = {hour: NOTHING for hour in archive.manifest.held if hour // DAY == day}
    archive.commit([], archive.files({day}), CommitMetadata(hours=hours, lost=True))


def kept(path: Path) -> list[dict[str, Any]]:
    table = read_claims(DeltaArchive(str(path)))
    found: list[dict[str, Any]] = table.filter(pc.is_valid(table["other_store_id"])).to_pylist()
    return found


def test_claims_are_kept_once_and_what_the_archive_loses_is_named(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    ((store_id,),) = rows(url, "select store_id::text from storenode.store")
    now_ns = time.time_ns()
    part = SPAN[0] + 4 * HOUR, SPAN[0] + 4 * HOUR + HOUR // 6
    differing = SPAN[0] + 6 * HOUR, SPAN[0] + 7 * HOUR
    state(url, SPAN, part, compared_ns=now_ns)
    state(url, differing, compared_ns=now_ns, lost=1)
    assert archived(spark, url, lake_path).claims == 1
    assert archived(spark, url, lake_path).claims == 0
    (claim,) = kept(lake_path)
    assert (claim["store_id"], claim["other_store_id"]) == (store_id, OTHER)
    assert (claim["start_ns"], claim["end_ns"], claim["compared_ns"]) == (*SPAN, now_ns)
    mine = [ts for ts, _ in in_lake(lake_path) if SPAN[0] <= ts < SPAN[1]]
    assert claim["messages"] == len(mine) > 10

    more(url, plain(70_000, SPAN[0] + 1))  # a late message ends no claim
    assert archived(spark, url, lake_path).claims == 0
    assert tried(spark, lake_path, lake_path) == (0, 0)

    lose_a_day(DeltaArchive(str(lake_path)).open_for_writing())
    found = audited(spark, lake_path)
    assert not found.sound
    (untrue,) = found.claims.listed
    assert (untrue["store"], untrue["messages"], untrue["held"]) == (OTHER, len(mine), 0)
    assert any(f"{lake_path} holds 0" in line for line in found.lines())
    page = Gathered("it", now_ns, None, None, None, (), completeness_of(found))
    assert page.as_json()["completeness"]["claims_untrue"] == 1
    assert any(each.text.startswith("1 claim that another store") for each in findings_of(page))


@pytest.fixture
def others(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path, new_database: Callable[[], str]
) -> tuple[Path, Path, str]:
    """The archive of a store with a claim about another, the archive of that one, and its URL."""
    other, theirs = new_database(), tmp_path / "other"
    rows(other, "update storenode.store set store_id = %s", OTHER)
    state(url, SPAN, compared_ns=time.time_ns())
    archived(spark, url, lake_path)
    shutil.copytree(lake_path, theirs)
    shutil.rmtree(theirs / "claims")
    return lake_path, theirs, other


def note(path: Path, **changes: object) -> None:
    """That the archive of the other store was brought up to date, at a time of the test's own."""
    table = read_claims(DeltaArchive(str(path)))
    row = table.filter(pc.is_null(table["other_store_id"])).slice(0, 1).to_pylist()[0] | changes
    write_deltalake(path / "claims", pa.Table.from_pylist([row], table.schema), mode="append")


def test_the_archive_of_the_other_store_is_believed_only_where_it_must_hold_the_same(
    spark: SparkSession, others: tuple[Path, Path, str]
) -> None:
    ours, theirs, url = others
    (claim,) = kept(ours)
    before, after = claim["compared_ns"] - CLOCKS_NS, claim["recorded_ns"] + CLOCKS_NS
    archived(spark, url, theirs)
    assert tried(spark, ours, theirs) == (0, 0)  # not before and after
    note(theirs, recorded_ns=before)
    note(theirs, recorded_ns=after - 1)
    assert tried(spark, ours, theirs) == (0, 0)
    note(theirs, recorded_ns=after)
    assert tried(spark, ours, theirs) == (1, 0)

    lose_a_day(DeltaArchive(str(theirs)).open_for_writing())
    found = audited(spark, ours, theirs)
    (untrue,) = found.claims.listed
    assert (untrue["archive"], untrue["held"]) == (str(theirs), 0)
    assert "claims that the other archive could try: 1 of 1" in found.lines()

    # A promoted standby before it, or a horizon beyond the span, may be the reason.
    table = DeltaTable(theirs / "claims")
    (past,) = set(table.to_pyarrow_table()["past"].to_pylist())
    at = f"recorded_ns = {after}"
    table.update({"past": "'another'"}, predicate=at)
    assert tried(spark, ours, theirs) == (0, 0)
    table.update({"past": f"'{past}'"}, predicate=at)
    assert tried(spark, ours, theirs) == (1, 1)
    table.update({"start_ns": f"{SPAN[0] + 1}"}, predicate=at)
    assert tried(spark, ours, theirs) == (0, 0)
