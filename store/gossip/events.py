"""What goes into a `store.gossip.machine.Gossip` and what comes out: plain batches.

A *peer* is another node with which there is a stream of frames each way, named by whatever names
it for good (its node ID); a *store* is the database behind nodes. An *ID* is a message hash of 32
bytes. It does not determine the content, which the content digest of 16 bytes does: what a peer has
under an ID with another digest is a conflict. All times are nanoseconds of a clock that never
jumps; ages are differences of such times.

A driver gives the machine:

1. Before the first `PeerJoined`: `Committed` with the newest messages (oldest first, ``fresh``
   False), then `Restored` with the unread events; and `Restored` again now and then, since other
   nodes on the database add to them.
2. `Committed` for all that is new in the database, whoever stored it. A batch may be given twice.
3. `Publishing` before a client's batch is stored, so that its bodies are pushed; `Wanted` when a
   client wants confirmations of messages that were held, once their unread rows are durable.
4. Frames as they come, with bodies that admission has judged (`Bodies`), and `Tick` when
   `Gossip.next_wake_ns` is due.
5. `Sent` when the stream has taken the frame of a `Send`, and for a `Load`, `LookUp` or `Persist`
   its answer or `Failed`, in any order.

It writes `Confirm`, `Expire` and `Waiting` to the database in this order, late, together or twice
as it happens, and again where that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class Events:
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


FrameIn = Bodies | Inventory | GetEvents | SyncLeaves
FrameOut = Events | Inventory | GetEvents | SyncLeaves


# Inputs


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """There is a stream with a peer. One that is joined already has left before."""

    peer: str
    store_id: str


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The stream has ended, for whatever reason; nothing to do for a peer that is not joined."""

    peer: str


@dataclass(frozen=True, slots=True)
class Received:
    """A frame of a peer; passed over if it is not joined (any more)."""

    peer: str
    frame: FrameIn


@dataclass(frozen=True, slots=True)
class Sent:
    """The stream has taken the last frame of a `Send`; passed over if the peer is not joined."""

    peer: str


@dataclass(frozen=True, slots=True)
class Publishing:
    """Clients of this node are about to store these, and want so many confirmations.

    Holds for the next commit of each ID. Messages that turn out to be held, or are never stored,
    do no harm.
    """

    ids: Sequence[bytes]
    min_confirms: int = 0


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
    """

    ids: Sequence[bytes]
    events: Sequence[GraphEvent] = ()
    fresh: bool = True
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """These are held durably, and a publisher wants so many confirmations of each."""

    ids: Sequence[bytes]
    min_confirms: int
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """Unread events of the database, at the start and later; merged with what is known.

    One that needs no confirmations waits for parents only.
    """

    unread: Sequence[UnreadEvent]


@dataclass(frozen=True, slots=True)
class Settled:
    """Another node on this database has taken these out of the unread events."""

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Persisted:
    """The batch of the `Persist` with this token is durable; per message True if it was new.

    ``conflicts``: the content digests of stored messages that differ from those of the batch, by
    place in the batch.
    """

    token: int
    new: Sequence[bool]
    conflicts: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The answer to a `Load`: encoded ``WakuMessageAndTopic`` of its first IDs, in order.

    At least one, None for messages that are not held; the others are asked for again.
    """

    token: int
    messages: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Known:
    """The answer to a `LookUp`: True for each ID that is held.

    ``content_digests``: as in `Inventory`.
    """

    token: int
    held: Sequence[bool]
    content_digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The database could not do what a `Persist`, `Load` or `LookUp` asks for; nobody knows more.

    The machine asks again after a while, and gives up in the end what cannot be stored.
    """

    token: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Input = (
    PeerJoined
    | PeerLeft
    | Received
    | Sent
    | Publishing
    | Committed
    | Wanted
    | Restored
    | Settled
    | Persisted
    | Loaded
    | Known
    | Failed
    | Tick
)


# Effects


@dataclass(frozen=True, slots=True)
class Send:
    """Write a frame to a peer's stream, then say `Sent`; one at a time is under way."""

    peer: str
    frame: FrameOut


@dataclass(frozen=True, slots=True)
class Listen:
    """Read from a peer's stream, or leave its frames there. A peer that joins is read from."""

    peer: str
    reading: bool


@dataclass(frozen=True, slots=True)
class Persist:
    """Store a batch durably (`Source.GOSSIP`); several may be under way."""

    token: int
    peer: str
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class Load:
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
    answer to `Wanted`.
    """

    store_id: str
    ids: Sequence[bytes]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Read:
    """These have as many confirmations as they need, as far as this node knows.

    They are unread no longer, unless the database says that they need more: another node on it may
    have a publisher who wants that.
    """

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Expire:
    """These stay stored, but are unread no longer, unconfirmed: too old, or too many of them."""

    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event began to wait for parents (``missing``), or waits no longer (nothing is missing)."""

    id: bytes
    missing: Sequence[bytes]


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


class What(StrEnum):
    """What is counted (label of the metrics)."""

    BODIES_PUSHED = "bodies_pushed"
    BODIES_ANSWERED = "bodies_answered"
    BODIES_RECEIVED = "bodies_received"
    BODIES_REPEATED = "bodies_repeated"
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
class Counted:
    """Something to count; ``reason`` is the label of a refusal."""

    what: What
    count: int
    reason: str = ""


Effect = (
    Send
    | Listen
    | Persist
    | Load
    | LookUp
    | Confirm
    | Read
    | Expire
    | Waiting
    | CutOff
    | Conflicting
    | Counted
)


# Looking on


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A joined peer: ``slowed`` by its faults, ``reading`` from it, and what waits for it."""

    peer: str
    store_id: str
    slowed: bool
    reading: bool
    queued_ids: int
    announced_ids: int


@dataclass(frozen=True, slots=True)
class GossipStatus:
    """What an operator may see. ``cut_off``: (peer, until, reason)."""

    peers: Sequence[PeerStatus] = ()
    cut_off: Sequence[tuple[str, int, str]] = ()
    unread: int = 0
    waiting: int = 0
    wanted: int = 0
    seen: int = 0
