"""Genuine messages behind crowds of forged ones, whether or not rows say what is proven."""

from __future__ import annotations

from hashlib import sha256
from typing import cast

import pytest

from store.db import sds as sds_module
from store.db import writer as writer_module
from store.db.connection import Connection
from store.db.sds import DatabaseSdsReader
from store.domain.claims import ClaimQuery
from store.domain.ports import SdsLookup, TopicFilter
from storenode.sds.codec import sds_key
from tests.integration.sds.channel import (
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
from tests.unit.domain.causal_world import CHANNEL, request

NAME = CHANNEL.decode()
CONTENT = b"what Alice said"
ID = genuine_id(NAME, CONTENT)
HASHED = sha256(CONTENT).hexdigest()
CROWDED = sds_module.FURTHER_CLAIMANTS + 100
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
    claims = sds_module.ClaimReader(node.database, request, (), parents=False)
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
