"""Requests and results of the database, and protocols between rooms, without gRPC and Postgres.

Message bytes travel as *frames* (see ``messages.record``): field 1 of a page, holding one
``WakuMessageKeyValue``, spliced and never decoded.

Any method may raise `NotServingError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from reconcile.ids import SyncId
from store.messages.conflicts import StoreResult
from store.messages.cursor import FollowCursor
from store.messages.record import RecordBatch
from storenode.message.limits import MAX_CAUSAL_MESSAGES, MAX_SDS_CLAIMANTS


class Room(Protocol):
    """Memory for one page of ``size_bytes``."""

    @property
    def size_bytes(self) -> int:
        """The largest size of the page, unless one message alone is larger."""

    def fit(self, page_bytes: int, beside_bytes: int = 0) -> None:
        """Reduce the reservation to a page of this size and ``beside_bytes`` of the call."""

    def close(self) -> None:
        """Release the memory: the page was sent, or is not sent; once more does nothing."""


class Outlet(Protocol):
    """The destination of the pages of an answer, at the pace of its reader.

    Calls wait by turns of ``caller`` and ``connection``. An error that is raised here ends the
    call: the node has no room for its reader.
    """

    @property
    def caller(self) -> str:
        """The name of the caller."""

    @property
    def connection(self) -> str:
        """The connection of the call."""

    async def room(self, most_bytes: int) -> Room:
        """Wait for room for a page of ``most_bytes`` or less."""

    def spare_room(self, most_bytes: int) -> Room | None:
        """Return room for reading a page in advance; None while there is little."""


class NotServingError(Exception):
    """The database does not serve now; the caller may retry with backoff."""


class StoreUnavailableError(NotServingError):
    """The database cannot be reached or refuses to serve."""


class StoreBusyError(NotServingError):
    """A bounded queue or pool is full."""


class CursorOutOfRangeError(Exception):
    """A readable cursor that this database cannot serve: another store, or commits were lost."""


class Source(StrEnum):
    """The place where a message came from (label ``source`` of the metrics)."""

    CLIENT = "client"
    RELAY = "relay"
    NWAKU = "nwaku"
    TRANSFER = "transfer"
    GOSSIP = "gossip"
    RESUME = "resume"
    RESTORE = "restore"


PUBLISHED: Final = frozenset({Source.CLIENT, Source.RELAY, Source.NWAKU})
"""The sources of what clients publish; `RELAY` and `NWAKU` take the right `backfill`."""


@dataclass(frozen=True, slots=True)
class TopicRights:
    """The topics that a caller may see: prefixes of pubsub and content topics.

    An empty tuple allows every topic of its kind; both empty is the unrestricted caller.
    """

    pubsub_prefixes: tuple[str, ...] = ()
    content_prefixes: tuple[str, ...] = ()

    @property
    def unrestricted(self) -> bool:
        """True when every topic is allowed."""
        return not self.pubsub_prefixes and not self.content_prefixes

    def allows(self, pubsub_topic: str, content_topic: str) -> bool:
        """Return True if both topics start with an allowed prefix."""
        return (not self.pubsub_prefixes or pubsub_topic.startswith(self.pubsub_prefixes)) and (
            not self.content_prefixes or content_topic.startswith(self.content_prefixes)
        )


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Topics asked for; None and () mean "any". Rights are applied on top of it."""

    pubsub_topic: str | None = None
    content_topics: tuple[str, ...] = ()
    rights: TopicRights = field(default_factory=TopicRights)

    @property
    def everything(self) -> bool:
        """True when it lets every message through."""
        return self.pubsub_topic is None and not self.content_topics and self.rights.unrestricted

    def matches(self, pubsub_topic: str, content_topic: str) -> bool:
        """Return True if a message on these topics is asked for and may be seen."""
        return (
            (self.pubsub_topic is None or pubsub_topic == self.pubsub_topic)
            and (not self.content_topics or content_topic in self.content_topics)
            and self.rights.allows(pubsub_topic, content_topic)
        )


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A page of ``Query`` or all of ``Scan``, already validated (see ``store.domain.query``).

    ``hashes`` set: lookup by hash (deduplicated, 32 bytes each), else by filter and time.
    ``after``: exclusive position to continue from, in the direction of ``forward``.
    """

    filter: TopicFilter
    hashes: tuple[bytes, ...] | None
    time_start_ns: int  # inclusive
    time_end_ns: int  # exclusive
    after: SyncId | None
    forward: bool
    limit: int  # messages of a page; 0: the node's choice
    include_data: bool


@dataclass(frozen=True, slots=True)
class QueryPage:
    """``entries``: encoded ``StoreQueryResponse.messages`` (field 20), ascending, spliced."""

    entries: bytes
    count: int
    next_cursor: bytes | None  # hash to continue from; None: no further match
    next_ns: int | None = None  # its timestamp, where the page was read by time


@dataclass(frozen=True, slots=True)
class FramesPage:
    """``frames``: encoded entries of field 1, spliced; ``last``: where to continue from.

    ``timestamps`` are those of the frames.
    """

    frames: bytes
    timestamps: Sequence[int]
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
    """A page of the feed; ``cursor`` resumes right after it."""

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
    """``GetSdsMessages`` after validation; each entry is there once."""

    channel_id: bytes
    entries: tuple[HistoryEntry, ...]
    filter: TopicFilter
    claimants: int = MAX_SDS_CLAIMANTS  # returned, or taken, for one ID
    prefer_proven: bool = False


@dataclass(frozen=True, slots=True)
class CausalRequest(SdsLookup):
    """``GetCausalHistory`` after validation: ``entries`` are the heads; limits are clamped."""

    known_ids: frozenset[bytes] = frozenset()
    max_messages: int = MAX_CAUSAL_MESSAGES
    max_depth: int = 0  # unlimited


@dataclass(frozen=True, slots=True)
class SdsPage:
    """``messages``: encoded ``SdsStoredMessage`` entries (field 1 of the page), spliced."""

    messages: bytes
    count: int
    missing: tuple[HistoryEntry, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """A summary of the stored messages, for ``Admin.GetStatus`` and the metrics."""

    store_id: bytes
    messages: int
    oldest_timestamp_ns: int  # 0: none held
    newest_timestamp_ns: int
    horizon_ns: int


class Writer(Protocol):
    """Writes to the database."""

    async def store(self, batch: RecordBatch, source: Source, min_confirms: int = 0) -> StoreResult:
        """Store a batch durably, and return the outcome of each record.

        Concurrent calls share transactions. ``min_confirms`` other stores are to confirm each
        message; with 0 the node's own rule holds for what is new.
        """


class SdsLookups(Protocol):
    """Reads by SDS message ID."""

    async def doubtful(
        self, request: SdsLookup
    ) -> tuple[Sequence[HistoryEntry], Sequence[HistoryEntry]]:
        """Return missing entries, and those whose ID could be a proof and proves nothing here."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The address where a peer is called: ``host`` is a name or an IP address without brackets.

    ``node_id``: the only node that may answer there; empty lets any.
    """

    host: str
    port: int
    node_id: str = ""

    @property
    def target(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.node_id}@{self.target}" if self.node_id else self.target


class PeerError(Exception):
    """A call of a peer failed; one sentence. Another peer, or a later attempt, may do better."""
