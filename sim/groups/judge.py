"""The judge of a group, which has all messages and checks what must hold at every moment.

1. Nothing is invented: what is delivered was said so, by whom it names; once in each log.
2. A log is in the order of (Lamport timestamp, message ID), and an application that follows
   ``entries_after`` has the same.
3. A message is delivered after all its causes; those that are not there it names, and they were
   reported as lost.
4. A participant that a history says to have a message has delivered it; acknowledgements by
   filters alone may be wrong about as often as they say.
5. Who calls itself synced lacks nothing that it was shown, but for what was reported as lost.
6. A message comes after all that its sender had delivered, but for clocks that were too far ahead.
7. No clock is further ahead than allowed, and a sender's clock rises with every message.
8. Unacknowledged messages are sent again, in time, until they are acknowledged or given up.
9. No participant answers a request that it did not receive, nor one that another has answered
   meanwhile; but what a filter of another lacked, and was not sent again, may be offered.
10. What was written down comes back, with every message that had left or was said to be sent.
11. No participant sleeps longer than a participant may be silent, whatever its clock does.
12. Nothing is given up right after a time in which it could not be looked for.
13. Nothing leaves, and nothing is shown to an application, before it is written down; and what was
    said once is never published under two IDs.
14. What is shown to an application is the log, without gap and duplicate.
15. A cursor or the end of a scan is written down with or after all messages before it.
16. What is written down and may leave does so at once.
17. Nothing is tried again without a pause, and no more waits than may.
18. Who leaves does so in time, and nothing of it continues.
19. Who has caught up with a peer lacks nothing of that peer's newest filter, but what it notes as
    missing or lost.
20. A forged message is in a log only as one that is not proven, and only until the genuine one
    comes; none sends it to others after that, and no genuine message is called forged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from typing import Final

from sim.groups.disk import Disk
from sim.judge import Judge
from sim.limits import NS_PER_MS, NS_PER_S
from sim.service import SCAN
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.state import StateBatch
from storenode.sds.aio.transport import FeedPage, Fetched
from storenode.sds.bloom import FilterShape, Probe, holds
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import MessageKind, SdsMessage, decode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import (
    Acknowledged,
    Behind,
    BroadcastReason,
    CaughtUp,
    ClockCapped,
    Event,
    Forged,
    GaveUp,
    Lost,
    Message,
    Missing,
    Received,
    RepairAnswered,
    Withdrawn,
)
from storenode.sds.limits import MAX_REPAIR_ANSWERED, UNATTENDED_SWEEPS
from storenode.sds.log import Key

_SLACK_MS: Final = 4_000
_BOOT_MS: Final = 100
"""The time between reading a state and the first step of its participant."""

_MOST_TRIES: Final = 40
"""Calls of one kind, or failed transactions, of one participant in a second."""

_MOST_SCANS: Final = 15
"""Scans among them."""

_EXACT: Final = 1e-4
"""Filters that are wrong more rarely than this are never wrong in a run."""

_PROMPT_NS: Final = 1 * NS_PER_S
_LATEST_TICK_NS: Final = 20 * NS_PER_S

_Given = tuple[int, str, bytes]
"""The timestamp, the ID and the hint of a message that a store hands out."""


class View:
    """The judge's view of one participant.

    Attributes:
        keys: the log as its application has it.
        shown: causes that it was shown and that are not in its log.
        lost: what was reported to it as lost.
        deceived: forged messages that are in its log; withdrawn: those that left it, and of which
            its application is not notified yet.
        replaced: IDs of all that left it, of which the genuine message may wait for its causes.
        lacking: what a filter of another lacked, and was not sent again.
        sent_ns: own unacknowledged messages -> when they were sent last.
        given_up: own messages that were never acknowledged.
        promised: what `Channel.send` has returned for; left: own messages that have left.
        shown_keys: the log as its application was shown it.
        handed: pages of a feed of which no cursor is written: cursor -> content.
        scanned: what a scan must bring before the gap is closed.
        searched: since when it searches for what peers show; such a scan closes no gap.
        filters: the newest message with a filter of each peer in this life.
        ready: own messages that are written down and have not left -> since when.
        listens: the last batch was taken and no other is under way; waits_ns: since when.
    """

    def __init__(self, name: str, config: ChannelConfig) -> None:
        self.name = name
        self.config = config
        self.keys: list[Key] = []
        self.ids: set[str] = set()
        self.shown: set[str] = set()
        self.lost: set[str] = set()
        self.deceived: set[str] = set()
        self.withdrawn: set[Key] = set()
        self.replaced: set[str] = set()
        self.own: dict[str, int] = {}
        self.sent_ns: dict[str, int] = {}
        self.given_up: set[str] = set()
        self.asked: dict[str, None] = {}
        self.lacking: set[str] = set()
        self.capped: set[str] = set()
        self.highest = 0
        self.last_own = 0
        self.latest_ms = 0
        self.last_ms = 0
        self.attended_ms = 0
        self.ticks = 0
        self.ticked_ns = 0
        self.abandons = False
        self.promised: set[str] = set()
        self.left: set[str] = set()
        self.shown_keys: list[Key] = []
        self.handed: dict[bytes, list[_Given]] = {}
        self.scanned: list[_Given] = []
        self.scanned_after = 0
        self.searched: list[int] = []
        self.filters: dict[str, SdsMessage] = {}
        self.ready: dict[str, int] = {}
        self.listens = False
        self.waits_ns = 0

    def clock_was_set(self, now_ns: int, now_ms: int) -> None:
        """Count times that were to come from now on."""
        self.latest_ms = max(self.latest_ms, now_ms)
        self.sent_ns = dict.fromkeys(self.sent_ns, now_ns)

    def forget(self, saved: Set[str]) -> None:
        """Expect these messages alone; own ones beyond may come back as those of others do."""
        sent = self.promised | self.left | self.own.keys()
        self.promised &= saved
        self.left &= saved
        self.given_up |= sent - saved

    def attend(self, now_ms: int) -> None:
        """Note that the channel is served at this time of its clock."""
        leap_ms, self.last_ms = now_ms - self.last_ms, now_ms
        if leap_ms > UNATTENDED_SWEEPS * self.config.missing_every_ms:
            self.attended_ms = now_ms
        elif leap_ms < 0:
            self.attended_ms += leap_ms


class GroupJudge:
    """A judge of participants; ``judge`` is that of the run.

    Attributes:
        made: every message with content that was broadcast, by ID.
        forged: other messages that were published under the IDs of genuine ones.
        wrong: acknowledgements by filters that were wrong; wrong_expected: those that might be.
    """

    def __init__(self, judge: Judge, shape: FilterShape, now_ns: Callable[[], int]) -> None:
        self._judge, self._demand = judge, judge.demand
        self.made: dict[str, SdsMessage] = {}
        self.forged: dict[tuple[str, bytes], SdsMessage] = {}
        self._shape = shape
        self._now_ns = now_ns
        self._said: dict[bytes, str] = {}
        self._read: dict[bytes, SdsMessage] = {}
        self.wrong, self.wrong_expected = 0, 0.0
        self.delivered: dict[str, set[str]] = {}
        self.taken: dict[str, set[str]] = {}

    def read(self, payload: bytes) -> SdsMessage:
        """Return a message by its bytes."""
        message = self._read.get(payload)
        if message is None:
            message = self._read[payload] = decode_message(payload)
        return message

    def forged_as(self, message_id: str, content: bytes | None) -> SdsMessage | None:
        """Return the forged message with this content; None for a genuine one."""
        return self.forged.get((message_id, content or b""))

    # Lives

    def booted(self, view: View, participant: Participant, disk: Disk, now_ms: int) -> None:
        """Check a life that begins from what was written down (rule 10)."""
        core, ledger = participant.core, participant.ledger
        entries = list(core.log.entries())
        view.keys = [entry.key for entry in entries]
        view.ids = {entry.message_id for entry in entries}
        view.deceived = {
            name for name, row in disk.log.items() if self.forged_as(name, row["content"])
        }
        view.withdrawn.clear()
        waiting = [each.message for each in core.incoming.waiting.values()]
        for what, found, written in (
            ("log", view.ids, disk.log.keys()),
            (
                "outbox",
                {each.message_id for each in ledger.outbox.values()},
                _names(disk, "outbox"),
            ),
            ("unacknowledged", core.outgoing.by_id.keys(), _names(disk, "unacknowledged")),
            ("lost", core.lost.keys(), _names(disk, "lost")),
            ("waiting", {each.message_id for each in waiting}, self._waiting(disk)),
        ):
            self._demand(found == written, f"{view.name} does not go on from its {what}")
        forgotten = (view.left | view.promised) - view.ids
        self._demand(
            not forgotten, f"{view.name} has forgotten {len(forgotten)} messages that it sent"
        )
        ended = set(view.own) & view.ids - core.outgoing.by_id.keys() - view.given_up
        unsure = {name for name in ended if disk.log[name]["acknowledged_by"] is None}
        self._demand(
            not unsure, f"{view.name} has forgotten who acknowledged {len(unsure)} messages"
        )
        own = {entry.message_id: entry.lamport for entry in entries if entry.sender_id == view.name}
        # What a restored participant had forgotten comes back as that of others does.
        own_clocks = [at for name, at in own.items() if name not in view.capped]
        view.own, view.last_own = own, max(own_clocks, default=0)
        view.lost &= core.lost.keys()
        view.shown = {key for each in core.incoming.waiting.values() for key in each.unmet}
        view.sent_ns = dict.fromkeys(core.outgoing.by_id, self._now_ns())
        view.asked.clear()
        view.lacking.clear()
        view.highest = core.clock.value
        view.shown_keys, view.handed, view.scanned = [], {}, []
        view.filters.clear()
        view.searched.clear()
        view.ready = dict.fromkeys(_names(disk, "outbox"), self._now_ns())
        view.ticked_ns = self._now_ns() - 1  # its clock may have been set while its state was read
        view.attend(now_ms)

    # What its driver does

    def saved(self, view: View, disk: Disk, batch: StateBatch) -> None:
        """Check a transaction that was written (rule 15)."""
        gap_ns: int | None = disk.row["gap_from_ns"]
        for row in batch.rows["cursors"].values():
            if row is not None and row["cursor"] in view.handed:
                self._passed(view, disk, row["cursor"], gap_ns)
        before = [each for each in view.scanned if gap_ns is None or each[0] < gap_ns]
        if before and batch.number > view.scanned_after:
            there = {name for _, name, hint in before if hint not in self._judge.lost}
            lacking = there - disk.log.keys() - self._waiting(disk)
            self._demand(not lacking, f"{view.name} closes a gap and lacks {len(lacking)} messages")
            view.scanned = [each for each in view.scanned if each not in before]
        for row in batch.rows["outbox"].values():
            if row is not None and (name := row["message_id"].decode()) not in view.left:
                view.ready[name] = self._now_ns()

    def _passed(self, view: View, disk: Disk, cursor: bytes, gap_ns: int | None) -> None:
        saved = disk.log.keys() | self._waiting(disk)
        for known in list(view.handed):
            messages = view.handed.pop(known)
            lacking = [
                name
                for time_ns, name, _ in messages
                if name not in saved and (gap_ns is None or time_ns < gap_ns)
            ]
            self._demand(
                not lacking, f"{view.name} has a cursor past {len(lacking)} unsaved messages"
            )
            if known == cursor:
                return

    def handed(self, view: View, page: FeedPage) -> None:
        """Note a page of a feed."""
        messages = self._content(page.messages)
        if messages:
            view.handed[page.cursor] = messages

    def scans(self, view: View, messages: Iterable[Fetched], commits: int) -> None:
        """Note a scan that will bring these messages; ``commits`` batches are older."""
        view.scanned, view.scanned_after = self._content(messages), commits

    def left(self, view: View, disk: Disk, messages: Sequence[Fetched]) -> None:
        """Check a batch that a participant publishes (rule 13)."""
        for each in messages:
            message = self.read(each.payload)
            if message.sender_id != view.name:
                continue
            named = {entry.message_id for entry in message.history}
            if message.content:
                named.add(message.message_id)
                known = self._said.setdefault(message.content, message.message_id)
                self._demand(
                    known == message.message_id, f"{view.name} says one thing under two IDs"
                )
                view.left.add(message.message_id)
                view.ready.pop(message.message_id, None)
            unsaved = named - disk.log.keys()
            if unsaved:
                # Forged messages and backups make a message come again, which its causes need not.
                unsaved -= self._waiting(disk) | view.lost
            self._demand(not unsaved, f"what {view.name} publishes leaves before it is saved")

    def shown(self, view: View, disk: Disk, message: Message) -> None:
        """Check a message that an application is shown (rules 13 and 14)."""
        name = message.message_id[:10]
        forged = self.forged_as(message.message_id, message.content)
        # A forged one may be withdrawn already when its reader comes to it.
        saved = forged is not None or message.message_id in disk.log
        self._demand(saved, f"{view.name} shows {name} before it is saved")
        made = forged or self.made.get(message.message_id)
        self._demand(made is not None and made.content == message.content, f"{name} was never sent")
        self._demand(
            bool(message.proof) != bool(forged), f"{view.name} shows {name} as what it is not"
        )
        place = bisect_left(view.shown_keys, message.key)
        again = view.shown_keys[place : place + 1] == [message.key]
        self._demand(not again, f"{view.name} shows {name} twice")
        # A page that is read late lacks what has been withdrawn since its commit.
        gone = [key for key in view.withdrawn if key > message.key and key not in view.shown_keys]
        uncounted = message.entries_after - (len(view.shown_keys) - place)
        self._demand(0 <= uncounted <= len(gone), f"{view.name} shows {name} at another place")
        view.shown_keys.insert(place, message.key)

    def hidden(self, view: View, event: Withdrawn) -> None:
        """Note that an application is notified of a forged message, which it may not have shown."""
        key = event.lamport, event.message_id
        view.withdrawn.discard(key)
        if key in view.shown_keys:
            view.shown_keys.remove(key)

    def tried(self, view: View, what: str) -> None:
        """Check the rate of a participant's calls and failed transactions (rule 17)."""
        most = _MOST_SCANS if what == SCAN else _MOST_TRIES
        self._judge.tried(view, f"{view.name} tries {what}", self._now_ns(), (most, 1))

    def _content(self, messages: Iterable[Fetched]) -> list[_Given]:
        read = [(each, self.read(each.payload)) for each in messages]
        return [(each.timestamp_ns, it.message_id, each.hint) for each, it in read if it.content]

    def _waiting(self, disk: Disk) -> set[str]:
        rows = disk.tables["waiting"].values()
        return {self.read(row["payload"]).message_id for row in rows}

    # What its core does

    def stepped(
        self, view: View, channel: MessageChannel, now_ms: int, received: SdsMessage | None
    ) -> None:
        """Check a channel after an input: a message, or anything else (rules 7 and 9)."""
        view.latest_ms = max(view.latest_ms, now_ms)
        view.attend(now_ms)
        if received is None:
            view.ticks += 1
        elif self.forged_as(received.message_id, received.content) is None:
            view.asked.pop(received.message_id, None)
            view.lacking.discard(received.message_id)
        ahead = view.latest_ms + view.config.max_clock_ahead_ms + view.ticks
        self._demand(
            channel.clock.value <= ahead,
            f"the clock of {view.name} is {channel.clock.value - view.latest_ms} ms ahead",
        )

    def saw(self, view: View, event: Event, received: SdsMessage | None) -> None:
        """Check an event of a channel."""
        match event:
            case Received():
                assert received is not None
                self._received(view, event, received)
            case Message():
                self._delivered(view, event)
            case Withdrawn():
                self._withdrawn(view, event)
            case Forged():
                forged, name = self.forged_as(event.message_id, event.content), event.message_id
                self._demand(
                    forged is not None, f"{view.name} calls the genuine {name[:10]} forged"
                )
            case Acknowledged():
                self._acknowledged(view, event)
            case GaveUp():
                self._end(view, event.message_id)
                view.given_up.add(event.message_id)
            case Lost():
                self._lost(view, event)
            case Missing():
                had = [each for each in event.messages if each.message_id in view.ids]
                self._demand(not had, f"{view.name} misses {len(had)} messages that it has")
            case Behind():
                view.searched.append(event.since_ms * NS_PER_MS)
            case ClockCapped():
                # The clock need not follow the message that is delivered next.
                view.capped.add(event.message_id)
            case RepairAnswered():
                self._answered(view, event)

    def caught_up(self, view: View, event: CaughtUp, channel: MessageChannel) -> None:
        """Check a channel that reports that it has all of a peer (rule 19)."""
        newest = view.filters.get(event.sender_id)
        if newest is None or newest.bloom_filter is None:
            return
        shape, bits = self._shape, newest.bloom_filter
        if not channel.filter.complete:
            return
        known = view.ids | channel.incoming.ids.keys() | channel.incoming.wants.keys() | view.lost
        lacking = [
            key
            for key, message in self.made.items()
            if key not in known
            and event.sender_id in {message.sender_id, *self.taken.get(key, ())}
            and holds(bits, _probe(shape, key))
        ]
        # A filter that is wrong hides a message that nobody names; several do not happen.
        most = 0 if shape.error_rate < _EXACT else 1
        self._demand(len(lacking) <= most, f"{view.name} has caught up and lacks {len(lacking)}")

    def ended_step(self, view: View, channel: MessageChannel, received: SdsMessage | None) -> None:
        """Check a channel after a step (rules 5 and 20); ``received`` was not refused."""
        if received is not None and received == self.made.get(received.message_id, None):
            kept = received.message_id in view.deceived
            self._demand(not kept, f"{view.name} keeps a forged message after the genuine one came")
        if view.shown and not channel.incoming.waiting:
            lacking = view.shown - view.lost
            self._demand(not lacking, f"{view.name} calls itself synced and lacks {len(lacking)}")

    def spoke(self, view: View, reason: BroadcastReason, message: SdsMessage) -> None:
        """Check a broadcast of a participant (rules 6 to 8)."""
        message_id, lamport = message.message_id, message.lamport or 0
        if reason is BroadcastReason.CONTENT:
            self._demand(message_id not in self.made, f"{view.name} uses {message_id[:10]} again")
            self._demand(lamport > view.last_own, f"the clock of {view.name} goes back")
            self._demand(
                lamport > view.highest, f"{view.name} places a message before what it has delivered"
            )
            self.made[message_id] = message
            view.own[message_id] = view.last_own = lamport
            self._insert(view, (lamport, message_id), None)
        if reason is BroadcastReason.RESEND:
            self._demand(
                message_id in view.sent_ns, f"{view.name} sends {message_id[:10]} for nothing"
            )
        if self.forged_as(message_id, message.content):
            knows = message_id not in view.deceived
            self._demand(not knows, f"{view.name} sends a forged message that it knows as such")
        if reason in (BroadcastReason.CONTENT, BroadcastReason.RESEND):
            view.sent_ns[message_id] = self._now_ns()
        late = [each for each in message.history if each.message_id not in self.made]
        self._demand(not late, f"{view.name} names {len(late)} messages that were never made")

    def check(self, view: View, participant: Participant) -> None:
        """Verify the whole of a participant (rules 2, 8, 16 and 17, and its bounds).

        Raises:
            ViolationError: something does not hold.
            AssertionError: an invariant of the channel is broken.
        """
        channel, now_ns = participant.core, self._now_ns()
        channel.check()
        self._check_bounds(participant)
        keys = [entry.key for entry in channel.log.entries()]
        self._demand(keys == view.keys, f"the log of {view.name} is not what it was told")
        self._demand(keys == sorted(keys), f"the log of {view.name} is not in order")
        self._demand(now_ns - view.ticked_ns <= _LATEST_TICK_NS, f"{view.name} is not ticked")
        self._check_sending(view, channel, now_ns)

    def _check_bounds(self, participant: Participant) -> None:
        channel = participant.core
        config, incoming = channel.config, channel.incoming
        volatile = participant.publisher._volatile
        syncs = sum(item.reason is BroadcastReason.SYNC for item in volatile)
        for count, bound, what in (
            (len(incoming.waiting), config.max_waiting, "messages wait"),
            (len(incoming.wants), config.max_missing, "messages are missing"),
            (len(channel.outgoing), config.max_outgoing, "messages are unacknowledged"),
            (syncs, 1, "sync messages wait to be published"),
            (len(channel.filter), config.filter.capacity, "IDs are in one filter"),
        ):
            self._demand(count <= bound, f"{count} {what} where {bound} may")

    def _check_sending(self, view: View, channel: MessageChannel, now_ns: int) -> None:
        config = view.config
        longest_ns = (config.resend_possible_ms + config.resend_ms + _SLACK_MS) * NS_PER_MS
        open_ids = channel.outgoing.by_id.keys()
        self._demand(open_ids == view.sent_ns.keys(), f"{view.name} has lost sight of what it sent")
        for message_id, sent_ns in view.sent_ns.items():
            self._demand(
                now_ns - sent_ns <= longest_ns,
                f"{view.name} does not send {message_id[:10]} again, unacknowledged as it is",
            )
        if view.listens:
            for message_id, since_ns in view.ready.items():
                late = now_ns - max(since_ns, view.waits_ns) > _PROMPT_NS
                self._demand(not late, f"{view.name} keeps {message_id[:10]} back")

    def unequal(self, views: list[View]) -> str:
        """Return a sentence about a log that lacks messages without notice; empty if none does."""
        everything = set().union(*(view.ids for view in views))
        for view in views:
            # Nothing else names the causes of a message that is lost.
            reported, left = set(view.lost), list(view.lost - view.ids)
            while left:
                lost = self.made.get(left.pop())
                causes = {each.message_id for each in lost.history} if lost else set()
                left += causes - reported - view.ids
                reported |= causes
            if lacking := everything - view.ids - reported:
                return f"{view.name} lacks {len(lacking)} messages and was not told so"
        return ""

    def count(self, views: list[View]) -> dict[str, int]:
        """Return how many messages there are, and how many are lost, forged or wrongly known."""
        everything = set().union(*(view.ids for view in views))
        return {
            "members": len(views),
            "messages": len(everything),
            "lost": sum(len(everything - view.ids) for view in views),
            "deceived": sum(len(view.deceived) for view in views),
            "wrong": self.wrong,
            "wrong, expected in thousandths": round(1_000 * self.wrong_expected),
        }

    # Events

    def _received(self, view: View, event: Received, message: SdsMessage) -> None:
        if event.kind is MessageKind.CONTENT:
            self.taken.setdefault(event.message_id, set()).add(view.name)
        for entry in message.history:
            if entry.message_id not in view.ids:
                view.shown.add(entry.message_id)
        if message.bloom_filter is not None:
            newest = view.filters.get(message.sender_id)
            if newest is None or (newest.lamport or 0) <= (message.lamport or 0):
                view.filters[message.sender_id] = message
        if message.sender_id != view.name:
            for entry in message.repair_request[:MAX_REPAIR_ANSWERED]:
                view.asked[entry.message_id] = None
            if (seen := message.bloom_filter) is not None:
                lacking = {key for key in view.ids if not holds(seen, _probe(self._shape, key))}
                view.lacking |= lacking

    def _delivered(self, view: View, event: Message) -> None:
        forged = self.forged_as(event.message_id, event.content)
        made = forged or self.made.get(event.message_id)
        name = f"{event.message_id[:10]} at {view.name}"
        self._demand(
            made is not None
            and (made.sender_id, made.lamport) == (event.sender_id, event.lamport)
            and made.content == event.content,
            f"{name} was never sent",
        )
        assert made is not None
        self._demand(event.message_id not in view.ids, f"{name} is delivered again")
        self._demand(bool(event.proof) != bool(forged), f"{name} is taken for what it is not")
        if forged is not None:
            view.deceived.add(event.message_id)
        causes = {entry.message_id for entry in made.history}
        absent = causes - view.ids
        self._demand(
            set(event.unmet) == absent, f"{name} comes without {len(absent)} causes, unsaid"
        )
        self._demand(absent <= view.lost | view.replaced, f"{name} comes before its causes")
        self.delivered.setdefault(event.message_id, set()).add(view.name)
        self._insert(view, (event.lamport, event.message_id), event.entries_after)
        if event.message_id not in view.capped:
            view.highest = max(view.highest, event.lamport)

    def _withdrawn(self, view: View, event: Withdrawn) -> None:
        name = event.message_id
        self._demand(name in view.deceived, f"{view.name} withdraws the genuine {name[:10]}")
        view.keys.remove((event.lamport, name))
        view.withdrawn.add((event.lamport, name))
        view.replaced.add(name)
        view.ids.discard(name)
        view.deceived.discard(name)

    def _insert(self, view: View, key: Key, after: int | None) -> None:
        place = bisect_left(view.keys, key)
        self._demand(
            after is None or after == len(view.keys) - place,
            f"{view.name} shows {key[1][:10]} at another place than its log has it",
        )
        view.keys.insert(place, key)
        view.ids.add(key[1])
        view.shown.discard(key[1])

    def _acknowledged(self, view: View, event: Acknowledged) -> None:
        key = event.message_id
        self._end(view, key)
        if event.error_probability:
            self.wrong += not self.taken.get(key, set()) - {view.name}
            self.wrong_expected += event.error_probability
        else:
            known = self.delivered.get(key, set()) - {view.name}
            self._demand(
                bool(known), f"{view.name} calls {key[:10]} acknowledged, which no participant has"
            )

    def _end(self, view: View, key: str) -> None:
        self._demand(
            key in view.sent_ns, f"{view.name} ends {key[:10]}, which was not waiting for that"
        )
        del view.sent_ns[key]

    def _lost(self, view: View, event: Lost) -> None:
        had = [key for key in event.message_ids if key in view.ids or key not in view.shown]
        self._demand(
            not had, f"{view.name} calls {len(had)} messages lost that it was not waiting for"
        )
        lived_ms = view.last_ms - view.attended_ms
        self._demand(
            view.abandons or 2 * (lived_ms + _BOOT_MS) >= (view.config.lost_after_ms or 0),
            f"{view.name} gives up after {lived_ms} ms",
        )
        view.lost.update(event.message_ids)

    def _answered(self, view: View, event: RepairAnswered) -> None:
        key = event.message_id
        waits = key in view.asked or key in view.lacking
        self._demand(waits, f"{view.name} answers for {key[:10]}, which no participant waits for")
        view.asked.pop(key, None)


@lru_cache(maxsize=10_000)
def _probe(shape: FilterShape, message_id: str) -> Probe:
    return shape.probe(message_id)


def _names(disk: Disk, table: str) -> set[str]:
    return {row["message_id"].decode() for row in disk.tables[table].values()}
