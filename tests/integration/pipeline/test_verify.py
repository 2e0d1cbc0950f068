"""Damage and losses are found and named, and a lost log is restored from its copies."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline import verify as kinds
from store.pipeline.audit.audit import audit
from store.pipeline.delta import DeltaArchive
from store.pipeline.diff import diff
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import DatabaseMessages
from store.pipeline.parquet import CHANGED_FILE, UNREADABLE
from store.pipeline.repair import RepairReport, repair
from store.pipeline.reports import time_text
from store.pipeline.restore import RestoreJob, restore
from store.pipeline.verify import VerifyReport
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    archived_from,
    hours_of,
    in_lake,
    messages,
    messages_in,
    more,
    plain,
    published,
    rows,
    stored_ids,
    verified,
)

Rows = list[dict[str, Any]]


def repaired(spark: SparkSession, lake: Path, **options: Any) -> RepairReport:  # noqa: ANN401
    return repair(spark, DeltaArchive(str(lake)), **options)


def found(result: VerifyReport | RepairReport) -> dict[str, int]:
    return {fault.kind: fault.count for fault in result.faults}


def rewrite(file: Path, change: Callable[[Rows], Rows]) -> None:
    """Change the rows of a file, and keep its name; fields may be null that never are."""
    table = pq.ParquetFile(file).read()
    schema = pa.schema([each.with_nullable(True) for each in table.schema])
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema), file)


def by_size(lake: Path) -> list[Path]:
    """Return the files of an archive, those with the most rows first."""
    return sorted(map(Path, published(lake)), key=lambda each: -pq.read_metadata(each).num_rows)


def test_messages_after_the_newest_commit_are_not_archived_yet(
    spark: SparkSession, url: str, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Add a late message of an archived hour and the first message of another hour."""
    hours = hours_of(in_lake(archived))
    more(url, plain(90_001, TODAY - DAY), plain(90_002, TODAY - 9 * DAY))
    monkeypatch.setattr(kinds, "time", SimpleNamespace(time_ns=lambda: max(in_lake(archived))[0]))
    result = verified(spark, archived, url=url)
    assert (result.sound, result.not_archived_yet) == (True, 2), result.lines()
    assert (result.messages, result.files) == (len(messages()), len(published(archived)))
    assert (result.hours, result.as_json()["compared_with_database"]) == (len(hours), True)
    text = " ".join(result.lines())
    assert "2 messages came after the archive's newest commit" in text
    assert "marked 0 hours as archived here" in text
    assert "clock of this machine" not in text
    later = len({ts // HOUR for ts, _ in stored_ids(url) if ts >= DAY + HOUR})
    monkeypatch.setattr(kinds, "time", SimpleNamespace(time_ns=lambda: DAY))
    note = f"clock of this machine, which says 1970-01-02T00:00:00Z: {later}."
    assert note in " ".join(verified(spark, archived, url=url).notes)
    monkeypatch.undo()
    rows(url, "update storenode.store set store_id = gen_random_uuid()")
    result = verified(spark, archived, url=url)
    assert (result.sound, "an archive of other stores" in " ".join(result.notes)) == (False, True)


def test_messages_that_the_archive_should_hold_are_missing_from_it(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    more(url, plain(90_001, TODAY - DAY), plain(90_002, TODAY - 9 * DAY))
    lake = tmp_path / "lake"
    archived_from(spark, url, lake, high_ns=TODAY - 8 * DAY)
    more(url, plain(90_003, TODAY - DAY + 1))
    hours = {ts // HOUR for ts, _ in stored_ids(url) if TODAY - 8 * DAY <= ts < NOW // HOUR * HOUR}
    assert found(verified(spark, lake, url=url)) == {kinds.DIFFERENT: len(hours)}
    assert verified(spark, lake, url=url, high_ns=TODAY - 8 * DAY).sound
    cut = verified(spark, lake, url=url, high_ns=TODAY - 9 * DAY + HOUR // 2)
    assert (cut.sound, "clock of this machine" in " ".join(cut.notes)) == (True, False)


def changed(rows: Rows, *changes: dict[str, Any]) -> Rows:
    """Change some columns of the first rows, a row for each change."""
    return [
        {**row, **change} for row, change in zip_longest(rows, changes, fillvalue=dict[str, Any]())
    ]


def tampered(rows: Rows) -> Rows:
    return changed(rows, {"payload": b"something else"}, {"meta": b"other"})


def fewer(rows: Rows) -> Rows:
    return rows[1:]


STRANGE = ({"content_topic": ""}, {"ephemeral": True}, {"content_topic": "c\0"})
DAMAGE: list[tuple[Callable[[Rows], Rows], bool, list[str]]] = [
    (tampered, False, [kinds.WRONG_HASH] * 2),
    (lambda rows: changed(rows, {"h1": 0}), True, [kinds.WRONG_WORDS]),
    (
        lambda rows: changed(rows, {"pubsub_topic": "/waku/2/rs/1/9"}),
        False,
        [kinds.WRONG_HASH, kinds.WRONG_PLACE],
    ),
    (
        lambda rows: changed(rows, {"ts": TODAY - 9 * DAY}),
        True,
        [kinds.WRONG_HASH, kinds.WRONG_PLACE],
    ),
    (lambda rows: [*rows, rows[0], rows[0]], False, []),
    (
        lambda rows: changed(rows, *STRANGE, {"content_topic": "c" * 1025}),
        False,
        [kinds.NOT_ELIGIBLE] * 4 + [kinds.WRONG_HASH] * 3,
    ),
    (fewer, True, []),
    (lambda rows: changed(rows, dict.fromkeys(rows[0])), True, list(kinds.RULES)),
]
"""Changes of a file's rows, whether the first row's hour lacks something, and the file's faults."""


def commit_damage(lake: Path, *changes: Callable[[Rows], Rows]) -> list[Path]:
    """Change the rows of files, and commit the new digests, as a faulty program would."""
    opened = DeltaArchive(str(lake)).open_for_writing()
    files = dict(zip(by_size(lake), changes, strict=False))
    written, gone = [], []
    for old in opened.files():
        if Path(old.path) in files:
            file = Path(old.path).with_name("part-changed.parquet")
            shutil.copy(old.path, file)
            rewrite(file, files[Path(old.path)])
            digest = sha256(file.read_bytes()).hexdigest()
            size = file.stat().st_size
            written.append(old._replace(path=str(file), size_bytes=size, digest=digest))
            gone.append(old)
    opened.commit(written, gone)
    return [file.with_name("part-changed.parquet") for file in files]


def test_damage_is_found_and_named(spark: SparkSession, lake_path: Path) -> None:
    """Commit files that are changed in another way each, harm others, and verify all at once."""
    files, messages = by_size(lake_path), lake_path / "messages"
    firsts = [pq.ParquetFile(each).read()["ts"][0].as_py() for each in files]
    changes = [change for change, *_ in DAMAGE]
    damaged = commit_damage(lake_path, *changes)
    wanted = {
        str(file.relative_to(messages)): Counter(faults)
        for file, (_, _, faults) in zip(damaged, DAMAGE, strict=True)
    }
    lost = {ts // HOUR * HOUR for ts, (_, loses, _) in zip(firsts, DAMAGE, strict=False) if loses}
    altered, gone, *_ = files[len(DAMAGE) :]
    for file, kind in ((altered, CHANGED_FILE), (gone, UNREADABLE)):
        lost |= {ts // HOUR * HOUR for ts in pq.ParquetFile(file).read()["ts"].to_pylist()}
        wanted[str(file.relative_to(messages))] = Counter([kind])
    altered.write_bytes(altered.read_bytes()[:-40] + bytes(40))
    gone.unlink()

    result = verified(spark, lake_path)
    by_kind = {fault.kind: fault for fault in result.faults}
    for file_name, faults in wanted.items():
        lines = Counter(
            kind for kind, fault in by_kind.items() for where in fault.where if file_name in where
        )
        assert lines == faults, file_name
    assert by_kind.pop(kinds.TWICE).count == 1
    assert {each.split(": ")[0] for each in by_kind.pop(kinds.LOST_HOUR).where} == set(
        map(time_text, lost)
    )
    assert found(result).keys() - {kinds.TWICE, kinds.LOST_HOUR} == by_kind.keys()
    assert {kind: fault.count for kind, fault in by_kind.items()} == sum(
        wanted.values(), Counter[str]()
    )
    with pytest.raises(PipelineError, match="could not be read"):
        audit(messages_in(spark, lake_path))


def drop_day(lake: Path) -> str:
    """Remove a whole day from the table, as any tool may; returns the day."""
    table = DeltaTable(lake / "messages")
    day = sorted({str(each["day"]) for each in table.partitions()})[-2]
    table.delete(f"day = '{day}'")
    return day


def test_a_day_that_another_program_removed_is_found_and_comes_back(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    """Remove it, then the manifest, too: a copy and the marks still show it."""
    archived_from(spark, url, lake_path)
    manifest = lake_path / "manifest"
    copy = shutil.copytree(manifest, tmp_path / "copy")
    assert verified(spark, lake_path, manifest=str(copy)).sound
    day = drop_day(lake_path)
    first = verified(spark, lake_path, manifest=str(copy))
    assert found(first).keys() == {kinds.LOST_FILE, kinds.LOST_HOUR}
    assert any(line.strip().startswith(f"{day}T") for line in first.lines())
    # Other jobs read what is there; none takes the loss for the new state.
    assert messages_in(spark, lake_path).count == first.messages
    with pytest.raises(PipelineError, match=r"do not agree.*storenode pipeline repair"):
        archived_from(spark, url, lake_path)
    aside = manifest.rename(tmp_path / "aside")
    alone = found(verified(spark, lake_path, manifest=str(copy), url=url))
    assert alone.keys() == {
        kinds.BROKEN_MANIFEST,
        kinds.DIFFERENT,
        kinds.LOST_FILE,
        kinds.LOST_HOUR,
        kinds.LOST_MARKED,
    }
    aside.rename(manifest)
    assert repaired(spark, lake_path).sound
    assert verified(spark, lake_path, url=url).sound
    assert in_lake(lake_path) == sorted(stored_ids(url))
    with pytest.raises(PipelineError, match="There is no manifest in"):
        verified(spark, lake_path, manifest=str(tmp_path / "none"))


def test_a_manifest_that_was_cut_is_made_from_the_log(
    spark: SparkSession, url: str, lake_path: Path, tmp_path: Path
) -> None:
    """Remove all copies; then the newest commits of log and copies, which an older copy shows."""
    archived_from(spark, url, lake_path)
    manifest = lake_path / "manifest"
    whole, copy = tree(manifest), shutil.copytree(manifest, tmp_path / "copy")
    shutil.rmtree(manifest)
    assert found(verified(spark, lake_path)) == {kinds.BROKEN_MANIFEST: 1}
    assert repaired(spark, lake_path).commits_copied == len(whole)
    assert tree(manifest) == whole
    for folder in (manifest, log_of(lake_path)):
        newest(folder).unlink()
    assert verified(spark, lake_path).faults == []
    cut = found(verified(spark, lake_path, manifest=str(copy)))
    assert cut.keys() >= {kinds.CUT_MANIFEST, kinds.LOST_COMMIT}


def log_of(lake: Path) -> Path:
    return lake / "messages" / "_delta_log"


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def newest(log: Path) -> Path:
    return max(log.glob("*.json"))


def without_files(commit: Path) -> bytes:
    lines = commit.read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if b'"add"' not in line)


HARMS: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "torn": lambda log: (log / f"{0:020}.json").write_bytes(b"{"),
    "cut": lambda log: newest(log).unlink(),
    "altered": lambda log: newest(log).write_bytes(without_files(newest(log))),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_log_is_restored_byte_for_byte(spark: SparkSession, lake_path: Path, harm: str) -> None:
    whole = tree(log_of(lake_path))
    HARMS[harm](log_of(lake_path))
    result = repaired(spark, lake_path)
    assert (result.sound, result.files_removed) == (True, 0)
    assert (result.commits_restored, result.files) == (len(whole), len(published(lake_path)))
    assert (result.damaged_log is None) == (harm == "removed")
    assert tree(log_of(lake_path)) == whole


def test_removed_commits_are_found(spark: SparkSession, url: str, lake_path: Path) -> None:
    newest(log_of(lake_path)).unlink()
    result = verified(spark, lake_path)
    assert found(result).keys() == {kinds.LOST_COMMIT, kinds.LOST_FILE, kinds.LOST_HOUR}
    assert "the newest commit of the log is 0" in " ".join(result.lines())
    partial = restore(spark, RestoreJob(DeltaArchive(str(lake_path)), url))
    assert (partial.sound, "may lack messages" in partial.lines()[1]) == (False, True)
    with pytest.raises(PipelineError, match=r"log is 0, that of the manifest 1.*pipeline repair`"):
        archived_from(spark, url, lake_path)


def test_files_that_do_not_agree_are_refused_or_left_out(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    """Delete a file that the log names, then change another one and delete the log."""
    lost, changed, *_ = by_size(lake_path)
    lost.unlink()
    with pytest.raises(PipelineError, match=f"{lost.name} could not be read"):
        diff(spark, messages_in(spark, lake_path), DatabaseMessages(spark, url))
    before = tree(lake_path)
    refused = repaired(spark, lake_path)
    assert (refused.refused, found(refused)) == (True, {UNREADABLE: 1})
    assert lost.name in " ".join(refused.lines())
    assert tree(lake_path) == before
    result = repaired(spark, lake_path, leave_out=True)
    assert (result.refused, result.commits_restored, result.files_removed) == (False, 0, 1)
    rewrite(changed, fewer)
    shutil.rmtree(log_of(lake_path))
    before = tree(lake_path)
    refused = repaired(spark, lake_path)
    assert (refused.refused, found(refused)) == (True, {CHANGED_FILE: 1})
    assert tree(lake_path) == before
    assert repaired(spark, lake_path, leave_out=True).files_removed == 1
    assert found(verified(spark, lake_path)).keys() == {kinds.LOST_HOUR}
    # The database still has all of it.
    archived_from(spark, url, lake_path)
    assert verified(spark, lake_path).faults == []
    assert in_lake(lake_path) == sorted(stored_ids(url))


def test_a_commit_does_not_lead_out_of_the_archive(
    spark: SparkSession, lake_path: Path, tmp_path: Path
) -> None:
    outside = shutil.copy(published(lake_path)[0], tmp_path / "part-1.parquet")
    copy = max((lake_path / "manifest").iterdir())
    path = Path(published(lake_path)[0]).relative_to(lake_path / "messages")
    text = copy.read_text()
    assert str(path) in text
    copy.write_text(text.replace(str(path), f"../../{Path(outside).name}"))
    shutil.rmtree(log_of(lake_path))
    with pytest.raises(PipelineError, match="is no commit of an archive"):
        repaired(spark, lake_path)
    assert not log_of(lake_path).exists()
