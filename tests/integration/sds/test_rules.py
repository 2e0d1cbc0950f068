"""Look-ups and walks on a real database against the naive reading of the rules."""

from __future__ import annotations

import random
from hashlib import sha256
from unittest.mock import patch

import pytest

from store.db import sds as sds_module
from store.db.sds import DatabaseSdsReader
from store.domain import causal
from store.domain.ports import TopicFilter, TopicRights
from storenode.sds.codec import decode
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
from tests.support.forged import claiming, genuine_id
from tests.unit.domain.causal_world import CHANNEL, Parent, request

NAME = CHANNEL.decode()

FILTERS = (
    TopicFilter(),
    TopicFilter(content_topics=(TOPIC[1],)),
    TopicFilter(TOPIC[0], (TOPIC[1], OTHER[1])),
    TopicFilter(rights=TopicRights(content_prefixes=("/app/1/chan",))),
    TopicFilter(rights=TopicRights(pubsub_prefixes=("nothing",))),
)
ODD_HINTS = (b"", b"short", bytes(32), bytes(40))


CONTENTS = [b"content %d" % number for number in range(6)]
CLAIMED = [genuine_id(NAME, content) for content in CONTENTS]
CLAIMED += [sha256(content).hexdigest() for content in CONTENTS]
"""IDs under which genuine and forged messages are stored."""


def random_channel(rng: random.Random, size: int = 250) -> Channel:
    """Make forks, merges, cycles, forged IDs, lying hints, other topics, opaque messages."""
    channel = Channel()
    ids = [b"id-%d" % number for number in range(size // 2)]
    for number in range(size):
        at = number * DAY // 40 // size - DAY * rng.choice((0, 0, 0, 1, 5))
        topic = rng.choice((TOPIC, TOPIC, TOPIC, OTHER))
        kind = rng.random()
        if kind < 0.1:
            channel.whisper(rng.randbytes(30), at=at, topic=topic)
        elif kind < 0.13:
            channel.say_elsewhere(rng.choice(ids).decode(), at=at)
        elif kind < 0.4:
            name = rng.choice(CLAIMED)
            payload = claiming(NAME, name, rng.choice(CONTENTS))
            channel.add(payload, at, name.encode(), topic=topic)
        else:
            near = ids[max(0, number // 2 - 6) : number // 2 + 2]
            near += [name.encode() for name in rng.sample(CLAIMED, 2)]
            parents = [reference(rng, channel, near) for _ in range(rng.randrange(4))]
            channel.say(ids[number // 2], parents, at=at, topic=topic, content=rng.randbytes(8))
    return channel


def reference(rng: random.Random, channel: Channel, ids: list[bytes]) -> Parent:
    """Return an ID, with no hint, the right one, or one that lies."""
    message_id = rng.choice(ids)
    if not channel.stored or rng.random() < 0.3:
        return message_id, None
    claimants = [each.hash for each in channel.stored if each.message_id == message_id]
    if claimants and rng.random() < 0.6:
        return message_id, rng.choice(claimants)
    if rng.random() < 0.7:
        return message_id, rng.choice(channel.stored).hash
    return message_id, rng.choice(ODD_HINTS)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prefetched", [2, 256])
async def test_walks_follow_the_rules(
    node: Node, reader: DatabaseSdsReader, seed: int, prefetched: int
) -> None:
    rng = random.Random(seed)
    channel = random_channel(rng)
    rng.shuffle(channel.rows)
    await channel.store(node, 60)
    ids = [each.message_id for each in channel.stored if each.message_id is not None]
    with (
        patch.object(causal, "FIRST_AHEAD", prefetched),
        patch.object(causal, "FEWEST_AHEAD", prefetched),
        patch.object(sds_module, "FURTHER_CLAIMANTS", rng.choice((1, 3, 1_024))),
    ):
        for wanted in FILTERS:
            limited = request(
                [reference(rng, channel, ids[-20:]) for _ in range(rng.randrange(1, 4))],
                known_ids=frozenset(rng.sample(ids, rng.choice((0, 0, 3)))),
                max_messages=rng.choice((1, 10, 100_000, 100_000)),
                max_depth=rng.choice((0, 0, 1, 5)),
                filter=wanted,
            )
            world = channel.seen(wanted, prefers=rng.random() < 0.5)
            limited = world.complete(limited)
            assert_walked(await walk(reader, limited), world, limited)


@pytest.mark.parametrize("seed", range(4))
async def test_look_ups_follow_the_rules(node: Node, reader: DatabaseSdsReader, seed: int) -> None:
    rng = random.Random(100 + seed)
    channel = random_channel(rng)
    await channel.store(node, 60)
    ids = [each.message_id for each in channel.stored if each.message_id is not None]
    with patch.object(sds_module, "FURTHER_CLAIMANTS", rng.choice((1, 3, 1_024))):
        for wanted in FILTERS:
            entries = [
                reference(rng, channel, [*ids, *map(str.encode, CLAIMED), b"nobody's"])
                for _ in range(120)
            ]
            for prefers in (False, True):
                answered = await look_up(reader, entries, wanted, prefers=prefers)
                assert_looked_up(answered, channel.seen(wanted, prefers=prefers), entries)
    rows = await node.rows(
        "select m.payload, s.proof from storenode.sds s join storenode.messages m using (ts, hash)"
    )
    for payload, proof in rows:
        assert isinstance(payload, bytes)
        metadata = decode(payload)
        assert metadata is not None
        assert proof is metadata.proven
