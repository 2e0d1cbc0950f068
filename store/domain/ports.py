"""The node's services as protocols and plain data, independent of gRPC and Postgres.

``store.rpc`` calls these, ``store.db`` implements them, ``store.runtime`` joins the two.
Message bytes travel as *frames* (see ``messages.record``): field 1 of a page, holding one
``WakuMessageKeyValue``, spliced and never decoded.

Errors that any method may raise: :class:`StoreUnavailable` (the database cannot be reached now;
retry with backoff), :class:`StoreBusy` (a bounded queue is full).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from reconcile.ids import SyncIds
from store.messages.conflicts import StoreResult
from store.messages.cursor import FollowCursor, FollowCursors
from store.messages.record import RecordBatch
from storenode.message.limits import MAX_SDS_CLAIMANTS, MAX_TIMESTAMP_NS


class Equality(StrEnum):
    """The way in which a session has compared the two sides.

    XOR: by the fingerprints of WAKU-SYNC, which publishers can forge. KEYED: by lattice sums over
    contents, which cannot be forged. PARTLY_KEYED: by these from some time on.
    """

    UNKNOWN = ""
    XOR = "xor"
    KEYED = "keyed"
    PARTLY_KEYED = "partly keyed"


@dataclass(frozen=True, slots=True)
class Hidden:
    """Differences that the fingerprints of WAKU-SYNC did not show: forged, or a fault.

    ``hashes``: some of their messages, few enough for a log. Times in Unix nanoseconds.
    """

    count: int
    first_ns: int
    last_ns: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ContentConflict:
    """A message hash under which two stores hold different contents, by content digests."""

    timestamp: int
    message_hash: bytes
    own_digest: bytes
    peer_digest: bytes


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


class StoreUnavailable(Exception):
    """The database cannot be reached or refuses to serve; the caller may retry with backoff."""


class StoreBusy(Exception):
    """A bounded queue or pool is full; the caller may retry with backoff."""


class CursorOutOfRange(Exception):
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


SyncId = tuple[int, bytes]
"""(timestamp in nanoseconds, 32-byte message hash): the order of everything."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A page of ``Query``, already validated (see ``store.domain.query``).

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
    next_ns: int | None = None  # its timestamp, where the page was read by time


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
    """``frames``: encoded entries of field 1, spliced; ``last``: where to go on from.

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
    """``GetSdsMessages`` after validation."""

    channel_id: bytes
    entries: tuple[HistoryEntry, ...]
    filter: TopicFilter
    claimants: int = MAX_SDS_CLAIMANTS  # returned for one ID
    prefer_proven: bool = False


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
    prefer_proven: bool = False


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


class Reader(Protocol):
    """Reads by hash and by time."""

    async def position(self, message_hash: bytes, rights: TopicRights) -> SyncId | None:
        """Return the position of a message, also for a while after it was pruned; None: unknown."""

    async def query(self, request: PageRequest) -> QueryPage:
        """Return one page."""

    def scan(self, request: ScanRequest, outlet: Outlet) -> AsyncIterator[FramesPage]:
        """Yield the matches in ascending order, by pages; no transaction outlives a page."""

    async def summary(self) -> StoreSummary:
        """Return what is held (the count may be a few seconds old)."""


class Feed(Protocol):
    """Messages in commit order."""

    def follow(self, request: FollowRequest, outlet: Outlet) -> AsyncIterator[FollowPage]:
        """Yield the backlog from a cursor on, then live. The first page comes at once.

        Raises :class:`CursorOutOfRange`.
        """

    def announce_ephemeral(self, messages: Sequence[Ephemeral]) -> None:
        """Send messages to the live followers of this node, at most once."""


class SdsLookups(Protocol):
    """Reads by SDS message ID."""

    async def doubtful(
        self, request: SdsLookup
    ) -> tuple[Sequence[HistoryEntry], Sequence[HistoryEntry]]:
        """Return missing entries, and those whose ID could be a proof and proves nothing here."""


class SdsReader(SdsLookups, Protocol):
    """Reads by SDS message ID, and by what a message follows from."""

    def messages(self, request: SdsLookup, outlet: Outlet) -> AsyncIterator[SdsPage]:
        """Yield claimants of each ID, ``request.claimants`` at most, and missing entries."""

    def causal_history(self, request: CausalRequest, outlet: Outlet) -> AsyncIterator[SdsPage]:
        """Yield the causal past of the heads, every parent before its children."""


@dataclass(frozen=True, slots=True)
class Services:
    """The collection of all that ``store.rpc`` needs from the rest of the node."""

    writer: Writer
    reader: Reader
    feed: Feed
    sds: SdsReader
    cursors: FollowCursors


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


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open range of time in Unix nanoseconds; by default all of it."""

    time_start_ns: int = 0
    time_end_ns: int = MAX_TIMESTAMP_NS


