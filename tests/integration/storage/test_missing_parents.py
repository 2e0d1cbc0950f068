"""Parents that are named and not held, against a naive list, whatever comes late or is dropped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from store.db import buckets as buckets_module
from store.db.buckets import fold_until, resummarize
from store.db.check import check
from store.db.connection import Connection
from store.db.retention import PruneReport, prune
from store.db.sds import MAX_MISSING_OF_DAY, MAX_MISSING_OF_MESSAGE, count_missing_parents
from store.db.statements import FINE_TABLE
from store.domain.partitioning import Cover
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.domain.view import Span
from storenode.sds.codec import encode
from tests.integration.storage.node import Node
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of

TODAY = NOW // DAY * DAY
DAYS = 8
CHANNELS = ("kitchen", "garden")
IDS = [f"message-{number}" for number in range(600)]
STEPS: list[Span] = [
    (TODAY + number * DAY // 4, TODAY + (number + 1) * DAY // 4) for number in range(-4 * DAYS, 4)
]

Message = tuple[int, str, str, tuple[str, ...]]
"""Timestamp, channel, ID, parents."""


@dataclass
class Oracle:
    """The stored messages, and the parents that they named before these came."""

    stored: set[Message] = field(default_factory=set)
    lacking: set[tuple[str, int, str]] = field(default_factory=set)
    horizon_ns: int = 0

    def take(self, messages: Iterable[Message]) -> None:
        new = {each for each in messages if each not in self.stored}
        self.stored |= new
        ids = {(channel, name) for _, channel, name, _ in self.stored}
        self.lacking |= {
            (channel, ts, parent)
            for ts, channel, _, parents in new
            for parent in parents
            if ts >= self.horizon_ns
        }
        self.lacking = {each for each in self.lacking if (each[0], each[2]) not in ids}

    def drop(self, report: PruneReport) -> None:
        self.horizon_ns = report.horizon_ns
        gone = Cover(
            each.partition.bounds for each in report.dropped if each.partition.table == FINE_TABLE
        )
        self.stored = {each for each in self.stored if gone.find(each[0]) is None}
        self.lacking = {each for each in self.lacking if each[1] >= self.horizon_ns}

    def counts(self, channel: str) -> list[int]:
        return [
            len({name for of, ts, name in self.lacking if of == channel and low <= ts < end})
            for low, end in STEPS
        ]


@pytest.fixture(autouse=True)
def _several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "MAX_FOLD_BYTES", 500)


def message(rng: random.Random, since_ns: int = TODAY - DAYS * DAY) -> Message:
    parents = rng.sample(IDS, rng.choice((0, 1, 1, 2, 5)))
    return rng.randrange(since_ns, NOW), rng.choice(CHANNELS), rng.choice(IDS), tuple(parents)


async def store(node: Node, messages: Iterable[Message], source: Source = Source.CLIENT) -> None:
    await node.store(
        batch_of(
            (
                ts,
                TOPICS[len(name) % 2],
                encode(channel, name, parents=[(parent, None) for parent in parents]),
            )
            for ts, channel, name, parents in messages
        ),
        source,
    )


async def counted(node: Node) -> dict[str, list[int]]:
    return {
        channel: await count_missing_parents(node.database, channel.encode(), STEPS)
        for channel in CHANNELS
    }


async def assert_right(node: Node, oracle: Oracle) -> None:
    assert await counted(node) == {channel: oracle.counts(channel) for channel in CHANNELS}


async def findings(url: str) -> set[str]:
    report = await asyncio.to_thread(check, url, sample=None)
    return {finding.kind for finding in report.findings}


@pytest.mark.parametrize("seed", range(1, 3))
async def test_counts_are_right_whatever_comes_late_or_is_dropped(
    node: Node, other_node: Node, connection: Connection, database_url: str, seed: int
) -> None:
    rng, oracle = random.Random(seed), Oracle()
    dropped: list[Message] = []
    for _ in range(12):
        batches = [
            [message(rng, oracle.horizon_ns or STEPS[0][0]) for _ in range(rng.choice((1, 3, 110)))]
            for _ in range(rng.choice((1, 3)))
        ]
        if oracle.stored and rng.random() < 0.3:
            batches[0].append(rng.choice(sorted(oracle.stored)))
        if dropped and rng.random() < 0.5:
            restored = rng.choices(dropped, k=9)
            await store(node, restored, Source.RESTORE)
            oracle.take(restored)
        await asyncio.gather(*(store(rng.choice((node, other_node)), each) for each in batches))
        for each in batches:
            oracle.take(each)
        if rng.random() < 0.4 and seed:
            days = rng.randrange(1, DAYS)
            before = set(oracle.stored)
            report = await prune(connection, RetentionPolicy(age_ns=days * DAY), NOW)
            assert not report.problems
            oracle.drop(report)
            dropped += sorted(before - oracle.stored)
        await fold_until(connection)
        await assert_right(node, oracle)
    assert any(any(oracle.counts(channel)) for channel in CHANNELS)
    assert await findings(database_url) == set()


async def test_a_check_finds_what_is_wrong_and_it_is_made_anew(
    node: Node, connection: Connection, database_url: str
) -> None:
    rng, oracle = random.Random(9), Oracle()
    messages = [message(rng) for _ in range(40)]
    oracle.take(messages)
    await store(node, messages[:30])
    await fold_until(connection)
    await store(node, messages[30:])
    # A commit that is not followed yet is no fault.
    assert await findings(database_url) == set()
    await fold_until(connection)
    await assert_right(node, oracle)

    await connection.execute(
        "delete from storenode.missing_parents where ts = (select max(ts) from"
        " storenode.missing_parents)"
    )
    assert await findings(database_url) == {"parent that is missing and is not counted"}
    await connection.execute(
        "insert into storenode.missing_parents"
        " select channel_key, ts, key from storenode.sds limit 1"
    )
    assert await findings(database_url) == {
        "parent that is missing and is not counted",
        "missing parent that is not missing",
    }
    await resummarize(connection)
    assert await findings(database_url) == set()
    await assert_right(node, oracle)


async def rows_of(connection: Connection) -> int:
    cursor = await connection.execute("select count(*) from storenode.missing_parents")
    ((count,),) = await cursor.fetchall()
    assert isinstance(count, int)
    return count


async def test_invented_parents_take_few_rows_of_a_message_and_of_a_day(
    node: Node, connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets_module, "MAX_FOLD_BYTES", 2**20)
    invented = [
        (TODAY + number, "kitchen", f"m{number}", tuple(f"{number}/{at}" for at in range(40)))
        for number in range(900)
    ]
    await store(node, invented[:100])
    await fold_until(connection)
    assert await rows_of(connection) == 100 * (MAX_MISSING_OF_MESSAGE + 1)
    await store(node, invented[100:])
    await fold_until(connection)
    assert await rows_of(connection) <= MAX_MISSING_OF_DAY + 2 * len(invented)
    assert await findings(database_url) == set()
    seconds = [(TODAY + number, TODAY + number + 1) for number in range(len(invented))]
    assert min(await count_missing_parents(node.database, b"kitchen", seconds)) > 0


async def test_a_message_is_complete_when_the_last_of_many_parents_has_come(
    node: Node, connection: Connection
) -> None:
    parents = IDS[:50]
    await store(node, [(TODAY + 1, "kitchen", "late", tuple(parents))])
    await fold_until(connection)
    left = set(parents)
    for number, name in enumerate(random.Random(3).sample(parents, len(parents))):
        kitchen = max((await counted(node))["kitchen"])
        assert 0 < kitchen <= min(len(left), MAX_MISSING_OF_MESSAGE + 1), name
        await store(node, [(TODAY + 2 + number, "kitchen", name, ())])
        await fold_until(connection)
        left.discard(name)
    assert max((await counted(node))["kitchen"]) == 0
    assert await rows_of(connection) == 0
