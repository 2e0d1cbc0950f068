"""Auditing: every gap is found and nothing else, in an archive and in a database."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit import tables
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.audit.summary import AuditReport as JobReport
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages
from storenode.message.text import printable
from storenode.sds import codec
from storenode.sds.limits import MAX_ID_BYTES
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    HOUR,
    NOW,
    documented_columns,
    more,
    rows,
    written_columns,
)
from tests.support.audited import Claim, audited
from tests.unit.builders import entry

FIRST = NOW - 30 * HOUR
MINUTE = HOUR // 60


def message(
    channel: str,
    name: str,
    lamport: int | None,
    ts: int,
    parents: list[str],
    *,
    hints: dict[str, bytes] | None = None,
    content: bytes = b"",
) -> WakuMessageAndTopic:
    payload = codec.encode(
        channel,
        name,
        sender_id="sender",
        lamport=lamport,
        parents=[(parent, (hints or {}).get(parent)) for parent in parents],
        content=content,
    )
    return entry(payload, timestamp=ts)


def strange_history(seed: int, count: int) -> list[Claim]:
    """Chains with forks, merges, gaps, clocks that lie, cycles, IDs claimed several times."""
    rng = random.Random(seed)
    made: list[Claim] = []
    for channel in ("kitchen", "Küche\0", "λ"):
        size = count // 3
        for number in range(size):
            past = range(max(0, number - 6), number)
            parents = [f"{each}" for each in rng.sample(past, min(len(past), rng.randrange(1, 3)))]
            lamport: int | None = number * 2
            roll = rng.random()
            if roll < 0.02 or number == 10:
                continue
            if roll < 0.04:
                parents.append(f"{min(size - 1, number + rng.randrange(4))}")
            elif roll < 0.05:
                lamport = rng.choice([None, 2**64 - 1, 2**63, number])
            elif roll < 0.06:
                parents.append(rng.choice(["nobody", "other's"]))
            ts = FIRST + MINUTE * number
            made.append((channel, f"{number}", lamport, ts, 0, parents))
            if roll > 0.97:
                made.append((channel, f"{number}", lamport, ts + 1, 0, parents[:1]))
    made.append(("elsewhere", "other's", 1, FIRST, 0, []))
    return made


def published(claims: list[Claim]) -> list[WakuMessageAndTopic]:
    return [message(c, n, lamport, ts, parents) for c, n, lamport, ts, _, parents in claims]


def table(path: Path) -> list[dict[str, Any]]:
    """What is in a directory of Parquet, read by DuckDB."""
    with duckdb.connect() as connection:
        found = connection.read_parquet([str(each) for each in path.glob("*.parquet")])
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def unsigned(lamport: int | None) -> int | None:
    return None if lamport is None else lamport % 2**64


def check(output: Path, result: JobReport, claims: list[Claim]) -> None:
    """What was written and reported is what a plain audit finds."""
    wanted = audited(claims)
    for folder in output.iterdir():
        assert written_columns(folder) == documented_columns(folder.name), folder.name
    pair = ("channel", "message_id")

    def names(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[each] for each in columns) for row in table(output / name))

    assert {(c, n, p) for c, n, p in names("missing", *pair, "missing_id")} == wanted.missing
    assert names("incomplete", *pair) == sorted(wanted.incomplete)
    assert names("heads", *pair) == sorted(wanted.heads)
    assert names("orphans", *pair) == sorted(wanted.orphans)
    assert names("violations", *pair, "parent") == sorted(wanted.violations)
    assert names("cycles", *pair, "cycle") == sorted(
        (c, n, cycle) for (c, n), cycle in wanted.cycles.items()
    )
    found = {row["channel"]: row for row in table(output / "channels")}
    assert found.keys() == wanted.channels.keys()
    for name, channel in wanted.channels.items():
        row = found[name]
        assert {each: row[each] for each in channel.counts} == channel.counts
        lamport = unsigned(row["point_lamport"])
        point = None if lamport is None else (lamport, row["point_message_id"], row["point_ts"])
        assert point == channel.point
    for each in ("missing", "incomplete", "violations", "heads", "messages", "cycles"):
        assert result.counts[each] == sum(c.counts[each] for c in wanted.channels.values())


@pytest.fixture(scope="module")
def strange() -> list[Claim]:
    """A history that the tests of this module share."""
    return strange_history(7, 360)


@pytest.fixture
def filled(new_database: Callable[[], str], strange: list[Claim]) -> str:
    """A database that holds it."""
    url = new_database()
    more(url, *published(strange))
    return url


def in_archive(spark: SparkSession, url: str, path: Path) -> ArchiveMessages:
    archive(spark, ArchiveJob(url, DeltaArchive(str(path))))
    return ArchiveMessages(spark, DeltaArchive(str(path)).open())


def test_an_archive_is_audited_as_a_plain_audit_does(
    spark: SparkSession, filled: str, strange: list[Claim], tmp_path: Path
) -> None:
    side = in_archive(spark, filled, tmp_path / "lake")
    output = tmp_path / "found"
    result = audit(spark, AuditJob(side, output=str(output)))
    check(output, result, strange)
    assert not result.sound


def test_a_database_is_audited_as_its_archive_is(
    spark: SparkSession, filled: str, strange: list[Claim], tmp_path: Path
) -> None:
    output = tmp_path / "found"
    messages = DatabaseMessages(spark, filled, "the database")
    check(output, audit(spark, AuditJob(messages, output=str(output))), strange)


def test_a_channel_that_is_too_large_is_refused_by_name(
    spark: SparkSession, filled: str, strange: list[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = Counter[str]()
    for channel, *_, parents in strange:
        entries[channel] += 1 + len(parents)
    (largest, most), *_ = entries.most_common()
    job = AuditJob(DatabaseMessages(spark, filled, "the database"))
    monkeypatch.setattr(tables, "MAX_CHANNEL_ENTRIES", most)
    assert audit(spark, job).counts["channels"] == len(entries)
    monkeypatch.setattr(tables, "MAX_CHANNEL_ENTRIES", most - 1)
    named = re.escape(printable(largest))
    with pytest.raises(PipelineError, match=rf"{named} has {most:,} IDs.*--from"):
        audit(spark, job)


def test_a_name_that_is_too_long_takes_no_memory_and_is_still_missing(
    spark: SparkSession, new_database: Callable[[], str]
) -> None:
    url, long = new_database(), "ж" * 40_000
    more(url, message("one", "x", 1, FIRST, ["y", long]), message("one", "y", 0, FIRST, []))
    found = audit(spark, AuditJob(DatabaseMessages(spark, url, "the database")))
    (missing,) = found.listed["missing"]
    assert MAX_ID_BYTES < len(missing["message_id"].encode()) < 4 * MAX_ID_BYTES
    assert missing["message_id"].startswith("ж" * MAX_ID_BYTES)


def test_hints_ranges_and_payloads_decide_what_is_held(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = new_database()
    sealed = entry(b"\0sealed", timestamp=FIRST)
    more(url, sealed)
    ((digest,),) = rows(url, "select hash from storenode.messages")
    other = message("den", "elsewhere", 1, FIRST + 1, [])
    hint = {"sealed": bytes(digest), "lost": b"\1" * 32}
    more(
        url,
        other,
        message("room", "early", 1, FIRST + 2, []),
        message("room", "late", 5, FIRST + HOUR, ["early", "sealed"], hints=hint),
        message("room", "again", 6, FIRST + HOUR + 1, ["late"], content=b"same"),
        message("room", "again", 6, FIRST + HOUR + 2, ["late"], content=b"same"),
        message("room", "twice", 7, FIRST + HOUR + 3, ["again"], content=b"one"),
        message("room", "twice", 7, FIRST + HOUR + 4, ["again"], content=b"other"),
        message(
            "room", "end", 9, FIRST + HOUR + 5, ["twice", "lost", "elsewhere", "tip"], hints=hint
        ),
        message("room", "tip\x1b[2J", 8, FIRST + HOUR + 6, ["\x1bnever"]),
    )
    side = DatabaseMessages(spark, url, "the database")
    file = tmp_path / "missing.jsonl"
    result = audit(spark, AuditJob(side, missing=str(file)))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [
        {"channel": "room", "message_id": "\x1bnever"},
        {"channel": "room", "message_id": "elsewhere"},
        {"channel": "room", "message_id": "lost", "hint": "01" * 32},
        {"channel": "room", "message_id": "tip"},
    ]
    named = {each["message_id"]: each for each in result.listed["missing"]}
    assert named["elsewhere"]["held_in_channel"] == "den"
    assert (named["lost"]["first_named_by"], named["lost"]["sender"]) == ("end", "sender")
    assert result.counts["copies"] == 2
    (conflict,) = result.listed["conflicts"]
    assert (conflict["message_id"], conflict["contents"]) == ("twice", 2)
    room = next(each for each in result.listed["channels"] if each["channel"] == "room")
    assert room["last_complete"] == {
        "message_id": "twice",
        "lamport": 7,
        "ts": FIRST + HOUR + 3,
    }
    assert result.counts["incomplete"] == 2
    assert all(line.isprintable() for line in result.lines())
    assert json.loads(json.dumps(result.as_json()))["missing"] == 4

    within = audit(spark, AuditJob(side, FIRST + HOUR, FIRST + HOUR + 3))
    assert within.sound, within.lines()
    assert within.counts["messages"] == 2
    assert within.lines()[-1] == "Every past is complete."
