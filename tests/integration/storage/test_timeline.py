"""The timeline of the status page, against the stored messages, folded or not."""

from __future__ import annotations

import random
from collections import Counter

from store.db.summaries.buckets import DAY_NS, HOUR_NS
from store.db.summaries.fold import fold_until
from store.db.summaries.timeline import (
    MAX_SLOTS,
    TIMELINE_DAYS,
    Timeline,
    read_timeline,
)
from tests.integration.storage.node import Node
from tests.integration.storage.world import DAY, NOW, random_batch

SEED = 20261122
TODAY = NOW - NOW % DAY_NS
FIRST_HOUR = TODAY - (TIMELINE_DAYS - 1) * DAY_NS


async def timeline(node: Node) -> Timeline:
    async with await node.database.connect() as connection:
        return await read_timeline(connection, NOW)


def assert_says(found: Timeline, timestamps: list[int]) -> None:
    """Compare with a count of every message."""
    by_hour = Counter(ts - ts % HOUR_NS for ts in timestamps)
    assert found.hours_start_ns == FIRST_HOUR
    assert found.hours == [
        by_hour[FIRST_HOUR + hour * HOUR_NS] for hour in range(24 * TIMELINE_DAYS)
    ]
    first = min(timestamps) // DAY_NS * DAY_NS
    assert found.slots_start_ns == first
    assert len(found.slots) <= MAX_SLOTS
    length = found.slot_days * DAY_NS
    for slot, (messages, days) in enumerate(found.slots):
        low = first + slot * length
        inside = [ts for ts in timestamps if low <= ts < low + length]
        assert messages == len(inside)
        assert days == len({ts // DAY_NS for ts in inside})
    assert sum(messages for messages, _ in found.slots) == len(timestamps)
    assert first + len(found.slots) * length > TODAY
    assert found.complete


async def test_nothing_is_stored(node: Node) -> None:
    found = await timeline(node)
    assert sum(found.hours) == 0
    assert found.slots == []
    assert found.complete


async def test_it_is_what_is_stored_before_and_after_folding(node: Node) -> None:
    rng = random.Random(SEED)
    edges = [TODAY, TODAY - 1, FIRST_HOUR, FIRST_HOUR - 1, NOW, 5, NOW - 900 * DAY]
    recent = [NOW - rng.randrange(40 * DAY) for _ in range(200)]
    timestamps: list[int] = []
    for moments in (recent[:100], edges, recent[100:], [*edges, *recent]):
        batch = random_batch(rng, 60, moments)
        await node.store(batch)
        timestamps += batch.timestamps
        assert_says(await timeline(node), timestamps)
        if moments is not edges:
            async with await node.database.connect() as connection:
                await fold_until(connection)
            assert_says(await timeline(node), timestamps)