class SyncRole(StrEnum):
    """The side that began a session (label ``role`` of the metrics)."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


class SyncEnding(StrEnum):
    """The end of a session (label ``outcome`` of the metrics).

    DONE: both sides completed it. ABORTED: another session with this peer went before it, which is
    no error. REFUSED: one of the two does not reconcile. FAILED: it broke. UNAVAILABLE: the
    database of this node did not serve.
    """

    DONE = "done"
    ABORTED = "aborted"
    REFUSED = "refused"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """The result of a session with a peer, on one side.

    ``in_sync``: both sides hold the same set over the window now, but for what lies below a
    horizon or is refused by policy (then ``notes`` say so). ``round_trips``: payloads sent by the
    initiator. Bytes are those of reconciliation payloads. ``messages_sent``: what the peer answered
    as stored. ``error``: one sentence, empty for DONE and ABORTED. ``differences``:
    ``missing_here`` (IDs that only the peer held) and ``missing_there`` together.
    ``undelivered``: messages that the peer promised and did not deliver, ``unsolicited`` ones
    that it sent unasked. ``left_over``: a limit was reached, and the next session goes on; then
    ``middle_ns`` is the median of the timestamps of what was found.
    ``own_count`` and ``peer_count``: IDs over the window, None where unknown. ``keyed_from_ns``:
    from here on lattice sums were compared; None: nowhere. ``compact``: the differences were found
    in the compact mode. ``conflicts``: hashes with different contents on the two sides.
    """

    in_sync: bool = False
    round_trips: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    seconds: float = 0.0
    error: str = ""
    peer_node_id: str = ""
    differences: int = 0
    refused_by_policy: int = 0
    undelivered: int = 0
    left_over: bool = False
    middle_ns: int = 0
    notes: tuple[str, ...] = ()
    ending: SyncEnding = SyncEnding.DONE
    missing_here: int = 0
    missing_there: int = 0
    unsolicited: int = 0
    own_count: int | None = None
    peer_count: int | None = None
    equality: Equality = Equality.UNKNOWN
    keyed_from_ns: int | None = None
    hidden: Hidden | None = None
    compact: bool = False
    conflicts: int = 0
    shown_conflicts: tuple[ContentConflict, ...] = ()


class PeerFailed(Exception):
    """A call of a peer failed; one sentence. Another peer, or a later attempt, may do better."""


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """A page of a peer's scan of a time range: encoded ``WakuMessageAndTopic``, at least one.

    ``hashes`` are theirs as the peer names them. ``cursor`` goes on after the page at this peer;
    empty: it gave none. ``reached_ns`` is the timestamp of the last message.
    """

    messages: list[bytes]
    hashes: list[bytes]
    cursor: bytes
    reached_ns: int


class PeerCaller(Protocol):
    """Calls other store nodes."""

    async def synchronize(self, peer: PeerAddress, window: Window) -> SyncOutcome:
        """Reconcile the window with a peer, then transfer what either side lacks.

        Never raises for what a peer does: the outcome says it. Cancelling it ends the session.
        """

    def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """Yield what a peer holds of a time range.

        The call goes on until the generator is closed. ``cursor`` is one that this peer has sent;
        an empty one begins at the start.

        Raises:
            PeerFailed: the call failed.
            CursorOutOfRange: the peer does not serve this cursor.
        """

    def lookup(
        self, peer: PeerAddress, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield what a peer holds of some SDS messages: pages of encoded ``WakuMessageAndTopic``.

        Raises:
            PeerFailed: the call failed, or the peer does not keep to its rules.
        """

    def connected(self, peer: PeerAddress) -> bool:
        """Return True while there is a connection to the peer."""

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID of a peer's last answer; until then the configured one, or ""."""


