"""The inputs and effects of `store.gossip.machine.Gossip`: plain batches.

A *peer* is another node with which there is a stream of frames each way, named by whatever names
it for good (its node ID); a *store* is the database behind nodes. An *ID* is a message hash of 32
bytes. It does not determine the content, which the content digest of 16 bytes does: what a peer has
under an ID with another digest is a conflict. All times are nanoseconds of a clock that never
jumps; ages are differences of such times.

A driver gives the machine:

1. Before the first `PeerJoined`: `Committed` with the newest messages (oldest first, ``fresh``
   False), then `Restored` with the unread events; and `Restored` again now and then, since other
   nodes on the database add to them.
2. `Committed` for all that is new in the database, by any node. A batch may be given twice.
3. `ConfirmationsWanted` when a client wants confirmations of messages that were stored before, once
   their unread rows are durable.
4. Frames as they come, with bodies that admission has judged (`Bodies`), and `TimerDue` when
   `Gossip.next_wake_ns` is due.
5. `FrameSent` when the stream has taken the frame of a `WriteFrame`, and for a `LoadBodies`,
   `LookUp` or `PersistBatch` its answer or `Failed`, in any order.

It writes `Confirm` and `Expire` to the database in this order, late, together or twice as it
happens, and again where that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from store.domain.unread import UnreadEvent
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch

# Frames


@dataclass(frozen=True, slots=True)
class Inventory:
    """``GossipFrame.inv``: the sender itself holds these durably.

    ``content_digests``: of each message, empty where it is not known; or none at all.
    """

    ids: Sequence[bytes]
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class GetEvents:
    """``GossipFrame.get_events``: the sender wants the bodies of these."""

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class SyncLeaves:
    """``GossipFrame.sync_leaves``: the sender's newest leaves, newest first.

    ``rest_xor`` (32 bytes) and ``rest_count`` stand for the leaves beyond those listed; a frame
    without them has ``bytes(32)`` and 0. ``content_digests``: as in `Inventory`.
    """

    ids: Sequence[bytes]
    rest_xor: bytes = bytes(32)
    rest_count: int = 0
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class OutgoingBodies:
    """``GossipFrame.events`` to send: encoded ``WakuMessageAndTopic``."""

    messages: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Bodies:
    """``GossipFrame.events`` that came, as admission has judged it.

    ``batch``: what is accepted, each message once, with its SDS metadata. ``refused``: (ID, label
    of the reason) of what is not; the ID is empty where it cannot be computed. ``size_bytes``: of
    the frame as it came.
    """

    batch: RecordBatch
    refused: Sequence[tuple[bytes, str]]
    size_bytes: int


def with_contents(
    ids: Sequence[bytes], content_digests: Sequence[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each ID with its content digest, which is empty where none are given."""
    return zip(ids, content_digests or [b""] * len(ids), strict=True)


FrameIn = Bodies | Inventory | GetEvents | SyncLeaves
FrameOut = OutgoingBodies | Inventory | GetEvents | SyncLeaves


