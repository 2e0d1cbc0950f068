"""The buffer of unacknowledged outgoing messages.

A message is unacknowledged, then possibly acknowledged (a filter shows it), then acknowledged (a
causal history names it, or enough filters show it) or given up; both last states remove it.

| state        | in a history | in a filter                       | its period passes           |
|--------------|--------------|-----------------------------------|-----------------------------|
| unack.       | acknowledged | possibly ack. (or acknowledged)   | send again, or give up      |
| possibly ack.| acknowledged | one filter more, or acknowledged  | send again later, or give up|

Each message counts once as a witness, however often it comes. That several filters are wrong
about one ID is not a matter of independent chances: participants of one channel hold the same
IDs, so the same bits are set in all of them. The stated probability that an acknowledgement by
filters is wrong is therefore that of the best of them alone, which bounds that of all together.

Source: SDS, "Participant state", "Review ACK status", "Periodic outgoing buffer sweep".
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from storenode.sds.bloom import Probe, holds
from storenode.sds.codec import SdsMessage
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Acknowledged, Event, GaveUp, PossiblyAcknowledged


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

    __slots__ = ("_config", "by_id")

    def __init__(self, config: ChannelConfig) -> None:
        self._config = config
        self.by_id: dict[str, Outgoing] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self.by_id

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
