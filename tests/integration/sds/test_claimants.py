"""Tests of many claimants, hints to odd places, and claims that are too large."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from store.db.sds import claims as db_claims
from store.db.sds.reader import DatabaseSdsReader
from store.domain.ports import HistoryEntry, TopicFilter
from tests.integration.sds.channel import (
    OTHER,
    TOPIC,
    Channel,
    assert_looked_up,
    look_up,
    walk_from,
)
from tests.integration.storage.node import Node

CROWDED = db_claims._FURTHER_CLAIMANTS + 100
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
async def test_a_hint_finds_a_claimant_behind_the_crowd(
    node: Node, reader: DatabaseSdsReader, count: int
) -> None:
    channel = crowd(count)
    await channel.store(node)
    for chosen in (channel.stored[0].hash, channel.stored[16].hash, channel.stored[-1].hash):
        answered = await look_up(reader, [(b"x", chosen)])
        assert answered.hashes == [chosen]
        assert not answered.truncated
        assert (await walk_from(reader, [(b"x", chosen)])).hashes == [chosen]


@pytest.mark.parametrize("count", [18, CROWDED])
async def test_a_filter_finds_its_claimant_behind_the_crowd(
    node: Node, reader: DatabaseSdsReader, count: int
) -> None:
    channel = crowd(count)
    await channel.store(node)
    answered = await look_up(reader, [(b"x", None)], ONLY_OTHER)
    assert answered.hashes == [channel.stored[-1].hash]
    assert not answered.truncated


async def test_many_keys_with_several_claimants_are_read_in_parts(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    for number in range(60):
        for copy in range(1 + number % 4):
            channel.say(b"%d" % number, at=100 * number + copy, content=b"%d" % copy)
    await channel.store(node)
    entries = [(b"%d" % number, None) for number in range(60)]
    with patch.object(db_claims, "_FURTHER_CLAIMANTS", 5):
        answered = await look_up(reader, entries)
    assert_looked_up(answered, channel.seen(TopicFilter()), entries)


async def test_an_encrypted_message_is_found_by_its_hint_only(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    secret = channel.whisper(b"\xff encrypted", at=1)
    channel.say(b"head", [(b"secret", secret)], at=2)
    await channel.store(node)
    found = await look_up(reader, [(b"secret", None), (b"secret", secret)])
    assert (found.ids, found.hashes) == ([b"secret"], [secret])
    assert found.missing == [HistoryEntry(b"secret")]
    walked = await walk_from(reader, [(b"head", None)])
    assert walked.ids == [b"secret", b"head"]
    assert not walked.missing


async def test_a_hint_to_a_readable_message_under_another_id_is_ignored(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    other_id = channel.say(b"other", at=1)
    other_channel = channel.say_elsewhere("wanted", at=2)
    channel.say(b"head", [(b"wanted", other_id), (b"also", other_channel)], at=3)
    await channel.store(node)
    answered = await look_up(reader, [(b"wanted", other_id), (b"wanted", other_channel)])
    assert not answered.messages
    assert answered.missing == [
        HistoryEntry(b"wanted", other_id),
        HistoryEntry(b"wanted", other_channel),
    ]
    walked = await walk_from(reader, [(b"head", None)])
    assert walked.ids == [b"head"]
    assert {entry.message_id for entry in walked.missing} == {b"wanted", b"also"}


async def test_a_hint_outside_the_filter_is_not_followed(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    secret = channel.whisper(b"\xff encrypted", at=1, topic=OTHER)
    await channel.store(node)
    hidden = TopicFilter(content_topics=(TOPIC[1],))
    answered = await look_up(reader, [(b"secret", secret)], hidden)
    assert answered.missing == [HistoryEntry(b"secret", secret)]


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
