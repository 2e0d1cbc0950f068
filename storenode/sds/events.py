"""The events of a channel, as plain values, and the packets that it receives.

The events of one call are in the order in which they happened. `Connected`, `Disconnected`,
`NotStored` and `Repaired` are those of a participant with a network.
"""

from dataclasses import dataclass
from enum import Enum

from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, MessageKind
from storenode.sds.log import Key


@dataclass(frozen=True, slots=True)
class Packet:
    """Bytes that came from the channel, and the hint under which they can be retrieved."""

    payload: bytes
    hint: bytes | None = None


class BroadcastReason(Enum):
    """The reason of a broadcast."""

    CONTENT = "content"
    RESEND = "resend"
    SYNC = "sync"
    EPHEMERAL = "ephemeral"
    REPAIR = "repair"


class PacketRefusal(Enum):
    """The reason why a packet was not accepted."""

    MALFORMED = "malformed"
    FOREIGN = "foreign"
    BUFFER_FULL = "buffer full"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send these bytes to the channel. `MessageChannel.published` may follow, and need not.

    ``passes``: a store need not keep it. It is an ephemeral message, one that it holds, or a sync
    message that only says again what a former one has said.
    """

    payload: bytes
    message_id: str
    reason: BroadcastReason
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """The transport took an own message."""

    message_id: str
    hint: bytes | None


@dataclass(frozen=True, slots=True)
class Received:
    """A message came that was not known; what becomes of it follows."""

    message_id: str
    kind: MessageKind
    sender_id: str


class Signed(Enum):
    """The result of verifying a message's signature."""

    NO = "not signed"
    UNCHECKED = "unchecked"
    """The participant has no signer."""

    VALID = "valid"
    INVALID = "invalid"

    def __bool__(self) -> bool:
        return self is Signed.VALID


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the log, own ones included; as an event, one that was delivered.

    ``entries_after`` is how far from the end of the log it was put when it came: 0 is its end.
    Of those after it only the last 10,000 that came are counted: a much later one is placed by
    ``key``.
    ``unmet`` are causes that are not in the log: given up, part of a circle, or waiting again where
    a forged message was withdrawn. ``proof`` is of the ID; a message that is not proven leaves the
    log when the genuine one comes (`Withdrawn`). ``history`` are its causes.

    A participant with a network adds: ``published`` is False while no node stores an own message;
    ``readable`` is False, and ``content`` as it came, when the cipher could not open it.
    ``acknowledged_by`` is the first participant known to have an own message, as of when the log
    was read; None: none, or it is another's. The name may be empty. ``signature`` is the
    application's, and ``signed`` whether it is valid.
    """

    message_id: str
    sender_id: str
    lamport: int
    content: bytes
    hint: bytes | None = None
    entries_after: int = 0
    unmet: tuple[str, ...] = ()
    own: bool = False
    published: bool = True
    readable: bool = True
    acknowledged_by: str | None = None
    proof: Proof = Proof.NONE
    signature: bytes | None = None
    signed: Signed = Signed.NO
    history: tuple[Entry, ...] = ()

    @property
    def key(self) -> Key:
        """The position in the log."""
        return self.lamport, self.message_id

    @property
    def causes(self) -> tuple[str, ...]:
        """The IDs of the causal history."""
        return tuple([entry.message_id for entry in self.history])


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A message left the log, since its ID proves nothing and the genuine message of that ID came.

    That one is delivered next, or when its causes are there. ``lamport`` is where the other was.
    """

    message_id: str
    lamport: int


@dataclass(frozen=True, slots=True)
class Forged:
    """A message came under the ID of another one, and is not taken. All fields are its claims.

    ``certain`` is False where neither can be proven: then it is the later of the two.
    """

    message_id: str
    sender_id: str
    lamport: int
    content: bytes
    hint: bytes | None = None
    certain: bool = True