class SyncObserver(Protocol):
    """An observer of sessions of either role; must not block or raise."""

    def session_ended(
        self, role: SyncRole, peer_node_id: str, peer_store_id: str, outcome: SyncOutcome
    ) -> None:
        """Note that a session ended."""

    def transferred(self, direction: str, outcome: str, count: int) -> None:
        """Count messages of a transfer: ``sent`` or ``received``, with their outcome."""

    def sync_bytes(self, direction: str, count: int) -> None:
        """Count bytes of reconciliation payloads: ``sent`` or ``received``."""


class TransferReads(Protocol):
    """Messages by ID, for a transfer to a peer."""

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return encoded ``WakuMessageAndTopic`` of the first IDs: as many as fit, at least one.

        None stands for a message that is not held any more. ``ids`` ascend. Fewer than are asked
        for come also where there are very many; the rest is asked for again.
        """

    async def are_stored(self, ids: SyncIds) -> list[bool]:
        """Return for each of ascending IDs if the message is stored."""


@dataclass(frozen=True, slots=True)
class SyncDone:
    """A session that ended: with whom, over what, how."""

    peer: PeerAddress
    window: Window
    outcome: SyncOutcome


@dataclass(frozen=True, slots=True)
class FetchDone:
    """The outcome of each entry that a peer was asked for, and of what came.

    ``already_stored`` here; ``found`` at the peer, and stored here now; ``missing`` there;
    ``refused`` by the rules that ``notes`` name. ``error``: why it was not asked to the end.
    """

    peer: PeerAddress
    already_stored: tuple[HistoryEntry, ...] = ()
    found: tuple[HistoryEntry, ...] = ()
    missing: tuple[HistoryEntry, ...] = ()
    refused: tuple[HistoryEntry, ...] = ()
    stored: int = 0
    notes: tuple[str, ...] = ()
    error: str = ""


class UnknownPeer(Exception):
    """The peer that was asked for is not configured; the sentence names those that are."""


class EmptyWindow(Exception):
    """A window that contains no time; the sentence says which bound to give."""


class NoPeers(Exception):
    """A node without peers; the sentence says how to configure some."""


@dataclass(slots=True)
class PeerState:
    """The state of a configured peer; times in Unix nanoseconds, 0: never.

    ``lacks`` and ``has``: messages that the peer, and this node, were left without by the last
    session that found out, as far as either is known.
    """

    address: str
    node_id: str
    store_id: str = ""
    connected: bool = False
    in_session: bool = False
    last_sync_ns: int = 0
    last: SyncDone | None = None
    last_error: str = ""
    failures: int = 0
    lacks: int = 0
    has: int = 0


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The progress of the resume at the start; times in Unix nanoseconds."""

    running: bool
    time_start_ns: int
    time_end_ns: int
    reached_ns: int
    messages: int
    stored: int
    error: str
    peers: tuple[str, ...] = ()
    """The peers that it came from, as configured."""


class CallFailed(PeerFailed):
    """A call ended with an error; one sentence for the operator.

    ``aborted``: the peer lets another session go first.
    """

    aborted = False


class FrameStream(Protocol):
    """Frames to and from a peer; one reader and one writer at a time.

    Every method raises `PeerFailed` when the call has failed.
    """

    async def read(self) -> bytes | None:
        """Return the next frame; None after the last."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other side does not read."""

    async def half_close(self) -> None:
        """End this side's direction; a callee does so by ending the call."""


class Named(Protocol):
    """The node that answers a call."""

    @property
    def node_id(self) -> str:
        """The ID of the node."""

    @property
    def store_id(self) -> str:
        """The ID of its database."""


class Connector(Protocol):
    """Makes calls of peers."""

    def call(
        self, peer: PeerAddress, method: str, identified: Callable[[Named], None]
    ) -> AbstractAsyncContextManager[FrameStream]:
        """Begin a call with a stream each way; it is cancelled at the end if it still goes on.

        ``method`` is the full name, as in ``/storenode.v1.Peer/Reconcile``. ``identified`` receives
        the callee before a frame is read: a callee may give its names with its first answer only,
        when frames have been sent.

        Raises:
            CallFailed: as the methods of the stream do; the callee does not say in time who it
                is, or is not who it should be.
        """

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID of a peer's last answer; until then the configured one, or ""."""
