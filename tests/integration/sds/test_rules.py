"""Look-ups and walks on a real database against the naive reading of the rules."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest

from store.db.sds import claims as db_claims
from store.db.sds.reader import DatabaseSdsReader
from store.domain import causal
from store.domain.ports import TopicFilter, TopicRights
from tests.integration.sds.channel import (
    OTHER,
    TOPIC,
    Channel,
    assert_looked_up,
    assert_walked,
    look_up,
    walk,
)
from tests.integration.storage.node import Node
from tests.integration.storage.world import DAY
from tests.unit.domain.causal_world import Parent, request

FILTERS = (
    TopicFilter(),
    TopicFilter(content_topics=(TOPIC[1],)),
    TopicFilter(TOPIC[0], (TOPIC[1], OTHER[1])),
    TopicFilter(rights=TopicRights(content_prefixes=("/app/1/chan",))),
    TopicFilter(rights=TopicRights(pubsub_prefixes=("nothing",))),
)
ODD_HINTS = (b"", b"short", bytes(32), bytes(40))


def random_channel(dice: random.Random, size: int = 250) -> Channel:
    """Forks, merges, cycles, collisions of IDs, lying hints, other topics, opaque messages."""
    channel = Channel()
    ids = [b"id-%d" % number for number in range(size // 2)]
    for number in range(size):
        at = number * DAY // 40 // size - DAY * dice.choice((0, 0, 0, 1, 5))
        topic = dice.choice((TOPIC, TOPIC, TOPIC, OTHER))
        kind = dice.random()
        if kind < 0.1:
            channel.whisper(dice.randbytes(30), at=at, topic=topic)
        elif kind < 0.13:
            channel.say_elsewhere(dice.choice(ids).decode(), at=at)
        else:
            near = ids[max(0, number // 2 - 6) : number // 2 + 2]
            parents = [reference(dice, channel, near) for _ in range(dice.randrange(4))]
            channel.say(ids[number // 2], parents, at=at, topic=topic, content=dice.randbytes(8))
    return channel


def reference(dice: random.Random, channel: Channel, ids: list[bytes]) -> Parent:
    """An ID, with no hint, the right one, or one that lies."""
    message_id = dice.choice(ids)
    if not channel.stored or dice.random() < 0.3:
        return message_id, None
    claimants = [each.hash for each in channel.stored if each.message_id == message_id]
    if claimants and dice.random() < 0.6:
        return message_id, dice.choice(claimants)
    if dice.random() < 0.7:
        return message_id, dice.choice(channel.stored).hash
    return message_id, dice.choice(ODD_HINTS)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prefetched", [2, 256])
async def test_walks_follow_the_rules(
    node: Node, reader: DatabaseSdsReader, seed: int, prefetched: int
) -> None:
    dice = random.Random(seed)
    channel = random_channel(dice)
    dice.shuffle(channel.rows)
    await channel.store(node, 60)
    ids = [each.message_id for each in channel.stored if each.message_id is not None]
    with (
        patch.object(causal, "FIRST_AHEAD", prefetched),
        patch.object(causal, "FEWEST_AHEAD", prefetched),
        patch.object(db_claims, "_FURTHER_CLAIMANTS", dice.choice((1, 3, 1_024))),
    ):
        for wanted in FILTERS:
            limited = request(
                [reference(dice, channel, ids[-20:]) for _ in range(dice.randrange(1, 4))],
                known_ids=frozenset(dice.sample(ids, dice.choice((0, 0, 3)))),
                max_messages=dice.choice((1, 10, 100_000, 100_000)),
                max_depth=dice.choice((0, 0, 1, 5)),
                filter=wanted,
            )
            assert_walked(await walk(reader, limited), channel.seen(wanted), limited)


@pytest.mark.parametrize("seed", range(4))
async def test_look_ups_follow_the_rules(node: Node, reader: DatabaseSdsReader, seed: int) -> None:
    dice = random.Random(100 + seed)
    channel = random_channel(dice)
    await channel.store(node, 60)
    ids = [each.message_id for each in channel.stored if each.message_id is not None]
    with patch.object(db_claims, "_FURTHER_CLAIMANTS", dice.choice((1, 3, 1_024))):
        for wanted in FILTERS:
            entries = [reference(dice, channel, [*ids, b"nobody's"]) for _ in range(120)]
            answered = await look_up(reader, entries, wanted)
            assert_looked_up(answered, channel.seen(wanted), entries)
