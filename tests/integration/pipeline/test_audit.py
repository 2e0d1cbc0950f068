"""Auditing: every gap is found and nothing else, whatever is read and wherever it continues."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit import results, tables
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.audit.summary import AuditReport
from store.pipeline.columns import ARROW
from store.pipeline.delta import CommitMetadata, DataFile, DeltaArchive, WrittenFile
from store.pipeline.errors import PipelineError
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages, MessageSet
from store.pipeline.parquet import write_batches
from storenode.message.text import printable
from storenode.sds import codec
from storenode.sds.limits import MAX_ID_BYTES
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.pipeline.world import (
    DAY,
    HOUR,
    NOW,
    TODAY,
    documented_columns,
    more,
    rows,
    written_columns,
)
from tests.support.audited import Claim, audited
from tests.support.pages import ROOT
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
    """Return chains with forks, merges, gaps, wrong clocks, cycles, IDs claimed several times."""
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


def table(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a directory of Parquet, read by DuckDB."""
    with duckdb.connect() as connection:
        found = connection.read_parquet([str(each) for each in path.glob("*.parquet")])
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def unsigned(lamport: int | None) -> int | None:
    return None if lamport is None else lamport % 2**64


def check(output: Path, result: AuditReport, claims: list[Claim]) -> None:
    """Assert that the output and the report are those of a plain audit."""
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


