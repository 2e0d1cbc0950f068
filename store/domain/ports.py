"""What the edges offer each other: the node's services as protocols and plain data.

``store.rpc`` consumes these, ``store.db`` implements them, ``store.runtime`` joins the two. Nothing
here knows of gRPC or Postgres. Message bytes travel as *frames* (see ``message.record``): field 1
of a page, holding one ``WakuMessageKeyValue``, spliced and never decoded.

Errors that any method may raise: :class:`StoreUnavailable` (the database cannot be reached now;
retry with backoff), :class:`StoreBusy` (a bounded queue is full).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from message.cursor import FollowCursor
from message.limits import MAX_SDS_CLAIMANTS
from message.record import RecordBatch


class StoreUnavailable(Exception):
    """The database cannot be reached or refuses to serve; the caller may retry with backoff."""


class StoreBusy(Exception):
    """A bounded queue or pool is full; the caller may retry with backoff."""


class CursorOutOfRange(Exception):
    """A readable cursor that this database cannot serve: another store, or commits were lost."""


class Source(StrEnum):
    """Where a message came from (label ``source`` of the metrics)."""

    CLIENT = "client"
    TRANSFER = "transfer"
    GOSSIP = "gossip"
    RESUME = "resume"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class TopicRights:
    """Which topics a caller may see: prefixes of pubsub and content topics.

    An empty tuple allows every topic of its kind; both empty is the unrestricted caller.
    """

    pubsub_prefixes: tuple[str, ...] = ()
    content_prefixes: tuple[str, ...] = ()

    @property
    def unrestricted(self) -> bool:
        """True when every topic is allowed."""
        return not self.pubsub_prefixes and not self.content_prefixes

    def allows(self, pubsub_topic: str, content_topic: str) -> bool:
        """True when both topics start with an allowed prefix."""
        return (not self.pubsub_prefixes or pubsub_topic.startswith(self.pubsub_prefixes)) and (
            not self.content_prefixes or content_topic.startswith(self.content_prefixes)
        )


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Topics asked for; None and () mean "any". Rights are applied on top of it."""

    pubsub_topic: str | None = None
    content_topics: tuple[str, ...] = ()
    rights: TopicRights = field(default_factory=TopicRights)

    def matches(self, pubsub_topic: str, content_topic: str) -> bool:
        """True when a message on these topics is asked for and may be seen."""
        return (
            (self.pubsub_topic is None or pubsub_topic == self.pubsub_topic)
            and (not self.content_topics or content_topic in self.content_topics)
            and self.rights.allows(pubsub_topic, content_topic)
        )


SyncId = tuple[int, bytes]
"""(timestamp in nanoseconds, 32-byte message hash): the order of everything."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page of ``Query``, already validated (see ``store.domain.query``).

    ``hashes`` set: look-up by hash (deduplicated, 32 bytes each), else by filter and time.
    ``after``: exclusive position to go on from, in the direction of ``forward``.
    """

    filter: TopicFilter
    hashes: tuple[bytes, ...] | None
    time_start_ns: int  # inclusive
    time_end_ns: int  # exclusive
    after: SyncId | None
    forward: bool
    limit: int
    include_data: bool


@dataclass(frozen=True, slots=True)
class QueryPage:
    """``entries``: encoded ``StoreQueryResponse.messages`` (field 20), ascending, spliced."""

    entries: bytes
    count: int
    next_cursor: bytes | None  # hash to go on from; None: no further match


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A whole time range in ascending SyncID order."""

    filter: TopicFilter
    time_start_ns: int
    time_end_ns: int
    after: SyncId | None
    include_data: bool
    page_size: int  # messages per page; 0: the node's choice


@dataclass(frozen=True, slots=True)
class FramesPage:
    """``frames``: encoded entries of field 1, spliced; ``last``: where to go on from."""

    frames: bytes
    count: int
    last: SyncId


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """``cursor`` None: from the beginning or, by default, only what comes from now on."""

    filter: TopicFilter
    cursor: FollowCursor | None
    from_beginning: bool
    include_data: bool


@dataclass(frozen=True, slots=True)
class FollowPage:
    """One page of the feed; ``cursor`` resumes right after it."""

    frames: bytes
    count: int
    cursor: FollowCursor
    live: bool


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """A message for the followers that are live on this node now; never stored."""

    topic_key: bytes
    pubsub_topic: str
    content_topic: str
    frame: bytes
    message_hash: bytes


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """``sds.v1.HistoryEntry`` as claims of its sender: ID as UTF-8 bytes, hint or None."""

    message_id: bytes
    retrieval_hint: bytes | None = None


@dataclass(frozen=True, slots=True)
class SdsLookup:
    """``GetSdsMessages`` after validation."""

    channel_id: bytes
    entries: tuple[HistoryEntry, ...]
    filter: TopicFilter
    claimants: int = MAX_SDS_CLAIMANTS  # returned for one ID


@dataclass(frozen=True, slots=True)
class CausalRequest:
    """``GetCausalHistory`` after validation; limits are already clamped to the node's."""

    channel_id: bytes
    heads: tuple[HistoryEntry, ...]
    known_ids: frozenset[bytes]
    max_messages: int
    max_depth: int  # 0: unlimited
    filter: TopicFilter
    claimants: int = MAX_SDS_CLAIMANTS  # taken for one ID


@dataclass(frozen=True, slots=True)
class SdsPage:
    """``messages``: encoded ``SdsStoredMessage`` entries (field 1 of the page), spliced."""

    messages: bytes
    count: int
    missing: tuple[HistoryEntry, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """What the database holds, for ``Admin.GetStatus`` and the metrics."""

    store_id: bytes
    messages: int
    oldest_timestamp_ns: int  # 0: none held
    newest_timestamp_ns: int
    horizon_ns: int


class Writer(Protocol):
    """The door into the database."""

    async def store(self, batch: RecordBatch, source: Source) -> Sequence[bool]:
        """Store a batch durably; per record True if it is new, False if it was held already.

        Returns only after the commit. Concurrent calls are grouped into shared transactions.
        """
        ...


class Reader(Protocol):
    """Reads by hash and by time."""

    async def position(self, message_hash: bytes, rights: TopicRights) -> SyncId | None:
        """Position of a message by hash, also for a while after it was pruned; None: unknown."""
        ...

    async def query(self, request: PageRequest) -> QueryPage:
        """One page."""
        ...

    def scan(self, request: ScanRequest) -> AsyncIterator[FramesPage]:
        """Every match in ascending order, a page at a time; no transaction outlives a page."""
        ...

    async def summary(self) -> StoreSummary:
        """What is held (the count may be a few seconds old)."""
        ...


class Feed(Protocol):
    """Messages in commit order."""

    def follow(self, request: FollowRequest) -> AsyncIterator[FollowPage]:
        """The backlog from a cursor on, then live. The first page comes at once.

        Raises :class:`CursorOutOfRange`.
        """
        ...

    def announce_ephemeral(self, messages: Sequence[Ephemeral]) -> None:
        """Hand messages to the live followers of this node, at most once."""
        ...


class SdsReader(Protocol):
    """Reads by SDS message ID."""

    def messages(self, request: SdsLookup) -> AsyncIterator[SdsPage]:
        """Every claimant of each ID (at most 16 per ID), and the entries that are missing."""
        ...

    def causal_history(self, request: CausalRequest) -> AsyncIterator[SdsPage]:
        """The causal past of the heads, every parent before its children."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that ``store.rpc`` needs from the rest of the node."""

    writer: Writer
    reader: Reader
    feed: Feed
    sds: SdsReader
