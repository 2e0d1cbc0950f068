"""The buffers: of incoming messages with unmet dependencies, and of unacknowledged outgoing ones.

**Incoming**: a dependency is unmet until it is in the log, or given up. It is *missing* while it is
not in this buffer either; being in the buffer does not meet it, for its own causes may be missing.
When a dependency is met, just the messages that wait for it are looked at.

| event                     | effect                                                              |
|---------------------------|---------------------------------------------------------------------|
| a message is added        | its unmet dependencies are waited for; the absent ones are missing  |
| ... that was missing      | it is missing no longer, and still unmet                            |
| a dependency is met       | who waited for it waits for one less; nothing left: ready           |
| one is missing too long   | it is lost, which unblocks like meeting it                          |
| too many are missing      | the oldest of the sender that names most of them are lost           |
| messages wait in a circle | the first of them in log order is made ready                        |

**Outgoing**: a message is unacknowledged, then possibly acknowledged (a filter shows it), then
acknowledged (a causal history names it, or enough filters show it) or given up; both last states
remove it.

| state        | in a history | in a filter                       | its period passes           |
|--------------|--------------|-----------------------------------|-----------------------------|
| unack.       | acknowledged | possibly ack. (or acknowledged)   | send again, or give up      |
| possibly ack.| acknowledged | one filter more, or acknowledged  | send again later, or give up|

Each message counts once as a witness, however often it comes. That several filters are wrong
about one ID is not a matter of independent chances: participants of one channel hold the same
IDs, so the same bits are set in all of them. The stated probability that an acknowledgement by
filters is wrong is therefore that of the best of them alone, which bounds that of all together.

Source: SDS, "Participant state", "Receive message", "Review ACK status", and both buffer sweeps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heapreplace, nsmallest
from math import inf

from storenode.sds.bloom import Probe, holds
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, SdsMessage, bytes_of, size_of
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Acknowledged, Event, GaveUp, MissingMessage, PossiblyAcknowledged
from storenode.sds.limits import MAX_HINTS_PER_MISSING, MAX_REQUEST_BYTES, MAX_WAITING_SYNCS
from storenode.sds.repair import request_delay_ms


@dataclass(slots=True)
class WaitingMessage:
    """A message that waits; sync messages wait too, and are dropped when they are ready.

    ``unmet`` are the IDs that it waits for; ``proof`` is of its ID, where that was looked at.
    """

    message: SdsMessage
    hint: bytes | None
    arrived_ms: int
    unmet: set[str]
    proof: Proof = Proof.NONE


@dataclass(slots=True)
class Want:
    """A missing message: since when, how to find it, and whose message named it first.

    The other participants are asked for it at ``request_ms`` (SDS-Repair). ``tries`` of those
    around the channel to fetch it have failed, and the next is at ``ask_ms``.
    """

    since_ms: int
    hints: list[bytes] = field(default_factory=list)
    sender_id: str | None = None
    named_by: str = ""
    request_ms: float = inf
    tries: int = 0
    ask_ms: int = 0


class IncomingBuffer:
    """Messages by serial number, in the order of their coming."""

    def __init__(self, config: ChannelConfig) -> None:
        self._config = config
        # The older revision has no field for requests.
        self._repair = None if config.older_revision else config.repair
        self.waiting: dict[int, WaitingMessage] = {}
        self.ids: dict[str, int] = {}
        self.wants: dict[str, Want] = {}
        self.ready: dict[int, None] = {}
        self._waiters: dict[str, dict[int, None]] = {}
        self._syncs: dict[int, None] = {}
        self._bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def fits(self, waiting: WaitingMessage) -> bool:
        """Return True if a message can be added within the bounds, a sync message within half.

        Sync messages bring nothing but wishes; content must not wait for them. `surplus` keeps the
        bound of missing content.
        """
        config, part = self._config, 1 if waiting.message.content else 2
        new = sum(key not in self.wants and key not in self.ids for key in waiting.unmet)
        return (
            len(self.waiting) < config.max_waiting // part
            and self._bytes + bytes_of(waiting.message) <= config.max_waiting_bytes // part
            and (part == 1 or len(self.wants) + new <= config.max_missing // part)
        )

    def surplus(self) -> list[str]:
        """Return the missing messages to give up so that the bounds hold again.

        They are the oldest of each sender that names too many, then of those that name most. All of
        them are looked at: once for many messages that come.
        """
        most, most_of_sender = self._config.max_missing, self._config.max_missing_of_sender
        if len(self.wants) <= min(most, most_of_sender):
            return []
        wants_of: dict[str, list[str]] = {}
        for message_id, want in self.wants.items():
            wants_of.setdefault(want.named_by, []).append(message_id)
        found: list[str] = []
        for names in wants_of.values():
            found += names[:-most_of_sender]
            del names[:-most_of_sender]
        left = {sender: iter(names) for sender, names in wants_of.items()}
        sizes = [(-len(names), sender) for sender, names in wants_of.items()]
        heapify(sizes)
        for _ in range(len(self.wants) - len(found) - most):
            size, sender = sizes[0]
            found.append(next(left[sender]))
            heapreplace(sizes, (size + 1, sender))
        return found

    def add(self, waiting: WaitingMessage, now_ms: int) -> list[str]:
        """Add a message; return which of its dependencies are missing, in its order."""
        serial = self._next
        self._next += 1
        self._put(serial, waiting)
        missing = []
        for entry in waiting.message.history:
            if entry.message_id in waiting.unmet and entry.message_id not in self.ids:
                self.want(entry, now_ms, waiting.message.sender_id)
                missing.append(entry.message_id)
        if waiting.message.content:
            self.wants.pop(waiting.message.message_id, None)
        if len(self._syncs) > MAX_WAITING_SYNCS:
            self._forget(next(iter(self._syncs)))
        return list(dict.fromkeys(missing))

    def want(self, entry: Entry, now_ms: int, named_by: str) -> None:
        """Remember that a message is missing, and one more way to find it."""
        want = self.wants.get(entry.message_id)
        if want is None:
            want = self.wants[entry.message_id] = Want(now_ms, named_by=named_by)
            want.request_ms = now_ms + self._request_delay_ms(entry.message_id)
        hint = entry.hint
        if hint and hint not in want.hints and len(want.hints) < MAX_HINTS_PER_MISSING:
            want.hints.append(hint)
        want.sender_id = want.sender_id or entry.sender_id

    def put_off(self, message_id: str, now_ms: int) -> None:
        """Delay the request for a message that another participant has asked for."""
        want = self.wants.get(message_id)
        if want is not None:
            want.request_ms = now_ms + self._request_delay_ms(message_id)

    def requests(self, now_ms: int) -> tuple[Entry, ...]:
        """Return what a message that is sent now may ask for."""
        due = [(want.request_ms, key) for key, want in self.wants.items()]
        most = self._repair.requests_per_message if self._repair else 0
        found, left = [], MAX_REQUEST_BYTES
        for request_ms, message_id in nsmallest(most, due):
            want = self.wants[message_id]
            entry = Entry(message_id, want.hints[0] if want.hints else None, want.sender_id)
            left -= size_of(entry)
            if request_ms > now_ms or left < 0:
                break
            found.append(entry)
        return tuple(found)

    def requested(self, message_ids: Iterable[str], now_ms: int) -> None:
        """Note that a message that was sent asks for these; each will be due again."""
        for message_id in message_ids:
            delay_ms = max(self._request_delay_ms(message_id), 1)
            self.wants[message_id].request_ms = now_ms + delay_ms

    def request_due_ms(self) -> float:
        """Return when the next request is due."""
        return min((want.request_ms for want in self.wants.values()), default=inf)

    def met(self, message_id: str) -> None:
        """Note that a dependency is met or given up; what waits for nothing else is ready."""
        self.wants.pop(message_id, None)
        for serial in self._waiters.pop(message_id, ()):
            waiting = self.waiting[serial]
            waiting.unmet.discard(message_id)
            if not waiting.unmet:
                self.ready[serial] = None

    def take_ready(self) -> list[WaitingMessage]:
        """Remove and return the messages that are ready, in the order of their coming."""
        serials = sorted(self.ready)
        self.ready.clear()
        return [self._remove(serial) for serial in serials]

    def withdraw(self, message_id: str) -> bool:
        """Remove a message with content, another one of which will come; False if none waits."""
        serial = self.ids.get(message_id)
        if serial is None:
            return False
        self._forget(serial)
        return True

    def expired(self, before_ms: int) -> list[str]:
        """Return the IDs that have been missing since before a time, longest first."""
        return [key for key, want in self.wants.items() if want.since_ms < before_ms]

    def prolong(self, since_ms: int) -> None:
        """Count what has been missing for longer as missing since a time."""
        for want in self.wants.values():
            if want.since_ms >= since_ms:
                break
            want.since_ms = since_ms

    def missing(self, message_ids: Iterable[str] | None = None) -> tuple[MissingMessage, ...]:
        """Return what is missing, or what of the given IDs is, as the application sees it."""
        chosen = self.wants if message_ids is None else message_ids
        return tuple(
            MissingMessage(key, tuple(want.hints), want.sender_id)
            for key in chosen
            if (want := self.wants.get(key)) is not None
        )

    def waiters(self, message_id: str) -> list[WaitingMessage]:
        """Return the messages that wait for a dependency."""
        return [self.waiting[serial] for serial in self._waiters.get(message_id, ())]

    def circles(self) -> list[int]:
        """Return the messages that wait for each other only, in log order."""
        waits_for_missing: set[int] = set()
        ids = list(self.wants)
        while ids:
            for serial in self._waiters.get(ids.pop(), ()):
                if serial not in waits_for_missing:
                    waits_for_missing.add(serial)
                    message = self.waiting[serial].message
                    if message.content:
                        ids.append(message.message_id)
        stuck = [
            (waiting.message.lamport or 0, waiting.message.message_id, serial)
            for serial, waiting in self.waiting.items()
            if waiting.unmet and serial not in waits_for_missing and waiting.message.content
        ]
        return [serial for _, _, serial in sorted(stuck)]

    def force(self, serial: int) -> bool:
        """Make a message of a circle ready; return False when it was already."""
        waiting = self.waiting.get(serial)
        if waiting is None or not waiting.unmet:
            return False
        self._stop_waiting(serial)
        waiting.unmet.clear()
        self.ready[serial] = None
        return True

    def restore(self, waiting: list[WaitingMessage]) -> None:
        """Fill an empty buffer."""
        for serial, value in enumerate(waiting):
            self._put(serial, value)
            if not value.unmet:
                self.ready[serial] = None
        self._next = len(waiting)

    def check(self) -> None:
        """Verify the invariants: who waits is found by what it waits for, and the reverse."""
        waiters = {key: set(serials) for key, serials in self._waiters.items()}
        for serial, waiting in self.waiting.items():
            assert all(serial in waiters[key] for key in waiting.unmet)
            assert (serial in self.ready) == (not waiting.unmet)
            assert bool(waiting.message.content) == (serial not in self._syncs)
        for key, serials in waiters.items():
            assert serials
            assert all(key in self.waiting[serial].unmet for serial in serials)
        unmet = {key for waiting in self.waiting.values() for key in waiting.unmet}
        assert self.wants.keys() == unmet - self.ids.keys()
        assert self._bytes == sum(bytes_of(waiting.message) for waiting in self.waiting.values())

    def _request_delay_ms(self, message_id: str) -> float:
        if self._repair is None:
            return inf
        return request_delay_ms(self._repair, self._config.sender_id, message_id)

    def _put(self, serial: int, waiting: WaitingMessage) -> None:
        self.waiting[serial] = waiting
        self._bytes += bytes_of(waiting.message)
        for message_id in waiting.unmet:
            self._waiters.setdefault(message_id, {})[serial] = None
        if waiting.message.content:
            self.ids[waiting.message.message_id] = serial
        else:
            self._syncs[serial] = None

    def _remove(self, serial: int) -> WaitingMessage:
        waiting = self.waiting.pop(serial)
        self._bytes -= bytes_of(waiting.message)
        if waiting.message.content:
            del self.ids[waiting.message.message_id]
        else:
            del self._syncs[serial]
        return waiting

    def _forget(self, serial: int) -> None:
        self._stop_waiting(serial)
        self.ready.pop(serial, None)
        self._remove(serial)

    def _stop_waiting(self, serial: int) -> None:
        for message_id in self.waiting[serial].unmet:
            waiters = self._waiters[message_id]
            del waiters[serial]
            if not waiters:
                del self._waiters[message_id]
                self.wants.pop(message_id, None)


@dataclass(slots=True)
class Outgoing:
    """A message that waits for acknowledgement; kept without its filter, which is sent fresh."""

    message: SdsMessage
    probe: Probe
    due_ms: int
    sends: int = 1
    witnesses: list[int] = field(default_factory=list)
    error: float = 1.0


class OutgoingBuffer:
    """Own messages by ID, in the order of their sending."""

    def __init__(self, config: ChannelConfig) -> None:
        self._config = config
        self.by_id: dict[str, Outgoing] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def witness(self, bloom_filter: bytes, message: SdsMessage) -> list[Event]:
        """Compare the messages with a filter and the message that it came with.

        A possibly acknowledged message is due later than it would have been.
        """
        events: list[Event] = []
        config = self._config
        later_ms, needed = config.resend_possible_ms - config.resend_ms, config.possible_acks
        witness = witness_of(message)
        hits = [key for key, value in self.by_id.items() if holds(bloom_filter, value.probe)]
        error = config.filter.false_positive_rate(bloom_filter) if hits else 1.0
        for message_id in hits:
            outgoing = self.by_id[message_id]
            if witness in outgoing.witnesses:
                continue
            if not outgoing.witnesses:
                outgoing.due_ms += later_ms
            if len(outgoing.witnesses) < needed:
                outgoing.witnesses.append(witness)
            outgoing.error = min(outgoing.error, error)
            seen = len(outgoing.witnesses)
            if seen >= needed and outgoing.error <= config.max_ack_error:
                del self.by_id[message_id]
                events.append(Acknowledged(message_id, outgoing.error, message.sender_id))
            else:
                events.append(PossiblyAcknowledged(message_id, seen, outgoing.error))
        return events

    def due(self, now_ms: int) -> tuple[list[SdsMessage], list[Event]]:
        """Return messages to send again, unacknowledged ones first, and those given up."""
        again: list[tuple[bool, int, SdsMessage]] = []
        gave_up: list[Event] = []
        config = self._config
        due = ((value.due_ms, key) for key, value in self.by_id.items() if value.due_ms <= now_ms)
        for _, message_id in sorted(due):
            outgoing = self.by_id[message_id]
            if outgoing.sends >= config.max_sends:
                del self.by_id[message_id]
                gave_up.append(GaveUp(message_id, outgoing.sends))
                continue
            possible = bool(outgoing.witnesses)
            outgoing.sends += 1
            outgoing.due_ms = now_ms + (config.resend_possible_ms if possible else config.resend_ms)
            again.append((possible, outgoing.message.lamport or 0, outgoing.message))
        again.sort(key=lambda item: item[:2])
        return [message for _, _, message in again], gave_up

    def next_due_ms(self) -> float:
        """Return when `due` has something to do next."""
        return min((outgoing.due_ms for outgoing in self.by_id.values()), default=inf)


def witness_of(message: SdsMessage) -> int:
    """Return 64 bits that identify a message; one that comes twice is one witness."""
    parts = (message.sender_id, message.message_id, str(message.lamport))
    text = "\0".join(parts).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest())