def test_archive_and_database_are_audited_as_a_plain_audit_does(
    spark: SparkSession,
    new_database: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Audit the largest channel that may be, and refuse it by name where the bound is lower."""
    url, strange = new_database(), strange_history(7, 360)
    more(url, *(message(c, n, lamport, ts, parents) for c, n, lamport, ts, _, parents in strange))
    entries = Counter[str]()
    for channel, *_, parents in strange:
        entries[channel] += 1 + len(parents)
    (largest, most), *_ = entries.most_common()
    monkeypatch.setattr(tables, "MAX_CHANNEL_ENTRIES", most)
    lake = DeltaArchive(str(tmp_path / "lake"))
    archive(spark, ArchiveJob(url, lake))
    in_archive: MessageSet = ArchiveMessages(spark, lake)
    sides = (in_archive, DatabaseMessages(spark, url, "the database"))
    for number, side in enumerate(sides):
        output = tmp_path / f"found-{number}"
        result = audit(spark, AuditJob(side, output=str(output)))
        check(output, result, strange)
        assert (result.sound, result.counts["channels"]) == (False, len(entries))
    monkeypatch.setattr(tables, "MAX_CHANNEL_ENTRIES", most - 1)
    named = re.escape(printable(largest))
    with pytest.raises(PipelineError, match=rf"{named} has {most:,} IDs.*--from"):
        audit(spark, AuditJob(in_archive))


def test_hints_ranges_and_payloads_decide_what_is_missing(
    spark: SparkSession, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, long = new_database(), "ж" * 40_000
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
        message("z", "x", 1, FIRST, ["y", long]),
        message("z", "y", 0, FIRST, []),
    )
    side = DatabaseMessages(spark, url, "the database")
    file = tmp_path / "missing.jsonl"
    result = audit(spark, AuditJob(side, missing=str(file)))
    *lines, shortened = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [
        {"channel": "room", "message_id": "\x1bnever"},
        {"channel": "room", "message_id": "elsewhere"},
        {"channel": "room", "message_id": "lost", "hint": "01" * 32},
        {"channel": "room", "message_id": "tip"},
    ]
    # A name that is too long for any message takes little memory, and is still missing.
    assert shortened["message_id"].startswith("ж" * (MAX_ID_BYTES // 2) + "… (80000 bytes")
    assert MAX_ID_BYTES < len(shortened["message_id"].encode()) < 2 * MAX_ID_BYTES
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
    assert result.counts["incomplete"] == 3
    assert all(line.isprintable() for line in result.lines())
    assert json.loads(json.dumps(result.as_json()))["missing"] == 5

    within = audit(spark, AuditJob(side, FIRST + HOUR, FIRST + HOUR + 3))
    assert within.sound, within.lines()
    assert within.counts["messages"] == 2
    assert within.lines()[-1] == "Every past is complete."


OLDEST = TODAY - 20 * DAY
CHANNELS = ("kitchen", "Küche", "λ", "hall")
HINTED = "λ"
"""The only one of them in which hints name encrypted messages."""


@dataclass(frozen=True)
class Message:
    """A row of an archive; ``channel`` is None for a message without SDS fields."""

    ts: int
    payload: bytes
    channel: str | None = None
    name: str | None = None
    lamport: int | None = None
    parents: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def hash(self) -> bytes:
        return sha256(repr(self).encode()).digest()

    def row(self) -> dict[str, Any]:
        words = np.frombuffer(self.hash, "<i8").tolist()
        return {
            **dict.fromkeys(ARROW.names),
            **dict(zip(("h0", "h1", "h2", "h3"), words, strict=True)),
            "day": self.ts // DAY,
            "shard": 1,
            "ts": self.ts,
            "hash": self.hash,
            "pubsub_topic": "/waku/2/rs/1/1",
            "content_topic": "/test/1/x/proto",
            "payload": self.payload,
            "channel": self.channel,
            "message_id": self.name,
            "sender": None if self.channel is None else "somebody",
            "lamport": self.lamport,
            "parents": [{"id": each, "hint": hint} for each, hint in self.parents],
        }


def time(message: Message) -> int:
    return message.ts


@dataclass
class Place:
    """An archive that is written and rewritten by no job."""

    path: Path
    random: random.Random
    stored: list[Message] = field(default_factory=list)
    late: list[Message] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, messages: Iterable[Message]) -> None:
        """Publish messages in new files."""
        self._commit(list(messages), [])

    def replace(self, day: int, messages: Iterable[Message]) -> None:
        """Let a file with messages take the place of all files of a day."""
        before, made = self.of(day), list(messages)
        self.stored = [each for each in self.stored if each.ts // DAY != day]
        files = DeltaArchive(str(self.path)).open().files({day})
        self._commit(made, files, is_new=made != before)

    def days(self) -> list[int]:
        return sorted({each.ts // DAY for each in self.stored})

    def of(self, day: int) -> list[Message]:
        return [each for each in self.stored if each.ts // DAY == day]

    def _commit(self, made: list[Message], gone: list[DataFile], *, is_new: bool = True) -> None:
        self.stored += made
        archive = DeltaArchive(str(self.path)).open_for_writing()
        rows = pa.RecordBatch.from_pylist([each.row() for each in sorted(made, key=time)], ARROW)
        written = [
            WrittenFile(row["path"], 1, row["rows"], made[0].ts, made[0].ts, "")
            for part in write_batches(archive.messages, iter([rows]))
            for row in part.to_pylist()
        ]
        archive.commit(written, gone, CommitMetadata(), is_new=is_new)

    def grown(self, day: int, count: int) -> list[Message]:
        """Generate the messages of a day.

        They form chains with forks, gaps, copies, wrong clocks, hints and cycles. Some are added to
        ``late`` instead of being returned.
        """
        rng, made = self.random, list[Message]()
        for _ in range(count):
            channel = rng.choice(CHANNELS[: 2 + day % 3])
            number = self.numbers[channel] = self.numbers.get(channel, 0) + 1
            names = {f"{channel} {max(1, number - rng.randrange(1, 6))}" for _ in range(2)}
            parents: list[tuple[str, bytes | None]] = [(each, None) for each in sorted(names)]
            ts = OLDEST + day * DAY + rng.randrange(DAY)
            roll, name, lamport = rng.random(), f"{channel} {number}", number
            if roll < 0.3 and channel == HINTED:
                encrypted = Message(ts, b"encrypted %d" % number)
                parents.append((f"unread {number}", encrypted.hash))
                (self.late if roll < 0.1 else made).append(encrypted)
            elif roll < 0.12:
                parents.append((f"{channel} {number + rng.randrange(5)}", None))
            elif roll < 0.14:
                lamport = rng.choice([0, 2**63 - 1, max(0, number - 20)])
            elif roll < 0.16:
                name = f"{channel} {rng.randrange(1, number + 1)}"
            one = Message(ts, b"said %d" % number, channel, name, lamport, tuple(parents))
            (self.late if rng.random() < 0.1 else made).append(one)
            if rng.random() < 0.04:
                made.append(Message(ts, b"again", channel, name, lamport, tuple(parents[:1])))
        return made

    def come_late(self) -> list[Message]:
        """Remove a random half of the late messages and return it."""
        self.random.shuffle(self.late)
        half = len(self.late) // 2 + 1
        come, self.late = self.late[:half], self.late[half:]
        return come


def grow(place: Place) -> None:
    """Compact, begin a channel, and let late messages and parents come."""
    for day in place.days()[:2]:
        place.replace(day, place.of(day))
    hello = Message(OLDEST + 6 * DAY, b"hello", "new", "first", 1, (("kitchen 1", None),))
    plain = Message(OLDEST + 5 * DAY, b"plain")
    place.add([plain, hello, *place.come_late(), *place.grown(3, 60)])


def lose(place: Place) -> None:
    """Remove a day, a half of one, and all of another in favour of other messages."""
    oldest, second, *_, newest = place.days()
    place.replace(oldest, [])
    place.replace(second, place.of(second)[::2])
    place.replace(newest, place.grown((newest - OLDEST // DAY), 9))


def test_continuing_is_the_same_as_examining_everything(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaArchive(str(tmp_path / "lake")).open_for_writing()
    place = Place(tmp_path / "lake", random.Random(3))

    def continued() -> AuditJob:
        archive = DeltaArchive(str(place.path)).open()
        return AuditJob(ArchiveMessages(spark, archive), record=archive)

    place.add([each for day in range(3) for each in place.grown(day, 60)])
    audit(spark, continued())
    for change in (grow, lose):
        change(place)
        found = audit(spark, continued()).as_json()
        assert found == audit(spark, AuditJob(continued().messages, full=True)).as_json(), change
        assert dashboard(place.path, "kitchen") == coverage(place.stored, "kitchen")
    findings = place.path / "findings"
    only = [("result", "=", "sums")]
    sums = DeltaTable(findings).to_pyarrow_table(filters=only, columns=["day"])
    assert set(sums["day"].to_pylist()) == set(place.days())
    archive = DeltaArchive(str(place.path)).open()
    assert results.read_recorded(spark, archive) is not None
    with monkeypatch.context() as patch:
        patch.setattr(results, "FORMAT", "another format")
        assert results.read_recorded(spark, archive) is None, "the next examines everything"
    for file in findings.glob("result=references/*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"remove .*/findings: the next"):
        audit(spark, continued())
    shutil.rmtree(findings)
    assert results.read_recorded(spark, archive) is None


def dashboard(path: Path, channel: str) -> list[tuple[int, int, int]]:
    """Run the query of docs/pipeline.md for a channel; return day, messages and missing parents."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    query = page.split("-- DuckDB: messages by day", 1)[1].split("\n", 1)[1].split("```")[0]
    with duckdb.connect() as connection:
        connection.register("findings_table", DeltaTable(path / "findings").to_pyarrow_table())
        query = query.replace("delta_scan('/archive/one/findings')", "findings_table")
        found = connection.execute(query.replace("notes", channel)).fetchall()
    return [(day, messages, missing) for _, day, messages, missing in found]


def coverage(messages: list[Message], channel: str) -> list[tuple[int, int, int]]:
    """Compute day, messages and missing parents of a channel message by message."""
    mine = [each for each in messages if each.channel == channel]
    stored = {each.name for each in mine}
    found: dict[int, tuple[int, set[str]]] = {}
    for each in mine:
        count, missing = found.get(each.ts // DAY, (0, set[str]()))
        named = {name for name, hint in each.parents if hint is None} - stored
        found[each.ts // DAY] = count + 1, missing | named
    return [(day, count, len(missing)) for day, (count, missing) in sorted(found.items())]
