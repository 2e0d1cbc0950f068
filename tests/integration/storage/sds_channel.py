"""A channel of SDS messages in a real database, beside the naive reading of the rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from store.db.sds import DatabaseSdsReader
from store.domain.ports import CausalRequest, HistoryEntry, SdsLookup, SdsPage, TopicFilter
from store.messages.frames import sds_page
from store.messages.record import RecordBatch
from storenode.message.hashing import message_hash
from storenode.sds.codec import decode, encode
from storenode.wire.storenode.v1.store_pb2 import CausalHistoryPage, SdsStoredMessage
from tests.integration.storage.node import Node
from tests.integration.storage.world import NOW, Topic, batch_of
from tests.support.outlet import WideOutlet
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
    listed = tuple(HistoryEntry(*entry) for entry in entries)
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
