"""Genuine messages behind crowds of forged ones, whether or not rows say what is proven."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import cast
from unittest.mock import patch

import pytest

from store.db.connection import Connection
from store.db.sds import reader as db_claims
from store.db.sds.reader import DatabaseSdsReader
from store.db.writing import writer as writer_module
from store.domain.claims import ClaimQuery
from store.domain.ports import SdsLookup, TopicFilter
from storenode.sds.codec import decode, sds_key
from tests.integration.sds.channel import (
    OTHER,
    TOPIC,
    Channel,
    assert_looked_up,
    assert_walked,
    look_up,
    walk,
    walk_from,
)
from tests.integration.storage.node import Node
from tests.integration.storage.test_plans import Explained
from tests.support.forged import claiming, genuine, genuine_id
from tests.unit.domain.causal_world import CHANNEL, Parent, request

NAME = CHANNEL.decode()
CONTENT = b"what Alice said"
ID = genuine_id(NAME, CONTENT)
HASHED = sha256(CONTENT).hexdigest()
CROWDED = db_claims.FURTHER_CLAIMANTS + 100
WAYS = ("copied", "inserted")


def forge(channel: Channel, message_id: str, count: int, at: int = 0) -> None:
    for number in range(count):
        payload = claiming(NAME, message_id, b"forged %d" % number)
        channel.add(payload, at + number, message_id.encode())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return by COPY, or by a statement that minds duplicates."""
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", 1 if request.param == "copied" else 10**6)


@pytest.mark.parametrize("count", [1, 17, CROWDED])
@pytest.mark.usefixtures("way")
async def test_what_is_proven_comes_before_older_forgeries(
    node: Node, reader: DatabaseSdsReader, count: int
) -> None:
    channel = Channel()
    forge(channel, ID, count)
    digest = channel.add(genuine(NAME, CONTENT), count, ID.encode())
    forged = channel.stored[0].hash
    beside = channel.say(b"beside", [(ID.encode(), forged)], at=count + 1)
    await channel.store(node)
    world = channel.seen(TopicFilter(), prefers=True)
    reference = ID.encode()
    for entries in ([(reference, None)], [(reference, forged)], [(reference, digest)]):
        answered = await look_up(reader, entries, prefers=True)
        assert_looked_up(answered, world, entries)
        assert answered.hashes[0] == digest
        assert_walked(await walk(reader, world.complete(request(entries))), world, request(entries))
    named = await look_up(reader, [(reference, forged)], prefers=True)
    assert named.hashes == [digest, forged]
    # The one hint in a causal history leads to the forged message.
    walked = await walk_from(reader, [(b"beside", beside)], prefer_proven=True)
    assert set(walked.hashes[:-1]) == {digest, forged}
    assert walked.hashes[-1] == beside
    plain = await look_up(reader, [(reference, None)])
    assert (digest in plain.hashes) == (count < 16), "the bound holds where nothing is asked for"
    assert (await look_up(reader, [(reference, forged)])).hashes == [forged]


def random_channel(rng: random.Random) -> Channel:
    """Return genuine and forged messages of few IDs, with parents whose hints name any of them."""
    channel = Channel()
    contents = [b"content %d" % number for number in range(6)]
    ids = [genuine_id(NAME, content) for content in contents]
    ids += [sha256(content).hexdigest() for content in contents] + ["chosen", "other"]
    for at in range(240):
        name, topic = rng.choice(ids), rng.choice((TOPIC, TOPIC, OTHER))
        parents: list[Parent] = []
        for _ in range(rng.randrange(3)):
            hinted = channel.stored and rng.randrange(2)
            hint = rng.choice(channel.stored).hash if hinted else None
            parents.append((rng.choice(ids).encode(), hint))
        if rng.randrange(3):
            content = rng.choice(contents)
            payload = claiming(NAME, name, content)
            channel.add(payload, at, name.encode(), topic=topic)
        else:
            channel.say(name.encode(), parents, at=at, topic=topic, content=b"%d" % at)
    return channel


@pytest.mark.parametrize("seed", range(4))
async def test_any_channel_is_read_as_the_rules_say(
    node: Node, reader: DatabaseSdsReader, seed: int
) -> None:
    rng = random.Random(seed)
    channel = random_channel(rng)
    assert len({each.proven for each in channel.stored}) == 2
    await channel.store(node, 60)
    ids = sorted({each.message_id or b"" for each in channel.stored})
    for wanted in (TopicFilter(), TopicFilter(content_topics=(TOPIC[1],))):
        for further in (1_024, 3):
            entries: list[Parent] = [
                (name, hint)
                for name in ids
                for hint in (None, rng.choice(channel.stored).hash, bytes(32))
            ]
            world = channel.seen(wanted, prefers=True)
            with patch.object(db_claims, "FURTHER_CLAIMANTS", further):
                answered = await look_up(reader, entries, wanted, prefers=True)
                assert_looked_up(answered, world, entries)
                heads = request(rng.sample(entries, 3), filter=wanted)
                assert_walked(await walk(reader, world.complete(heads)), world, heads)


async def test_what_is_written_is_what_is_recomputed(node: Node) -> None:
    channel = random_channel(random.Random(9))
    await channel.store(node, 100)
    rows = await node.rows(
        "select m.payload, s.proof from storenode.sds s join storenode.messages m using (ts, hash)"
    )
    assert len(rows) == len(channel.stored)
    for payload, proof in rows:
        assert isinstance(payload, bytes)
        metadata = decode(payload)
        assert metadata is not None
        assert proof is metadata.proven


OF_PROVEN = """
select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'storenode.sds_proven_idx'::regclass
"""


@pytest.mark.parametrize("analyzed", [False, True])
async def test_what_is_proven_is_found_by_its_index(node: Node, *, analyzed: bool) -> None:
    channel = Channel()
    forge(channel, ID, CROWDED)
    digest = channel.add(genuine(NAME, CONTENT), CROWDED, ID.encode())
    for number in range(CROWDED):
        content = b"%d" % number
        channel.add(genuine(NAME, content), number, genuine_id(NAME, content).encode())
    await channel.store(node)
    if analyzed:
        await node.rows("analyze")
    request = SdsLookup(CHANNEL, (), TopicFilter(), claimants=16, prefer_proven=True)
    claims = db_claims.ClaimReader(node.database, request, (), parents=False)
    async with await node.database.connect() as connection:
        explained = Explained(connection)
        key = sds_key(CHANNEL, ID.encode())
        (found,) = (
            await claims._claims(cast("Connection", explained), ClaimQuery((key,)))
        ).values()
        assert len(found) == 17
        assert [claim[2] for claim in found if claim[6]] == [digest]
        indexes = {name for (name,) in await node.rows(OF_PROVEN)}
        scans = [part for part in explained.carried_out() if part.get("Index Name") in indexes]
        assert [part["Actual Rows"] for part in scans if part["Actual Rows"]] == [1]
