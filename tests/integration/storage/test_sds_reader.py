"""Lookups and walks of SDS messages on a real database, against the naive reading of the rules."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from hashlib import sha256
from typing import cast
from unittest.mock import patch

import pytest

from store.db import sds as db_claims
from store.db import writer as writer_module
from store.db.connection import Connection
from store.db.retention import prune
from store.db.sds import DatabaseSdsReader
from store.domain import causal
from store.domain.claims import ClaimQuery
from store.domain.ports import (
    CausalRequest,
    HistoryEntry,
    SdsLookup,
    SdsPage,
    TopicFilter,
    TopicRights,
)
from store.domain.retention import RetentionPolicy
from store.messages.frames import sds_page
from store.messages.record import RecordBatch
from storenode.message.hashing import message_hash
from storenode.sds.codec import decode, encode, sds_key
from storenode.wire.storenode.v1.store_pb2 import CausalHistoryPage, SdsStoredMessage
from tests.integration.storage.followers import WideOutlet
from tests.integration.storage.node import Node
from tests.integration.storage.test_plans import Explained
from tests.integration.storage.world import DAY, NOW, Topic, batch_of
from tests.support.participant import claiming, genuine, genuine_id
from tests.unit.domain.causal_world import (
    CHANNEL,
    Expected,
    Parent,
    Stored,
    World,
    in_one_cycle,
    naive_look_up,
    naive_walk,
    request,
)

MAX_PAGE_BYTES = 4 * 1024 * 1024
TOPIC: Topic = ("/waku/2/rs/1/0", "/app/1/channel/proto")
OTHER: Topic = ("/waku/2/rs/1/0", "/app/1/other/proto")


@dataclass
class Channel:
    """Messages to be stored, and what is known of them."""

    stored: list[Stored] = field(default_factory=list)
    topics: dict[bytes, Topic] = field(default_factory=dict)
    foreign: set[bytes] = field(default_factory=set)
    rows: list[tuple[int, Topic, bytes]] = field(default_factory=list)

    def say(
        self,
        message_id: bytes,
        parents: Sequence[Parent] = (),
        *,
        at: int,
        topic: Topic = TOPIC,
        content: bytes = b"",
    ) -> bytes:
        """Add an SDS message published ``at`` ns after `NOW`; its hash."""
        payload = encode(
            CHANNEL.decode(),
            message_id.decode(),
            parents=[(parent.decode(), hint) for parent, hint in parents],
            content=content,
        )
        return self._add(payload, at, topic, message_id, tuple(parents))

    def whisper(self, payload: bytes, *, at: int, topic: Topic = TOPIC) -> bytes:
        """Add a message whose payload is no SDS message; its hash."""
        return self._add(payload, at, topic, None, ())

    def say_elsewhere(self, message_id: str, *, at: int) -> bytes:
        """Add an SDS message of another channel; its hash."""
        digest = self._add(encode("elsewhere", message_id), at, TOPIC, None, ())
        self.foreign.add(digest)
        return digest

    def add(self, payload: bytes, at: int, message_id: bytes, topic: Topic = TOPIC) -> bytes:
        """Add an encoded SDS message without parents; its hash."""
        return self._add(payload, at, topic, message_id, ())

    def _add(
        self,
        payload: bytes,
        at: int,
        topic: Topic,
        message_id: bytes | None,
        parents: tuple[Parent, ...],
    ) -> bytes:
        digest = message_hash(topic[0], payload, topic[1], None, NOW + at)
        if digest not in self.topics:
            self.topics[digest] = topic
            self.rows.append((NOW + at, topic, payload))
            metadata = decode(payload)
            proven = metadata is not None and metadata.proven
            self.stored.append(Stored(NOW + at, digest, message_id, parents, proven))
        return digest

    @property
    def batch(self) -> RecordBatch:
        """The messages that were added, as a batch for the writer."""
        return batch_of(self.rows)

    async def store(self, node: Node, batch_messages: int = 1_000) -> None:
        """Store everything that was added."""
        for start in range(0, len(self.rows), batch_messages):
            await node.store(batch_of(self.rows[start : start + batch_messages]))

    def seen(self, wanted: TopicFilter, *, prefers: bool = False) -> World:
        """Return what a filter lets through, for the naive reading."""
        visible = [each for each in self.stored if wanted.matches(*self.topics[each.hash])]
        return World(visible, frozenset(self.foreign), prefers=prefers)


@dataclass
class Answered:
    """The pages of a call together."""

    messages: list[SdsStoredMessage] = field(default_factory=list)
    missing: list[HistoryEntry] = field(default_factory=list)
    truncated: bool = False
    pages: int = 0

    @property
    def hashes(self) -> list[bytes]:
        return [message.stored.message_hash for message in self.messages]

    @property
    def ids(self) -> list[bytes]:
        return [message.entry.message_id.encode() for message in self.messages]


async def collect(pages: AsyncIterator[SdsPage]) -> Answered:
    """Take all pages, parsed as a client does."""
    answered = Answered()
    async for page in pages:
        encoded = sds_page(page.messages, truncated=page.truncated)
        assert len(encoded) < MAX_PAGE_BYTES
        assert sum(len(entry.message_id) for entry in page.missing) < MAX_PAGE_BYTES
        assert not answered.truncated, "only the last page says that the answer is truncated"
        parsed = CausalHistoryPage.FromString(encoded)
        assert len(parsed.messages) == page.count
        answered.messages += parsed.messages
        answered.missing += page.missing
        answered.truncated = page.truncated
        answered.pages += 1
    for message in answered.messages:
        assert message.entry.retrieval_hint == message.stored.message_hash
        assert message.stored.HasField("message")
    return answered


async def walk(reader: DatabaseSdsReader, wanted: CausalRequest) -> Answered:
    """Return a whole causal walk."""
    return await collect(reader.causal_history(wanted, WideOutlet()))


async def walk_from(
    reader: DatabaseSdsReader, heads: Iterable[Parent], **limits: object
) -> Answered:
    """Return a whole causal walk from heads."""
    return await walk(reader, request(heads, **limits))


async def look_up(
    reader: DatabaseSdsReader,
    entries: Iterable[Parent],
    wanted: TopicFilter | None = None,
    *,
    prefers: bool = False,
) -> Answered:
    """Return a whole lookup."""
    listed = tuple(HistoryEntry(*entry) for entry in dict.fromkeys(entries))
    asked = SdsLookup(CHANNEL, listed, wanted or TopicFilter(), prefer_proven=prefers)
    return await collect(reader.messages(asked, WideOutlet()))


def assert_walked(answered: Answered, world: World, wanted: CausalRequest) -> None:
    """Compare with the naive reading, the order of parents and children included."""
    expected: Expected = naive_walk(world, wanted)
    assert set(answered.hashes) == set(expected.taken)
    assert len(answered.hashes) == len(expected.taken)
    assert {entry.message_id: entry.retrieval_hint for entry in answered.missing} == (
        expected.missing
    )
    assert len(answered.missing) == len(expected.missing)
    assert answered.truncated == expected.truncated
    place = {digest: at for at, digest in enumerate(answered.hashes)}
    for child, parent in expected.edges - in_one_cycle(expected.edges):
        assert place[parent] < place[child]


def assert_looked_up(answered: Answered, world: World, entries: Sequence[Parent]) -> None:
    """Compare with the naive reading."""
    expected = naive_look_up(world, entries)
    assert list(zip(answered.ids, answered.hashes, strict=True)) == expected.messages
    assert answered.missing == expected.missing
    assert answered.truncated == expected.truncated


NAME = CHANNEL.decode()

FILTERS = (
    TopicFilter(),
    TopicFilter(content_topics=(TOPIC[1],)),
    TopicFilter(TOPIC[0], (TOPIC[1], OTHER[1])),
    TopicFilter(rights=TopicRights(content_prefixes=("/app/1/chan",))),
    TopicFilter(rights=TopicRights(pubsub_prefixes=("nothing",))),
)
ODD_HINTS = (b"", b"short", bytes(32), bytes(40))


@pytest.fixture
def reader(node: Node) -> DatabaseSdsReader:
    """Return what is tested here."""
    return DatabaseSdsReader(node.database)


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
        patch.object(db_claims, "FURTHER_CLAIMANTS", rng.choice((1, 3, 1_024))),
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
    with patch.object(db_claims, "FURTHER_CLAIMANTS", rng.choice((1, 3, 1_024))):
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


CROWDED = db_claims.FURTHER_CLAIMANTS + 100
ONLY_OTHER = TopicFilter(content_topics=(OTHER[1],))


def crowd(count: int) -> Channel:
    """``count`` claimants of one ID, the last of them in another topic."""
    channel = Channel()
    for number in range(count):
        topic = OTHER if number == count - 1 else TOPIC
        channel.say(b"x", at=number, topic=topic, content=b"%d" % number)
    return channel


@pytest.mark.parametrize("count", [16, 17, 18, CROWDED])
async def test_the_lowest_claimants_are_returned_and_others_by_a_hint_or_a_filter(
    node: Node, reader: DatabaseSdsReader, count: int
) -> None:
    channel = crowd(count)
    await channel.store(node)
    by_position = [each.hash for each in channel.stored]
    answered = await look_up(reader, [(b"x", None)])
    assert (answered.hashes, answered.truncated) == (by_position[:16], count > 16)
    walked = await walk_from(reader, [(b"x", None)])
    assert (set(walked.hashes), walked.truncated) == (set(by_position[:16]), count > 16)
    for chosen in (by_position[0], by_position[min(16, count - 1)], by_position[-1]):
        answered = await look_up(reader, [(b"x", chosen)])
        assert (answered.hashes, answered.truncated) == ([chosen], False)
        assert (await walk_from(reader, [(b"x", chosen)])).hashes == [chosen]
    filtered = await look_up(reader, [(b"x", None)], ONLY_OTHER)
    assert (filtered.hashes, filtered.truncated) == ([by_position[-1]], False)


async def test_hints_of_any_size_are_read_and_given_back(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    real = channel.say(b"real", at=1)
    channel.say(
        b"head", [(b"long", b"l" * 60_000), (b"real", real), (b"empty", b""), (b"none", None)], at=2
    )
    await channel.store(node)
    walked = await walk_from(reader, [(b"head", None)])
    assert walked.ids == [b"real", b"head"]
    assert set(walked.missing) == {
        HistoryEntry(b"long", b"l" * 60_000),
        HistoryEntry(b"empty", b""),
        HistoryEntry(b"none", None),
    }


CONTENT = b"what Alice said"
ID = genuine_id(NAME, CONTENT)
HASHED = sha256(CONTENT).hexdigest()
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
    claims = db_claims.ClaimReader(node.database, request, parents=False)
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


LARGE = 140 * 1024
SMALL_PAGE_BYTES = 32 * 1024


def chain(length: int, content_bytes: int = 0, spacing: int = 1, start: int = 0) -> Channel:
    """Return messages of which each names the one before it."""
    channel = Channel()
    head: list[Parent] = []
    for number in range(length):
        at = start + number * spacing
        message_id = b"%d" % number
        head = [(message_id, channel.say(message_id, head, at=at, content=bytes(content_bytes)))]
    return channel


def head_of(channel: Channel) -> list[Parent]:
    last = channel.stored[-1]
    assert last.message_id is not None
    return [(last.message_id, last.hash)]


def started(reader: DatabaseSdsReader, heads: list[Parent]) -> AsyncGenerator[SdsPage, None]:
    """Return a walk whose pages the test takes one by one."""
    return reader.causal_history(request(heads), WideOutlet())


async def prune_all_before(node: Node, now: int) -> None:
    """Keep one day before ``now``, as the maintainer would."""
    async with await node.database.connect() as connection:
        # Vacuum, or what a walk reads ahead, may hold its locks for longer than a maintainer waits.
        report = await prune(connection, RetentionPolicy(age_ns=DAY), now, lock_timeout_ms=60_000)
    assert report.dropped
    assert not report.problems


async def test_large_messages_come_in_pages_and_in_order(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = chain(150, LARGE)
    await channel.store(node, 50)
    walked = await walk_from(reader, head_of(channel))
    assert walked.ids == [b"%d" % number for number in range(150)]
    assert walked.pages >= 150 * LARGE // (4 * 1024 * 1024)
    assert (walked.missing, walked.truncated) == ([], False)


async def test_what_is_pruned_is_missing_and_not_walked_past(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = chain(10, spacing=DAY, start=-9 * DAY)
    await channel.store(node)
    for horizon_ns in (NOW, 0):  # a message that is stored is found, though below the horizon
        await node.rows("update storenode.store set horizon_ns = %s", horizon_ns)
        assert len((await walk_from(reader, head_of(channel))).ids) == 10
    await prune_all_before(node, NOW)
    ids = [b"%d" % number for number in range(10)]
    answered = await look_up(reader, [(message_id, None) for message_id in ids])
    kept = len(answered.ids)
    assert 1 <= kept <= 3
    assert answered.ids == ids[-kept:]
    walked = await walk_from(reader, head_of(channel))
    assert walked.ids == ids[-kept:]
    lost = channel.stored[-kept - 1]
    assert lost.message_id is not None
    assert walked.missing == [HistoryEntry(lost.message_id, lost.hash)]


async def test_what_is_pruned_while_it_is_sent_is_missing(
    node: Node, reader: DatabaseSdsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_claims, "HANDY_PAGE_BYTES", SMALL_PAGE_BYTES)
    # More than is read ahead at most, so that something is left to be pruned.
    older = 400
    channel = chain(older, 350, start=-20 * DAY)
    parents: list[Parent] = head_of(channel)
    for number in range(20):
        message_id = b"new-%d" % number
        parents = [(message_id, channel.say(message_id, parents, at=number))]
    await channel.store(node)
    sent: list[int] = []
    missing: list[HistoryEntry] = []
    async with aclosing(started(reader, parents)) as pages:
        async for page in pages:
            sent.append(page.count)
            missing += page.missing
            if len(sent) == 1:
                await prune_all_before(node, NOW)
    assert sent
    assert sum(sent) + len(missing) == older + 20
    assert len(missing) > 100
    by_id = {each.message_id: each.hash for each in channel.stored}
    assert all(by_id[entry.message_id] == entry.retrieval_hint for entry in missing)


async def test_long_lists_of_missing_parents_come_in_pages(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    ids = [b"%d-" % number + b"x" * 100_000 for number in range(60)]
    parents: list[Parent] = []
    for number, lost in enumerate(ids):
        message_id = b"%d" % number
        parents = [(message_id, channel.say(message_id, [*parents, (lost, None)], at=number))]
    await channel.store(node)
    walked = await walk_from(reader, parents)
    assert len(walked.ids) == 60
    assert [entry.message_id for entry in walked.missing] == ids[::-1]
    assert walked.pages >= 2


async def test_unread_walks_take_no_place_from_others_and_give_their_connections_back(
    node: Node, reader: DatabaseSdsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_claims, "HANDY_PAGE_BYTES", SMALL_PAGE_BYTES)
    channel = chain(100, 4_000)
    await channel.store(node)
    unread = [started(reader, head_of(channel)) for _ in range(20)]
    assert len(unread) > 2 * node.database.settings.bulk_connections
    for pages in unread:
        assert (await anext(pages)).count > 0
    assert len((await walk_from(reader, head_of(channel))).ids) == 100
    assert len((await look_up(reader, head_of(channel))).ids) == 1
    for pages in unread:
        await pages.aclose()
    assert len((await walk_from(reader, head_of(channel))).ids) == 100
