"""Auditing: every gap is found and nothing else, however a history is cut into blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from pipeline.causal import blocks, cycles, passes
from pipeline.causal.reported import Audited as Report
from pipeline.jobs.archive import Archiving, archive
from pipeline.jobs.audit import Auditing, audit
from pipeline.lake import Lake
from pipeline.sides import DatabaseSide, LakeSide
from sds import codec
from tests.integration.pipeline.world import HOUR, NOW, more
from tests.support.audited import Claim, audited
from tests.unit.message.builders import entry
from wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

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
            parents = [f"{each}" for each in rng.sample(past, min(len(past), rng.randrange(3)))]
            lamport: int | None = number * 2
            roll = rng.random()
            if roll < 0.02:
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


def check(output: Path, result: Report, claims: list[Claim]) -> None:
    """What was written and reported is what a plain audit finds."""
    wanted = audited(claims)
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


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every channel is large."""
    for module, entries in ((blocks, 100), (passes, 100), (cycles, 10_000)):
        monkeypatch.setattr(module, "MAX_BLOCK_ENTRIES", entries)


def in_archive(spark: SparkSession, url: str, path: Path) -> LakeSide:
    archive(spark, Archiving(url, Lake(str(path))))
    return LakeSide(spark, Lake(str(path)).open())


def test_an_archive_is_audited_as_a_plain_audit_does(
    spark: SparkSession, filled: str, strange: list[Claim], tmp_path: Path
) -> None:
    side = in_archive(spark, filled, tmp_path / "lake")
    output = tmp_path / "found"
    result = audit(spark, Auditing(side, output=str(output)))
    check(output, result, strange)
    assert not result.sound


@pytest.mark.usefixtures("small_blocks")
def test_large_channels_in_blocks_give_the_same(
    spark: SparkSession, filled: str, strange: list[Claim], tmp_path: Path
) -> None:
    side = DatabaseSide(spark, filled, "the database")
    output, said = tmp_path / "found", list[str]()
    result = audit(spark, Auditing(side, output=str(output), say=said.append))
    check(output, result, strange)
    told = "\n".join(said)
    assert "3 channels are large" in told
