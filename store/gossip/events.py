"""The frames and effects of `store.gossip.machine.Gossip`: plain batches.

Frames are those of the wire, except for messages that came, which are judged first (`Bodies`).

A *peer* is another node with which there is a stream of frames each way, named by whatever names
it for good (its node ID); a *store* is the database behind nodes. An *ID* is a message hash of 32
bytes. It does not determine the content, which the content digest of 16 bytes does: what a peer has
under an ID with another digest is a conflict. All times are nanoseconds of a clock that never
jumps; ages are differences of such times.

A driver gives the machine, by the methods of `Gossip`:

1. Before the first `join`: `commit` with the newest messages (oldest first, ``fresh`` False), then
   `restore` with the unread events; and `restore` again now and then, since other nodes on the
   database add to them.
2. `commit` for all that is new in the database, by any node. A batch may be given twice.
3. `want` when a client wants confirmations of messages that were stored before, once their unread
   rows are durable.
4. Frames as they come, with bodies that admission has judged (`Bodies`), and `wait` when
   `Gossip.next_wake_ns` is due.
5. `sent` when the stream has taken the frame of a `WriteFrame`, and for a `LoadBodies`, `LookUp` or
   `PersistBatch` its answer or `failed`, in any order.

It writes `Confirm` and `Expire` to the database in this order, late, together or twice as it
happens, and again where that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from storenode.wire.storenode.v1.peer_pb2 import Inventory

# Frames


@dataclass(frozen=True, slots=True)
class Bodies:
    """Messages that came, as admission has judged them.

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


def frame_of(
    kind: Literal["inv", "get_events", "sync_leaves"],
    ids: Iterable[bytes],
    content_digests: Iterable[bytes] = (),
) -> RawGossipFrame:
    """Return a frame with IDs."""
    frame = RawGossipFrame()
    getattr(frame, kind).CopyFrom(Inventory(ids=ids, content_digests=content_digests))
    return frame


def listed(frame: RawGossipFrame) -> Inventory:
    """Return the IDs of a frame without bodies."""
    found: Inventory = getattr(frame, frame.WhichOneof("kind") or "inv")
    return found


FrameIn = Bodies | RawGossipFrame
"""A frame that came. Of one with IDs, each has 32 bytes, and there are as many digests or none."""


# Messages


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
    are joined, only to those who join. ``content_digests``: of each message, empty where it is not
    known; or none at all. ``published``: those that clients of this node published, which are
    pushed, each with the number of confirmations that it needs.
    """

    ids: Sequence[bytes]
    events: Sequence[GraphEvent] = ()
    fresh: bool = True
    content_digests: Sequence[bytes] = ()
    published: Mapping[bytes, int] = field(default_factory=dict)


# Effects


@dataclass(frozen=True, slots=True)
class WriteFrame:
    """Write a frame to a peer's stream, then call `Gossip.sent`; one at a time is under way."""

    peer: str
    frame: RawGossipFrame


@dataclass(frozen=True, slots=True)
class Listen:
    """Read from a peer's stream, or leave its frames there. A peer that joins is read from."""

    peer: str
    reading: bool


@dataclass(frozen=True, slots=True)
class PersistBatch:
    """Store a batch durably (`Source.GOSSIP`); several may be under way."""

    token: int
    batch: RecordBatch

    @property
    def ids(self) -> Sequence[bytes]:
        """The hashes of the messages."""
        return self.batch.hashes


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
    answer to `Gossip.want`.
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
    """End the stream of a peer, which has left the machine; ``reason`` is one sentence for it."""

    peer: str
    until_ns: int
    reason: str


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


Count = Callable[[GossipCounter, int, str], None]
"""Increments a counter by a number; the last argument is the label of a refusal, or empty."""

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
)