@dataclass(frozen=True, slots=True)
class EphemeralReceived:
    """Content that came without reliability; duplicates are not recognised."""

    message_id: str
    sender_id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class PossiblyAcknowledged:
    """Filters show an own message: in how many, and the probability that all are wrong."""

    message_id: str
    filters: int
    error_probability: float


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An own message arrived at a participant; certain (0.0) if a causal history named it.

    ``sender_id`` is whose message showed it. Others may have it too: a message
    that was named once is not named again.
    """

    message_id: str
    error_probability: float = 0.0
    sender_id: str = ""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """An own message was sent as often as allowed and was never acknowledged."""

    message_id: str
    sends: int


@dataclass(frozen=True, slots=True)
class MissingMessage:
    """A message to retrieve: by any hint, else by its ID. The sender may be unknown."""

    message_id: str
    hints: tuple[bytes, ...] = ()
    sender_id: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Dependencies that are neither in the log nor in the incoming buffer."""

    messages: tuple[MissingMessage, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Dependencies that were given up; what waited for them is delivered.

    ``early``: for want of room, before anybody can have answered. A search may still find them.
    """

    message_ids: tuple[str, ...]
    early: bool = False


@dataclass(frozen=True, slots=True)
class Behind:
    """A peer's filter shows ``at_least`` messages that we lack, with unknown IDs.

    Search for messages from ``since_ms`` (Unix time) on. ``searches`` counts these events for
    this peer; each reaches further back, the last to 0.
    """

    sender_id: str
    since_ms: int
    at_least: int
    searches: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A report that all that a peer's filters have shown is here, or missing by name."""

    sender_id: str


@dataclass(frozen=True, slots=True)
class RepairRequested:
    """An own message asks for these; ``carrier`` is its ID."""

    message_ids: tuple[str, ...]
    carrier: str


@dataclass(frozen=True, slots=True)
class RepairAnswered:
    """A message that others asked for is broadcast again, unless a store holds it."""

    message_id: str


@dataclass(frozen=True, slots=True)
class Recall:
    """A request for messages of the log, since others ask for them.

    Pass what is stored of them to `MessageChannel.recalled`; what a store node holds need not be
    sent again.
    """

    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClockCapped:
    """A received clock was further ahead than allowed; ours followed only to the bound."""

    message_id: str
    lamport: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A packet that was not taken and may come again; ``sentence`` says what is malformed."""

    reason: PacketRefusal
    message_id: str | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Connected:
    """A report that the feed of a node is read."""

    node: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A report that the feed of a node ended; another one is tried."""

    node: str
    sentence: str


@dataclass(frozen=True, slots=True)
class NotStored:
    """A report that no node stores an own message, for this reason.

    It stays in the log, and is sent again until it is acknowledged.
    """

    message_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """A round of repair: how many missing messages were asked for and came, in how many calls."""

    asked: int
    found: int
    calls: int


_Shown = (
    Sent
    | Received
    | Message
    | Withdrawn
    | Forged
    | EphemeralReceived
    | PossiblyAcknowledged
    | Acknowledged
    | GaveUp
    | Missing
    | Lost
    | Behind
    | CaughtUp
    | RepairRequested
    | RepairAnswered
    | ClockCapped
    | Refused
)
Event = Broadcast | Recall | _Shown
"""An event of a channel; the first two are addressed to the code around it."""

ChannelEvent = _Shown | Connected | Disconnected | NotStored | Repaired
"""An event of a participant with a network."""


@dataclass(slots=True)
class Counts:
    """The counters of a channel since it was made, for metrics."""

    received: int = 0
    duplicates: int = 0
    echoes: int = 0
    foreign: int = 0
    malformed: int = 0
    buffer_full: int = 0
    clocks_capped: int = 0
    filters_unreadable: int = 0
    lost: int = 0
    circles: int = 0
    repair_requests_ignored: int = 0
    forged: int = 0
    """Messages under the ID of another one, those included whose place the genuine one took."""
