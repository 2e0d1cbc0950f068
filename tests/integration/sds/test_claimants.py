"""Tests of many claimants, hints to odd places, and claims that are too large."""

from __future__ import annotations

import pytest

from store.db import sds as sds_module
from store.db.sds import DatabaseSdsReader
from store.domain.ports import HistoryEntry, TopicFilter
from tests.integration.sds.channel import (
    OTHER,
    TOPIC,
    Channel,
    look_up,
    walk_from,
)
from tests.integration.storage.node import Node

CROWDED = sds_module.FURTHER_CLAIMANTS + 100
ONLY_OTHER = TopicFilter(content_topics=(OTHER[1],))


def crowd(count: int) -> Channel:
    """``count`` claimants of one ID, the last of them in another topic."""
    channel = Channel()
    for number in range(count):
        topic = OTHER if number == count - 1 else TOPIC
        channel.say(b"x", at=number, topic=topic, content=b"%d" % number)
    return channel


@pytest.mark.parametrize("count", [16, 17, CROWDED])
async def test_the_lowest_claimants_are_returned(
    node: Node, reader: DatabaseSdsReader, count: int
) -> None:
    channel = crowd(count)
    await channel.store(node)
    by_position = [each.hash for each in channel.stored]
    answered = await look_up(reader, [(b"x", None)])
    assert answered.hashes == by_position[:16]
    assert answered.truncated == (count > 16)
    walked = await walk_from(reader, [(b"x", None)])
    assert set(walked.hashes) == set(by_position[:16])
    assert walked.truncated == (count > 16)


@pytest.mark.parametrize("count", [18, CROWDED])
async def test_a_hint_and_a_filter_find_a_claimant_behind_the_crowd(
    node: Node, reader: DatabaseSdsReader, count: int
) -> None:
    channel = crowd(count)
    await channel.store(node)
    for chosen in (channel.stored[0].hash, channel.stored[16].hash, channel.stored[-1].hash):
        answered = await look_up(reader, [(b"x", chosen)])
        assert answered.hashes == [chosen]
        assert not answered.truncated
        assert (await walk_from(reader, [(b"x", chosen)])).hashes == [chosen]
    filtered = await look_up(reader, [(b"x", None)], ONLY_OTHER)
    assert filtered.hashes == [channel.stored[-1].hash]
    assert not filtered.truncated


async def test_hints_of_any_size_are_read_and_given_back(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    real = channel.say(b"real", at=1)
    channel.say(
        b"head",
        [(b"long", b"l" * 60_000), (b"real", real), (b"empty", b""), (b"none", None)],
        at=2,
    )
    await channel.store(node)
    walked = await walk_from(reader, [(b"head", None)])
    assert walked.ids == [b"real", b"head"]
    assert set(walked.missing) == {
        HistoryEntry(b"long", b"l" * 60_000),
        HistoryEntry(b"empty", b""),
        HistoryEntry(b"none", None),
    }
