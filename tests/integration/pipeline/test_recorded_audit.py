"""An audit that continues from the last one finds what an audit of everything finds."""

from __future__ import annotations

import random
import shutil
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

from store.pipeline.archive import read_back
from store.pipeline.audit import results
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.columns import ARROW
from store.pipeline.delta import CommitMetadata, DataFile, DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.parquet import write_batches
from tests.integration.pipeline.world import DAY, HOUR, TODAY
from tests.support.pages import ROOT

FIRST = TODAY - 20 * DAY
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


@dataclass
class Place:
    """An archive that is written and rewritten by no job."""

    spark: SparkSession
    path: Path
    random: random.Random
    stored: list[Message] = field(default_factory=list)
    late: list[Message] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, messages: Iterable[Message]) -> None:
        """Publish messages in new files."""
        self._commit(list(messages), [])

    def replace(self, days: Iterable[int], messages: Iterable[Message]) -> None:
        """Let files with messages take the place of all files of some days."""
        wanted = set(days)
        self.stored = [each for each in self.stored if each.ts // DAY not in wanted]
        self._commit(list(messages), DeltaArchive(str(self.path)).open().files(wanted))

    def days(self) -> list[int]:
        return sorted({each.ts // DAY for each in self.stored})

    def of(self, day: int) -> list[Message]:
        return [each for each in self.stored if each.ts // DAY == day]

    def _commit(self, made: list[Message], gone: list[DataFile]) -> None:
        self.stored += made
        archive = DeltaArchive(str(self.path)).open_for_writing()
        rows = pa.RecordBatch.from_pylist(
            [each.row() for each in sorted(made, key=lambda each: each.ts)], ARROW
        )
        done = [row for part in write_batches(archive.messages, iter([rows])) for row in
                part.to_pylist()]  # fmt: skip
        written, _ = read_back(self.spark, archive, {row["path"]: row["rows"] for row in done})
        digests = {each.path: each.digest for each in written}
        before = dict.fromkeys(archive.manifest.stored, NOTHING)
        archive.commit(written, gone, CommitMetadata(digests, before | self._hours()))

    def _hours(self) -> Fingerprints:
        found: Fingerprints = {}
        for each in self.stored:
            words = (int(word) for word in np.frombuffer(each.hash, "<i8"))
            hour = each.ts // HOUR * HOUR
            found[hour] = found.get(hour, NOTHING).joined(Fingerprint(1, *words))
        return found

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
            ts = FIRST + day * DAY + rng.randrange(DAY)
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


def steps(place: Place) -> list[Callable[[], object]]:
    """Return changes of an archive between two audits."""

    def compact_and_quiet_days() -> None:
        days = place.days()[:2]
        place.replace(days, [each for day in days for each in place.of(day)])
        place.add([Message(FIRST + 5 * DAY, b"plain")])
        place.add([Message(FIRST + 6 * DAY, b"hello", "new", "first", 1, (("kitchen 1", None),))])

    def late_messages_and_parents() -> None:
        place.add(place.come_late())
        place.add(place.grown(3, 60))

    def damage() -> None:
        oldest, second, *_, newest = place.days()
        place.replace([oldest], [])
        place.replace([second], place.of(second)[::2])
        place.replace([newest], place.grown(newest - FIRST // DAY, 9))

    return [compact_and_quiet_days, late_messages_and_parents, damage]


def test_continuing_is_the_same_as_examining_everything(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaArchive(str(tmp_path / "lake")).open_for_writing()
    place = Place(spark, tmp_path / "lake", random.Random(3))

    def continued() -> AuditJob:
        archive = DeltaArchive(str(place.path)).open()
        return AuditJob(ArchiveMessages(spark, archive), record=archive)

    for day in range(3):
        place.add(place.grown(day, 60))
    audit(spark, continued())
    for happens in steps(place):
        happens()
        found = audit(spark, continued()).as_json()
        assert found == audit(spark, AuditJob(continued().messages, full=True)).as_json(), happens
    assert dashboard(place.path, "kitchen") == coverage(place.stored, "kitchen")
    references = place.path / "findings" / "references"
    for file in references.glob("*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"remove .*/findings/references: the next"):
        audit(spark, continued())
    shutil.rmtree(references)
    place.replace(place.days()[:1], [])
    audit(spark, continued())
    sums = DeltaTable(place.path / "findings" / "sums").to_pyarrow_table(columns=["day"])
    assert set(sums["day"].to_pylist()) == set(place.days())
    archive = DeltaArchive(str(place.path)).open()
    assert results.read_recorded(spark, archive) is not None
    monkeypatch.setattr(results, "FORMAT", "another format")
    assert results.read_recorded(spark, archive) is None, "the next audit examines everything"


def dashboard(path: Path, channel: str) -> list[tuple[int, int, int]]:
    """Run the query of docs/pipeline.md for a channel; return day, messages and missing parents."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    query = page.split("-- DuckDB: messages by day", 1)[1].split("\n", 1)[1].split("```")[0]
    with duckdb.connect() as connection:
        for name in ("sums", "references"):
            rows = DeltaTable(path / "findings" / name).to_pyarrow_table()
            connection.register(f"the_{name}", rows)
            query = query.replace(f"delta_scan('/archive/one/findings/{name}')", f"the_{name}")
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
