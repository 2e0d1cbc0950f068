"""An audit that goes on from the last one says what an audit of everything says."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from store.pipeline.actions import Written
from store.pipeline.columns import ARROW
from store.pipeline.errors import PipelineError
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.delta import DeltaArchive
from store.pipeline.results import tables
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.writing import day_text, write_batches
from tests.integration.pipeline.world import DAY, HOUR, TODAY
from tests.support.pages import ROOT

FIRST = TODAY - 20 * DAY
CHANNELS = ("kitchen", "Küche", "λ", "hall")
HINTED = "λ"
"""The only one of them in which hints name encrypted messages."""


@dataclass(frozen=True)
class Message:
    """One row of an archive; ``channel`` None: a message that is none of SDS."""

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
    """An archive that is written and rewritten past the jobs."""

    path: Path
    random: random.Random
    held: list[Message] = field(default_factory=list)
    late: list[Message] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, messages: Iterable[Message]) -> None:
        """Publish messages in new files."""
        self.held += (made := list(messages))
        lake = DeltaArchive(str(self.path)).open()
        lake.publish(self._written(made), {})

    def replace(self, days: Iterable[int], messages: Iterable[Message]) -> None:
        """Let files with messages take the place of all files of some days."""
        wanted, made = set(days), list(messages)
        self.held = [each for each in self.held if each.ts // DAY not in wanted] + made
        lake = DeltaArchive(str(self.path)).open()
        lake.replace(lake.files(wanted), self._written(made))

    def days(self) -> list[int]:
        return sorted({each.ts // DAY for each in self.held})

    def of(self, day: int) -> list[Message]:
        return [each for each in self.held if each.ts // DAY == day]

    def _written(self, messages: list[Message]) -> list[Written]:
        if not messages:
            return []
        run = f"run-{uuid.uuid4().hex}"
        folder = self.path / "messages" / run
        rows = pa.RecordBatch.from_pylist([each.row() for each in messages], ARROW)
        done = pa.Table.from_batches(write_batches(f"file://{folder}", iter([rows])))
        found = []
        for path, count in zip(
            *(done[name].to_pylist() for name in done.column_names), strict=True
        ):
            ts = pq.read_table(folder / path, columns=["ts"], partitioning=None)["ts"].to_pylist()
            day = day_text(ts[0] // DAY)
            size = (folder / path).stat().st_size
            found.append(Written(f"{run}/{path}", day, 1, size, count, min(ts), max(ts)))
        return found

    def grown(self, day: int, count: int) -> list[Message]:
        """What a day brings: chains with forks, gaps, copies, clocks that lie, hints and cycles;
        some messages come later.
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
        """Some of what was to come later."""
        self.random.shuffle(self.late)
        half = len(self.late) // 2 + 1
        come, self.late = self.late[:half], self.late[half:]
        return come


def steps(place: Place) -> list[tuple[Callable[[], object], int | None]]:
    """What happens to an archive between one audit and the next, and how many channels are gone
    through then; None: some or all.
    """

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

    return [
        (compact_and_quiet_days, 0),
        (late_messages_and_parents, None),
        (damage, None),
        (lambda: place.add([*place.come_late(), *place.late]), None),
    ]


def test_going_on_is_the_same_as_beginning_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaArchive(str(tmp_path / "lake")).create()
    place = Place(tmp_path / "lake", random.Random(3))
    said: list[str] = []

    def going() -> AuditJob:
        lake = DeltaArchive(str(place.path)).open()
        return AuditJob(ArchiveMessages(spark, lake), say=said.append, record=lake)

    for day in range(3):
        place.add(place.grown(day, 60))
    audit(spark, going())
    for happens, again in steps(place):
        happens()
        said.clear()
        found = audit(spark, going()).as_json()
        assert found == audit(spark, AuditJob(going().side, full=True)).as_json(), happens
        if again is not None:
            assert f"audit: {again} channels are gone through as a whole" in said
    assert dashboard(place.path, "kitchen") == coverage(place.held, "kitchen")
    results = place.path / "findings" / "references"
    for file in results.glob("*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"remove .*/findings/references: the next"):
        audit(spark, going())
    shutil.rmtree(results)
    place.replace(place.days()[:1], [])
    audit(spark, going())
    hours = DeltaTable(place.path / "findings" / "hours").to_pyarrow_table(columns=["start_ns"])
    assert {each // DAY for each in hours["start_ns"].to_pylist()} == set(place.days())
    kept = tables.ResultTables(spark, str(place.path))
    assert kept.read() is not None
    monkeypatch.setattr(tables, "FORMAT", "another format")
    assert kept.read() is None, "the next audit goes through everything"


def dashboard(path: Path, channel: str) -> list[tuple[int, int, int]]:
    """What the query of the page tells of a channel: start of the hour, messages, missing."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    query = page.split("-- DuckDB: messages by hour", 1)[1].split("\n", 1)[1].split("```")[0]
    with duckdb.connect() as connection:
        for name in ("hours", "references"):
            rows = DeltaTable(path / "findings" / name).to_pyarrow_table()
            connection.register(f"the_{name}", rows)
            query = query.replace(f"delta_scan('/archive/one/findings/{name}')", f"the_{name}")
        found = connection.execute(query.replace("notes", channel)).fetchall()
    return [(int(hour.timestamp()) * 10**9, *rest) for _, hour, *rest in found]


def coverage(messages: list[Message], channel: str) -> list[tuple[int, int, int]]:
    """The same, message by message."""
    mine = [each for each in messages if each.channel == channel]
    held = {each.name for each in mine}
    found: dict[int, tuple[int, set[str]]] = {}
    for each in mine:
        start = each.ts // HOUR * HOUR
        count, missing = found.get(start, (0, set[str]()))
        named = {name for name, hint in each.parents if hint is None} - held
        found[start] = count + 1, missing | named
    return [(start, count, len(missing)) for start, (count, missing) in sorted(found.items())]