# Inputs


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A new stream with a peer. It replaces an earlier one."""

    peer: str
    store_id: str


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The stream has ended, for whatever reason; nothing to do for a peer that is not joined."""

    peer: str


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame of a peer; passed over if it is not joined (any more)."""

    peer: str
    frame: FrameIn


@dataclass(frozen=True, slots=True)
class FrameRejected:
    """A frame of a peer that cannot be read; ``reason`` is one sentence for the peer."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class FrameSent:
    """The stream has taken the frame of a `WriteFrame`; ignored if the peer is not joined."""

    peer: str


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """A message with SDS metadata: its time, and the hints in its causal history (32 bytes each).

    `store.gossip.graph.graph_events` makes these of a `RecordBatch`.
    """

    id: bytes
    timestamp_ns: int
    parents: tuple[bytes, ...]
    content_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Committed:
    """Messages are durable. ``events`` describes those of them that have SDS metadata.

    ``fresh`` False: they have been for a while (at the start), and are not announced to those who
    are joined, only to those who join. ``content_digests``: as in `Inventory`.
    ``published``: those that clients of this node published, which are pushed, each with the number
    of confirmations that it needs.
    """

    ids: Sequence[bytes]
    events: Sequence[GraphEvent] = ()
    fresh: bool = True
    content_digests: Sequence[bytes] = ()
    published: Mapping[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfirmationsWanted:
    """A publisher's request for so many confirmations of messages that are stored."""

    ids: Sequence[bytes]
    min_confirms: int
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """Unread events of the database, at the start and later; merged with what is known."""

    unread: Sequence[UnreadEvent]


@dataclass(frozen=True, slots=True)
class Settled:
    """The removal of unread events by another node on this database."""

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class BatchPersisted:
    """The batch of the `PersistBatch` with this token is durable; per message True if it was new.

    ``conflicts``: the content digests of stored messages that differ from those of the batch, by
    place in the batch.
    """

    token: int
    new: Sequence[bool]
    conflicts: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BodiesLoaded:
    """The answer to a `LoadBodies`: encoded ``WakuMessageAndTopic`` of its first IDs, in order.

    At least one, None for messages that are not stored; the others are asked for again.
    """

    token: int
    messages: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Known:
    """The answer to a `LookUp`: True for each ID that is stored.

    ``content_digests``: as in `Inventory`.
    """

    token: int
    is_stored: Sequence[bool]
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The database failed on a `PersistBatch`, `LoadBodies` or `LookUp`.

    The machine asks again after a while, and gives up in the end what cannot be stored.
    """

    token: int


@dataclass(frozen=True, slots=True)
class TimerDue:
    """Time has passed."""


Input = (
    PeerJoined
    | PeerLeft
    | FrameReceived
    | FrameRejected
    | FrameSent
    | Committed
    | ConfirmationsWanted
    | Restored
    | Settled
    | BatchPersisted
    | BodiesLoaded
    | Known
    | Failed
    | TimerDue
)


# Effects


@dataclass(frozen=True, slots=True)
class WriteFrame:
    """Write a frame to a peer's stream, then say `FrameSent`; one at a time is under way."""

    peer: str
    frame: FrameOut


@dataclass(frozen=True, slots=True)
class Listen:
    """Read from a peer's stream, or leave its frames there. A peer that joins is read from."""

    peer: str
    reading: bool


@dataclass(frozen=True, slots=True)
class PersistBatch:
    """Store a batch durably (`Source.GOSSIP`); several may be under way."""

    token: int
    peer: str
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class LoadBodies:
    """Read messages in order, up to ``max_bytes`` but one at least, for a peer."""

    token: int
    ids: Sequence[bytes]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look which of these are held, now."""

    token: int
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Confirm:
    """A store has confirmed unread events; ``counts[i]`` stores have confirmed ``ids[i]`` now.

    To be kept durably, by (ID, store), in which each pair counts once. May be said again, as an
    answer to `ConfirmationsWanted`.
    """

    store_id: str
    ids: Sequence[bytes]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Read:
    """The events that have enough confirmations, as far as this node has received.

    They are no longer unread, unless the database requires more: another node on it may have a
    publisher who wants that.
    """

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Expire:
    """The events that no longer wait for confirmations: too old, or too many of them."""

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class CutOff:
    """End the stream, and turn the peer away until then; ``reason`` is one sentence for it.

    The peer has left, as far as the machine is concerned. ``fault`` False: it did nothing wrong
    (its store is this node's own, or there are too many peers).
    """

    peer: str
    until_ns: int
    reason: str
    fault: bool = True


@dataclass(frozen=True, slots=True)
class Conflicting:
    """A peer has another message than this node under one hash."""

    peer: str
    conflict: Conflict


class GossipCounter(StrEnum):
    """A counter (label of the metrics)."""

    BODIES_PUSHED = "bodies_pushed"
    BODIES_ANSWERED = "bodies_answered"
    BODIES_RECEIVED = "bodies_received"
    BODIES_REPEATED = "bodies_repeated"
    BYTES_SENT = "bytes_sent"
    BYTES_RECEIVED = "bytes_received"
    IDS_SENT = "ids_sent"
    IDS_RECEIVED = "ids_received"
    IDS_ASKED = "ids_asked"
    IDS_UNANNOUNCED = "ids_unannounced"
    IDS_DROPPED = "ids_dropped"
    UNDELIVERED = "undelivered"
    CONFIRMATIONS = "confirmations"
    REFUSED = "refused"
    SLOWED = "slowed"
    CUT_OFF = "cut_off"
    CONFLICTS = "conflicts"


@dataclass(frozen=True, slots=True)
class GossipCount:
    """An increment of a counter; ``reason`` is the label of a refusal."""

    what: GossipCounter
    count: int
    reason: str = ""


Effect = (
    WriteFrame
    | Listen
    | PersistBatch
    | LoadBodies
    | LookUp
    | Confirm
    | Read
    | Expire
    | CutOff
    | Conflicting
    | GossipCount
)
