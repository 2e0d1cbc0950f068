"""A participant of one channel, as a state machine.

Rules:

1. Time, chance and bytes are arguments; what is to be sent comes out as `Broadcast`.
2. A message is delivered once, after all its causes, or after those that were given up.
3. The log is ordered by (Lamport timestamp, message ID) at every participant alike.
4. What was delivered stays known for good, whatever has left memory.
5. A packet that is not taken is counted, and changes nothing but that others have answered for it.
6. Of several messages with one ID, one that proves to be the genuine one is in the log
   (`storenode.sds.claims`); another that was there is withdrawn.

| call             | what happens                                                                |
|------------------|-----------------------------------------------------------------------------|
| `send`           | into log, filter and outgoing buffer; broadcast                             |
| `send_ephemeral` | broadcast; nothing is kept                                                  |
| `send_sync`      | broadcast without content, unless there is nothing to say                   |
| `published`      | the hint of an own message becomes known                                    |
| `receive`        | content: acknowledgements, filter, then delivered or waits for its causes;  |
|                  | sync: the same, never delivered; ephemeral: handed out; known: owed again,  |
|                  | or forged, or the genuine one, which takes the other's place                |
| `tick`           | waiting: delivered, lost or reported; resends; repair answers; sync         |

Source: SDS, "Protocol steps", in the newest revision.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil

from storenode.common.bounded_dict import BoundedDict
from storenode.common.errors import ArgumentError, StorenodeError
from storenode.sds.bloom import RollingFilter
from storenode.sds.buffers import IncomingBuffer, Outgoing, OutgoingBuffer, WaitingMessage
from storenode.sds.claims import IdClaims, Judgement, Proof, proof_of, said_by
from storenode.sds.codec import (
    Entry,
    MessageError,
    MessageKind,
    SdsMessage,
    check_id,
    decode_message,
    encode_message,
    encode_older,
)
from storenode.sds.config import ChannelConfig
from storenode.sds.events import (
    Acknowledged,
    Behind,
    Broadcast,
    BroadcastReason,
    ClockCapped,
    Counts,
    EphemeralReceived,
    Event,
    Forged,
    Lost,
    Message,
    Missing,
    MissingMessage,
    Packet,
    PacketRefusal,
    Recall,
    Received,
    Refused,
    RepairAnswered,
    RepairRequested,
    Sent,
    Withdrawn,
)
from storenode.sds.gaps import GapDetector, PeerGaps
from storenode.sds.limits import (
    ASK_EVERY_MS,
    ASKS_IN_VAIN,
    MAX_ASK_EVERY_MS,
    MAX_HEADS,
    MAX_HINT_BYTES,
    MAX_LOST_IDS,
    MAX_OWED_NAMED,
    MAX_REPAIR_ANSWERED,
    MAX_SDS_MESSAGE_BYTES,
    UNATTENDED_SWEEPS,
)
from storenode.sds.log import SALT_BYTES, LogEntry, MessageLog, Rng, history_of
from storenode.sds.proofs import content_id, ephemeral_id, sync_id
from storenode.sds.repair import RepairAnswers, may_answer
from storenode.sds.schedule import Clock, FilterSchedule, SyncTimer

Sealing = Callable[[int, tuple[Entry, ...]], bytes]
"""Makes the content as it travels, from the Lamport timestamp and the causal history."""


class ChannelFullError(StorenodeError):
    """An error for too many unacknowledged messages: send again when some are acknowledged."""


class MessageChannel:
    """A participant of a channel, made at ``now_ms`` (milliseconds since the epoch).

    The parts are public for reading: `clock`, `log`, `filter`, `outgoing`, `incoming`, `counts`.
    `heads` are the IDs of the messages in the log that no other one names, oldest first.
    Their times are running time (`storenode.sds.schedule`).
    """

    def __init__(self, config: ChannelConfig, now_ms: int, rng: Rng) -> None:
        self.config = config
        self.clock = Clock(now_ms, config.max_clock_ahead_ms)
        self.log = MessageLog(bytes(int(rng.uniform(0, 256)) & 0xFF for _ in range(SALT_BYTES)))
        self.claims = IdClaims(self.log.digest)
        self.filter = RollingFilter(config.filter)
        self.outgoing = OutgoingBuffer(config)
        self.incoming = IncomingBuffer(config)
        self.counts = Counts()
        self.lost = BoundedDict[str, None](MAX_LOST_IDS)
        self.pace = SyncTimer(now_ms, config)
        self.lacks = GapDetector(self.filter, config.behind_after_ms)
        self.heads: dict[str, None] = {}
        self.showing = FilterSchedule(config.filter_every, config.filter_every_ms, now_ms)
        self.gaps = PeerGaps(config)
        self.answers = RepairAnswers(config.repair, config.sender_id)
        self.reported_ms = now_ms
        self.asks_in_vain = 0
        self.sends = 0

    def missing(self) -> tuple[MissingMessage, ...]:
        """Return what is missing now, longest first."""
        return self.incoming.missing()

    def send(
        self,
        now_ms: int,
        content: bytes,
        message_id: str | None = None,
        sealed: Sealing | None = None,
    ) -> list[Event]:
        """Send content (SDS, "Send message"), as ``sealed`` makes it, if given.

        Raises:
            ValueError: content is empty or too large, or an ID is unfit or was used before.
            ChannelFullError: too many own messages are unacknowledged.
        """
        if not content:
            raise ArgumentError("a message needs content: an empty one would be a sync message")
        self.check_room()
        if message_id is not None:
            check_id("message_id", message_id)
            if self._is_known(message_id):
                raise ArgumentError(f"message ID {message_id!r} was used before: choose another")
        lamport = self.clock.tick(now_ms)
        now_ms = self._running(now_ms)
        config = self.config
        history = self._history(lamport, last=config.history_entries)
        content = content if sealed is None else sealed(lamport, history)
        if message_id is None:
            message_id = content_id(config.channel_id, config.sender_id, lamport, history, content)
        message = self._message(message_id, lamport, history, now_ms, content)
        self.sends += 1
        wanted = self.showing.content(self.sends)
        sent, shown = self._broadcast(message, BroadcastReason.CONTENT, shown=wanted)
        events: list[Event] = [sent]
        self._add_own(message, now_ms)
        self._note_sent(now_ms, message, events, shown=shown)
        return events

    def check_room(self, count: int = 1) -> None:
        """Raise `ChannelFullError` where ``count`` more messages cannot be sent."""
        unacknowledged, most = len(self.outgoing), self.config.max_outgoing
        if unacknowledged + count > most:
            raise ChannelFullError(
                f"{unacknowledged} messages are unacknowledged, and {count} more would be above "
                f"{most}: wait until some are not"
            )

    def send_sync(
        self, now_ms: int, message_id: str | None = None, *, shows: bool = False
    ) -> list[Event]:
        """Send a sync message (SDS, "Periodic sync message"); nothing if there is nothing to say.

        It ``shows`` the filter if the others are to search for what it has.

        Raises:
            ValueError: the ID is unfit.
        """
        if message_id is not None:
            check_id("message_id", message_id)
        now_ms = self._running(now_ms)
        lamport = self.clock.tick(self.clock.unix_ms(now_ms))
        config = self.config
        history = self._history(lamport, last=0 if config.name_heads else config.history_entries)
        name = message_id or sync_id(config.channel_id, config.sender_id, lamport)
        message = self._message(name, lamport, history, now_ms, None)
        if not message.history and not message.repair_request:
            self.pace.spoke(now_ms, None, news=False)
            return []
        always = config.filter_every == 1 or not config.name_heads
        wanted = self.showing.sync(now_ms, wanted=shows or always)
        sync, shown = self._broadcast(message, BroadcastReason.SYNC, shown=wanted)
        # It would repeat the last one of the channel.
        repeats = self.pace.rarer > 1 and not (self.pace.owed or shown or message.repair_request)
        events: list[Event] = [replace(sync, passes=repeats)]
        self._note_sent(now_ms, message, events, shown=shown)
        return events

    def send_ephemeral(self, content: bytes) -> list[Event]:
        """Send content without reliability (SDS, "Ephemeral messages").

        Raises:
            ValueError: the content is empty or too large.
        """
        if not content:
            raise ArgumentError("an ephemeral message needs content")
        config = self.config
        self.sends += 1
        number = self.clock.value + self.sends
        name = ephemeral_id(config.channel_id, config.sender_id, number, content)
        message = SdsMessage(config.channel_id, name, config.sender_id, content=content)
        return [self._broadcast(message, BroadcastReason.EPHEMERAL, shown=False)[0]]

    def published(self, message_id: str, hint: bytes | None) -> list[Event]:
        """Note that the transport took an own message; later histories carry the new hint.

        Raises:
            ValueError: the hint is too long.
        """
        if hint is not None and len(hint) > MAX_HINT_BYTES:
            raise ArgumentError(f"a retrieval hint has {len(hint)} bytes: {MAX_HINT_BYTES} fit")
        entry = self.log.recent(message_id)
        if entry is not None and hint is not None:
            entry.hint = hint
        return [] if entry is None else [Sent(message_id, entry.hint)]

    def receive(self, now_ms: int, packets: Iterable[Packet]) -> list[Event]:
        """Take packets of the channel (SDS, "Receive message")."""
        now_ms = self._running(now_ms)
        events: list[Event] = []
        for packet in packets:
            self._receive(now_ms, packet, events)
        self._lose(self.incoming.surplus(), now_ms, events, early=True)
        return events

    def tick(self, now_ms: int, rng: Rng) -> list[Event]:
        """Run what is due: both sweeps, repair, sync messages, pruning."""
        now_ms = self._running(now_ms)
        events: list[Event] = []
        report = now_ms - self.reported_ms >= self.config.missing_every_ms
        self._sweep_incoming(now_ms, events, report=report)
        self._sweep_outgoing(now_ms, events)
        self._answer(now_ms, events)
        missing, lost = self.incoming.wants, self.lost
        found = self.lacks.sweep(missing, lost, self.clock, now_ms)
        events += found
        # After a search in vain, the others may look for what our filter shows.
        asks = any(isinstance(each, Behind) and each.searches > 1 for each in found)
        if asks or min(self.pace.due_ms(rng), self._ask_due_ms()) <= now_ms:
            events += self.send_sync(self.clock.unix_ms(now_ms), shows=asks)
        return events

    def abandon(self, now_ms: int, message_ids: Iterable[str]) -> list[Event]:
        """Mark missing messages that the application cannot retrieve as lost."""
        events: list[Event] = []
        chosen = [key for key in dict.fromkeys(message_ids) if key in self.incoming.wants]
        self._lose(chosen, self._running(now_ms), events)
        return events

    def recalled(self, messages: Iterable[SdsMessage]) -> list[Event]:
        """Send again what was read of the messages of a `Recall`.

        What others are to answer is left out, and what has left the log meanwhile or was replaced.
        """
        events: list[Event] = []
        repair, own_id = self.config.repair, self.config.sender_id
        for message in messages:
            chosen = repair and may_answer(repair, own_id, message.sender_id, message.message_id)
            here = message.message_id in self.log
            if chosen and here and self.claims.judge(message) is Judgement.SAME:
                self._send_again(message, events)
        return events

    def next_due_ms(self, rng: Rng) -> int:
        """Return when the next `tick` is needed; ticks before that do nothing."""
        times = [self.pace.due_ms(rng), self._ask_due_ms()]
        if self.incoming.waiting:
            times.append(self.reported_ms + self.config.missing_every_ms)
        times += [part.next_due_ms() for part in (self.outgoing, self.answers, self.lacks)]
        return ceil(min(times)) - self.clock.set_back_ms

    def check(self) -> None:
        """Verify the invariants of all parts, and between them."""
        self.log.check()
        self.incoming.check()
        assert not any(message_id in self.log for message_id in self.incoming.ids)
        assert not any(message_id in self.log for message_id in self.incoming.wants)
        assert all(map(self._is_known, self.claims.unproven))
        assert all(message_id in self.log for message_id in self.outgoing.by_id)
        assert all(message_id in self.log for message_id in self.heads)

    # --- sending

    def _history(self, lamport: int, *, last: int) -> tuple[Entry, ...]:
        named = self.gaps.take(self.config.gap_entries) if self.gaps.pending else []
        if self.config.name_heads:
            named += [*self.heads, *list(self.pace.owed)[:MAX_OWED_NAMED]]
        return history_of(self.config, self.log, named, lamport, last=last)

    def _message(
        self,
        message_id: str,
        lamport: int,
        history: tuple[Entry, ...],
        now_ms: int,
        content: bytes | None,
    ) -> SdsMessage:
        config = self.config
        asked = self.incoming.requests(now_ms)
        return SdsMessage(
            config.channel_id, message_id, config.sender_id, lamport, history, None, asked, content
        )

    def _broadcast(
        self, message: SdsMessage, reason: BroadcastReason, *, shown: bool
    ) -> tuple[Broadcast, bool]:
        """Encode a message, with the filter if ``shown``; return True if the filter is in it.

        The filter is left out where it need not go along and is too much.

        Raises:
            ValueError: the message is too large.
        """
        config, older = self.config, self.config.older_revision
        sent = replace(
            message,
            bloom_filter=self.filter.encode() if shown else None,
            repair_request=() if older else message.repair_request,
        )
        payload = encode_older(sent) if older else encode_message(sent)
        if len(payload) <= MAX_SDS_MESSAGE_BYTES:
            passes = reason in (BroadcastReason.RESEND, BroadcastReason.EPHEMERAL)
            return Broadcast(payload, message.message_id, reason, passes), shown
        if shown and (reason is BroadcastReason.RESEND or config.filter_every > 1):
            return self._broadcast(message, reason, shown=False)
        raise ArgumentError(
            f"the message has {len(payload)} bytes with its filter and history: "
            f"{MAX_SDS_MESSAGE_BYTES} fit"
        )

    def _add_own(self, message: SdsMessage, now_ms: int) -> None:
        message_id, lamport = message.message_id, message.lamport or 0
        self.log.insert(LogEntry(lamport, message_id, message.sender_id))
        self.filter.add(message_id)
        if not proof_of(message):
            self.claims.add(message_id, said_by(message, own=True))
        probe = self.config.filter.probe(message_id)
        kept = message.bare()
        self.outgoing.by_id[message_id] = Outgoing(kept, probe, now_ms + self.config.resend_ms)
        self.answers.keep(kept)
        self._settle(message)

    def _ask_due_ms(self) -> float:
        """Return when a sync message is needed to carry a repair request.

        After `ASKS_IN_VAIN` of them without anything that was asked for, they become rarer.
        """
        doublings = max(self.asks_in_vain - ASKS_IN_VAIN, 0) // 4
        pause_ms = min(ASK_EVERY_MS << min(doublings, 16), MAX_ASK_EVERY_MS)
        return max(self.incoming.request_due_ms(), self.pace.spoke_ms + pause_ms)

    def _note_sent(
        self, now_ms: int, message: SdsMessage, events: list[Event], *, shown: bool
    ) -> None:
        """Note what an own message has said: acknowledgements, the filter, and requests."""
        if shown:
            self.showing.sent(now_ms)
        self.pace.spoke(now_ms, None if shown else message.history, news=bool(message.content))
        if message.repair_request:
            self.asks_in_vain += not message.content
            ids = tuple(entry.message_id for entry in message.repair_request)
            self.incoming.requested(ids, now_ms)
            events.append(RepairRequested(ids, message.message_id))

    # --- receiving

    def _receive(self, now_ms: int, packet: Packet, events: list[Event]) -> None:
        self.counts.received += 1
        try:
            message = decode_message(packet.payload)
        except MessageError as error:
            self.counts.malformed += 1
            events.append(Refused(PacketRefusal.MALFORMED, error.message_id or None, str(error)))
            return
        if message.channel_id != self.config.channel_id:
            self.counts.foreign += 1
            events.append(Refused(PacketRefusal.FOREIGN, message.message_id))
            return
        kind = message.kind
        own = message.sender_id == self.config.sender_id
        hint = packet.hint if len(packet.hint or b"") <= MAX_HINT_BYTES else None
        if own and kind is not MessageKind.CONTENT:
            self.counts.echoes += 1
        elif kind is MessageKind.EPHEMERAL:
            assert message.content is not None
            events.append(EphemeralReceived(message.message_id, message.sender_id, message.content))
        elif kind is MessageKind.CONTENT and self._is_known(message.message_id):
            verdict = self.claims.judge(message)
            if verdict is Judgement.GENUINE or (verdict is Judgement.SAME and self._frees(message)):
                self._take(now_ms, message, hint, events, own=own)
            elif verdict is Judgement.FORGED:
                self._reject(message, hint, events)
            else:
                self._again(now_ms, message.message_id, hint, own=own)
        else:
            self._take(now_ms, message, hint, events, own=own)

    def _is_known(self, message_id: str) -> bool:
        return message_id in self.log or message_id in self.incoming.ids

    def _again(self, now_ms: int, message_id: str, hint: bytes | None, *, own: bool) -> None:
        self.counts.echoes += own
        self.counts.duplicates += not own
        self.answers.seen(message_id)
        entry = self.log.recent(message_id)
        if not own and entry is not None and (not hint or hint != entry.hint):
            # Another copy: its sender may not have heard that we have it.
            self.pace.delivered(message_id, now_ms, again=True)

    def _take(
        self,
        now_ms: int,
        message: SdsMessage,
        hint: bytes | None,
        events: list[Event],
        *,
        own: bool,
    ) -> None:
        content, message_id = message.content, message.message_id
        unmet = self._unmet(message)
        proof = proof_of(message) if content else Proof.NONE
        taken = WaitingMessage(message, hint, now_ms, unmet, proof)
        if unmet and not self.incoming.fits(taken):
            self.counts.buffer_full += 1
            # A forged one with its ID may be here, which is not to be the answer after this.
            self.answers.seen(message_id)
            if content:
                events.append(Refused(PacketRefusal.BUFFER_FULL, message_id))
            return
        if content and self._is_known(message_id):
            self._withdraw(message_id, events)
        events.append(Received(message_id, message.kind, message.sender_id))
        if not own:
            self._learn(now_ms, message, events)
        if content:
            if message_id in self.incoming.wants:
                self.asks_in_vain = 0
            self.filter.add(message_id)
            if not proof:
                self.claims.add(message_id, said_by(message))
        if unmet:
            taken.message = message.bare()
            missing = self.incoming.add(taken, now_ms)
            if missing:
                events.append(Missing(self.incoming.missing(missing)))
        elif content:
            self._deliver(now_ms, taken, events)
            if self.incoming.ready and not self.config.release_at_sweep:
                self._release(now_ms, events)

    def _unmet(self, message: SdsMessage) -> set[str]:
        """Return the causes that a message would wait for."""
        named = {entry.message_id for entry in message.history}
        if message.content:
            named.discard(message.message_id)
        return {key for key in named if key not in self.log and key not in self.lost}

    # --- delivering

    def _deliver(self, now_ms: int, taken: WaitingMessage, events: list[Event]) -> None:
        message, hint = taken.message, taken.hint
        message_id, lamport = message.message_id, message.lamport or 0
        if not self.clock.adopt(lamport, self.clock.unix_ms(now_ms)):
            self.counts.clocks_capped += 1
            events.append(ClockCapped(message_id, lamport))
        # Compared with the log only now: what was given up may have come after all, and what was
        # there may have been forged and withdrawn.
        causes = dict.fromkeys(each.message_id for each in message.history)
        causes.pop(message_id, None)
        unmet = tuple([key for key in causes if key not in self.log])
        after = self.log.insert(LogEntry(lamport, message_id, message.sender_id, hint))
        sender, content = message.sender_id, message.content or b""
        proof = taken.proof or proof_of(message)
        events.append(
            Message(
                message_id,
                sender,
                lamport,
                content,
                hint,
                after,
                unmet,
                own=sender == self.config.sender_id,
                proof=proof,
                history=message.history,
            )
        )
        waiters = self.incoming.waiters(message_id)
        if all(waiting.message.sender_id == sender for waiting in waiters):
            self.pace.delivered(message_id, now_ms)
        self.answers.keep(message.bare())
        self._settle(message)

    def _settle(self, message: SdsMessage) -> None:
        """Stop waiting for a message that is in the log."""
        message_id = message.message_id
        named = message_id in self.lost
        self.lost.pop(message_id, None)
        for entry in message.history:
            self.heads.pop(entry.message_id, None)
        if not named:
            self.heads[message_id] = None
        if len(self.heads) > MAX_HEADS:
            del self.heads[next(iter(self.heads))]
            self.showing.due = True
        self.incoming.met(message_id)

    def _release(self, now_ms: int, events: list[Event]) -> None:
        """Deliver what is ready and what becomes ready by that, in log order."""
        ready: list[tuple[int, str, WaitingMessage]] = []
        while ready or self.incoming.ready:
            for waiting in self.incoming.take_ready():
                message = waiting.message
                if message.content:
                    heappush(ready, (message.lamport or 0, message.message_id, waiting))
                elif self.heads.keys() <= {entry.message_id for entry in message.history}:
                    self.pace.named(now_ms)
            if ready:
                _, _, waiting = heappop(ready)
                self._deliver(now_ms, waiting, events)

    # --- learning from others

    def _learn(self, now_ms: int, message: SdsMessage, events: list[Event]) -> None:
        """Update acknowledgements by another's message (SDS, "Review ACK status"), and repair."""
        named = {entry.message_id for entry in message.history}
        news = message.kind is MessageKind.CONTENT or not self.heads.keys() <= named
        self.pace.received(now_ms, news=news)
        for entry in message.history:
            if self.outgoing.by_id.pop(entry.message_id, None) is not None:
                events.append(Acknowledged(entry.message_id, 0.0, message.sender_id))
            # A sender that names its own message has not heard that anybody has it.
            known = self.log.recent(entry.message_id)
            if known is not None and known.sender_id != message.sender_id:
                self.pace.owed.pop(entry.message_id, None)
            self.gaps.pending.pop(entry.message_id, None)
        if message.bloom_filter is not None:
            self._review(now_ms, message, message.bloom_filter, events)
        if self.config.repair is not None:
            self.counts.repair_requests_ignored += len(message.repair_request)
            for entry in message.repair_request[:MAX_REPAIR_ANSWERED]:
                self.incoming.put_off(entry.message_id, now_ms)
                is_offered = self.answers.offer(entry, self.log, now_ms, message.sender_id)
                self.counts.repair_requests_ignored -= is_offered

    def _review(
        self, now_ms: int, message: SdsMessage, bloom_filter: bytes, events: list[Event]
    ) -> None:
        config, sender_id, lamport = self.config, message.sender_id, message.lamport or 0
        self.lacks.look(sender_id, bloom_filter, lamport, now_ms)
        if not config.filter.reads(bloom_filter):
            self.counts.filters_unreadable += 1
            return
        self.showing.last_ms = now_ms
        if self.outgoing.by_id:
            events += self.outgoing.witness(bloom_filter, message)
        if config.gap_entries:
            for key in self.gaps.look(message, bloom_filter, self.log, self.clock, now_ms):
                self.answers.offer(Entry(key), self.log, now_ms, sender_id)

    # --- forged messages
    #
    # Where an ID proves the content alone, copies with that content may name different senders,
    # clocks and histories, and the genuine one cannot be identified. The first that can be
    # delivered counts: otherwise a copy with invented causes would hold up the content for as long
    # as they are waited for.

    def _reject(self, message: SdsMessage, hint: bytes | None, events: list[Event]) -> None:
        """Report a forged message, once."""
        if self.claims.is_news(message.message_id, said_by(message)):
            message_id, sender, lamport = message.message_id, message.sender_id, message.lamport
            certain = self.claims.is_certain(message_id)
            content = message.content or b""
            self.counts.forged += 1
            events.append(Forged(message_id, sender, lamport or 0, content, hint, certain))

    def _frees(self, message: SdsMessage) -> bool:
        """Return True if a message waits of which this copy with its proven content need not."""
        serial = self.incoming.ids.get(message.message_id)
        if serial is None:
            return False
        waiting = self.incoming.waiting[serial]
        if not waiting.unmet or waiting.message.content != message.content:
            return False
        return proof_of(message) is Proof.CONTENT and not self._unmet(message)

    def _withdraw(self, message_id: str, events: list[Event]) -> None:
        """Let a message go whose place another one takes: its ID proves nothing, or it waits."""
        copy = self.claims.is_certain(message_id)
        lamport = 0 if copy else self.claims.withdraw(message_id)
        self.counts.forged += not copy
        if self.incoming.withdraw(message_id):
            return
        self.log.remove((lamport, message_id))
        self.heads.pop(message_id, None)
        # It may have passed for naming messages that nothing else names.
        self.showing.due = True
        self.answers.drop(message_id)
        events.append(Withdrawn(message_id, lamport))

    # --- answering repair requests

    def _answer(self, now_ms: int, events: list[Event]) -> None:
        """Send again what others asked for and is due, and recall what is not in memory."""
        ids, kept = self.answers.take(now_ms), self.answers.kept
        for message_id in ids:
            if message_id in kept:
                self._send_again(kept[message_id], events)
        recalled = tuple(each for each in ids if each not in kept)
        if recalled:
            events.append(Recall(recalled))

    def _send_again(self, message: SdsMessage, events: list[Event]) -> None:
        requester = self.answers.requesters.get(message.message_id)
        if requester is None:  # another participant has answered meanwhile
            return
        self.answers.seen(message.message_id)
        try:
            sent, _ = self._broadcast(message, BroadcastReason.REPAIR, shown=False)
        except ValueError:
            # In the older revision, as it came, its history takes less room.
            self.counts.repair_requests_ignored += 1
            return
        if self.answers.spend(self.clock.latest_ms, requester, len(sent.payload)):
            events += [sent, RepairAnswered(message.message_id)]
        else:
            self.counts.repair_requests_ignored += 1

    # --- sweeps

    def _running(self, now_ms: int) -> int:
        """Return the running time; after a rest, prolong the search for what is missing."""
        config, before_ms = self.config, self.clock.latest_ms
        running_ms = self.clock.running_ms(now_ms)
        unattended_ms = running_ms - before_ms
        if unattended_ms > UNATTENDED_SWEEPS * config.missing_every_ms and config.lost_after_ms:
            self.incoming.prolong(running_ms - config.lost_after_ms // 2)
        return running_ms

    def _sweep_incoming(self, now_ms: int, events: list[Event], *, report: bool) -> None:
        self._release(now_ms, events)
        if not self.incoming.waiting:
            return
        self._lose(self.incoming.surplus(), now_ms, events, early=True)
        if self.config.lost_after_ms is not None:
            expired = self.incoming.expired(now_ms - self.config.lost_after_ms)
            self._lose(expired, now_ms, events)
        if report:
            for serial in self.incoming.circles():
                if self.incoming.force(serial):
                    self.counts.circles += 1
                    self._release(now_ms, events)
            self.reported_ms = now_ms
            missing = self.incoming.missing()
            if missing:
                events.append(Missing(missing))

    def _lose(
        self, message_ids: list[str], now_ms: int, events: list[Event], *, early: bool = False
    ) -> None:
        """Mark dependencies as irretrievably lost (SDS, "Periodic incoming buffer sweep")."""
        if not message_ids:
            return
        self.counts.lost += len(message_ids)
        self.showing.due = True
        events.append(Lost(tuple(message_ids), early))
        for message_id in message_ids:
            self.lost[message_id] = None
            self.incoming.met(message_id)
        self._release(now_ms, events)

    def _sweep_outgoing(self, now_ms: int, events: list[Event]) -> None:
        again, gave_up = self.outgoing.due(now_ms)
        shown = self.config.filter_every == 1
        events += [self._broadcast(each, BroadcastReason.RESEND, shown=shown)[0] for each in again]
        events += gave_up
        if again:
            self.pace.active(now_ms)
