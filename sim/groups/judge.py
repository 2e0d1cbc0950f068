"""The judge of a group: knows what everybody said, and demands what must hold at every moment.

1. Nothing is invented: what is delivered was said so, by whom it names; once in each log.
2. A log is in the order of (Lamport timestamp, message ID), and an application that follows
   ``entries_after`` has the same.
3. A message is delivered after all its causes; those that are not there it names, and they were
   told as lost.
4. Whoever is said to have a message by a history has delivered it; acknowledgements by filters
   alone may be wrong about as often as they say.
5. Who calls itself synced lacks nothing that it was shown, but for what it was told is lost.
6. A message comes after all that its sender had delivered, but for clocks that were too far ahead.
7. No clock is further ahead than allowed, and a sender's clock rises with every message.
8. What is not acknowledged is sent again, in its time; and ends as acknowledged or given up.
9. Nobody answers a request that it did not hear, nor one that somebody has answered meanwhile.
10. What was written down comes back, with every message that had left.
11. Nobody sleeps longer than a participant may be silent, whatever its clock does.
12. Nothing is given up right after a time in which nobody could look for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sim.groups.spoken import Spoken
from sim.judge import Violation
from sim.limits import NS_PER_MS
from storenode.sds.channel import MessageChannel
from storenode.sds.config import ChannelConfig
from storenode.sds.envelope import Kind, SdsMessage
from storenode.sds.events import (
    Acknowledged,
    ClockCapped,
    Delivered,
    Event,
    GaveUp,
    Lost,
    Missing,
    Published,
    Reason,
    Receive,
    Received,
    RepairAnswered,
    Send,
    Tick,
)
from storenode.sds.limits import MAX_REPAIR_ANSWERED, UNATTENDED_SWEEPS
from storenode.sds.pages import Key
from storenode.sds.snapshot import snapshot

_SLACK_MS: Final = 2_000


@dataclass(slots=True)
class Wrong:
    """Acknowledgements by filters: how many were wrong, and how many might be by what they say."""

    found: int = 0
    expected: float = 0.0


class View:
    """What the judge knows of one participant.

    Attributes:
        keys: the log as its application has it.
        shown: causes that it was shown and that are not in its log.
        lost: what it was told is lost.
        sent_ns: own unacknowledged messages -> when they were sent last.
    """

    def __init__(self, name: str, config: ChannelConfig) -> None:
        self.name = name
        self.config = config
        self.keys: list[Key] = []
        self.ids: set[str] = set()
        self.shown: set[str] = set()
        self.lost: set[str] = set()
        self.own: dict[str, int] = {}
        self.sent_ns: dict[str, int] = {}
        self.asked: dict[str, None] = {}
        self.capped = ""
        self.highest = 0
        self.last_own = 0
        self.latest_ms = 0
        self.last_ms = 0
        self.attended_ms = 0
        self.ticks = 0

    def clock_was_set(self, now_ns: int, now_ms: int) -> None:
        """Times that were to come count from now on."""
        self.latest_ms = max(self.latest_ms, now_ms)
        self.sent_ns = dict.fromkeys(self.sent_ns, now_ns)

    def attend(self, now_ms: int) -> None:
        """Somebody looks after the channel at this time of its clock."""
        leap_ms, self.last_ms = now_ms - self.last_ms, now_ms
        if leap_ms > UNATTENDED_SWEEPS * self.config.missing_every_ms:
            self.attended_ms = now_ms
        elif leap_ms < 0:
            self.attended_ms += leap_ms


class GroupJudge:
    """Looks on, and raises `Violation`.

    Attributes:
        made: every message with content that was broadcast, by ID.
        wrong: about acknowledgements by filters.
    """

    def __init__(self) -> None:
        self.made: dict[str, SdsMessage] = {}
        self.wrong = Wrong()
        self.delivered: dict[str, set[str]] = {}
        self.taken: dict[str, set[str]] = {}
        self._saw: Mapping[type[Event], Callable[[View, Event, Spoken | None], None]] = {
            Received: self._received,
            Delivered: self._delivered,
            Acknowledged: self._acknowledged,
            GaveUp: self._gave_up,
            Lost: self._lost,
            Missing: self._missing,
            ClockCapped: self._capped,
            RepairAnswered: self._answered,
        }

    # Lives

    def booted(self, view: View, channel: MessageChannel, saved: bytes | None, now_ns: int) -> None:
        """A life begins from what was written down (rule 10)."""
        if saved is not None:
            _demand(snapshot(channel) == saved, f"{view.name} writes down what it does not read")
        entries = list(channel.log.entries())
        view.keys = [entry.key for entry in entries]
        view.ids = {entry.message_id for entry in entries}
        forgotten = [key for key in view.own if key not in view.ids]
        _demand(not forgotten, f"{view.name} has forgotten {len(forgotten)} messages that it sent")
        waiting = channel.incoming.waiting.values()
        view.shown = {key for each in waiting for key in each.unmet}
        view.sent_ns = dict.fromkeys(channel.outgoing.by_id, now_ns)
        pending = () if channel.answers is None else channel.answers.pending
        view.asked = dict.fromkeys(pending)
        view.highest = channel.clock.value

    # What it does

    def stepped(
        self,
        view: View,
        channel: MessageChannel,
        now_ms: int,
        given: Send | Receive | Published | Tick,
        spoken: Spoken | None,
    ) -> None:
        """A channel has been given something (rules 7 and 9)."""
        view.latest_ms = max(view.latest_ms, now_ms)
        view.attend(now_ms)
        if not isinstance(given, Receive):
            view.ticks += 1
        elif spoken is not None:
            view.asked.pop(spoken.message.message_id, None)
        ahead = view.latest_ms + view.config.max_clock_ahead_ms + view.ticks
        _demand(
            channel.clock.value <= ahead,
            f"the clock of {view.name} is {channel.clock.value - view.latest_ms} ms ahead",
        )

    def saw(self, view: View, event: Event, spoken: Spoken | None) -> None:
        """A channel has said something."""
        look = self._saw.get(type(event))
        if look is not None:
            look(view, event, spoken)

    def ended_step(self, view: View, channel: MessageChannel) -> None:
        """A step is over (rule 5)."""
        if view.shown and not channel.incoming.waiting:
            lacking = view.shown - view.lost
            _demand(not lacking, f"{view.name} calls itself synced and lacks {len(lacking)}")

    def spoke(self, view: View, reason: Reason, message: SdsMessage, now_ns: int) -> None:
        """A participant broadcasts (rules 6 to 8)."""
        message_id, lamport = message.message_id, message.lamport or 0
        if reason is Reason.CONTENT:
            _demand(message_id not in self.made, f"{view.name} uses {message_id[:10]} again")
            _demand(lamport > view.last_own, f"the clock of {view.name} goes back")
            _demand(
                lamport > view.highest, f"{view.name} places a message before what it has delivered"
            )
            self.made[message_id] = message
            view.own[message_id] = view.last_own = lamport
            self._insert(view, (lamport, message_id), None)
        if reason is Reason.RESEND:
            _demand(message_id in view.sent_ns, f"{view.name} sends {message_id[:10]} for nothing")
        if reason in (Reason.CONTENT, Reason.RESEND):
            view.sent_ns[message_id] = now_ns
        late = [each for each in message.history if each.message_id not in self.made]
        _demand(not late, f"{view.name} names {len(late)} messages that nobody made")

    @staticmethod
    def slept(view: View, delay_ms: int) -> None:
        """A participant wants to be woken after so many milliseconds (rule 11)."""
        _demand(
            delay_ms <= max(view.config.sync_at_least_ms, 1),
            f"{view.name} sleeps for {delay_ms} ms",
        )

    def check(self, view: View, channel: MessageChannel, now_ns: int) -> None:
        """Verify the whole of a participant (rules 2 and 8, and its bounds).

        Raises:
            Violation: something does not hold.
            AssertionError: an invariant of the channel is broken.
        """
        channel.check()
        _check_bounds(channel)
        keys = [entry.key for entry in channel.log.entries()]
        _demand(keys == view.keys, f"the log of {view.name} is not what it was told")
        _demand(keys == sorted(keys), f"the log of {view.name} is not in order")
        config = view.config
        longest_ns = (config.resend_possible_ms + config.resend_ms + _SLACK_MS) * NS_PER_MS
        open_ids = channel.outgoing.by_id.keys()
        _demand(open_ids == view.sent_ns.keys(), f"{view.name} has lost sight of what it sent")
        for message_id, sent_ns in view.sent_ns.items():
            silent_ns = now_ns - sent_ns
            _demand(
                silent_ns <= longest_ns,
                f"{view.name} does not send {message_id[:10]} again, unacknowledged as it is",
            )

    def unequal(self, views: list[View]) -> str:
        """Who lacks what without having been told, as a sentence; empty if nobody does."""
        everything = set().union(*(view.ids for view in views))
        for view in views:
            lacking = everything - view.ids - view.lost
            if lacking:
                return f"{view.name} lacks {len(lacking)} messages and was not told so"
        return ""

    # Events

    def _received(self, view: View, event: Event, spoken: Spoken | None) -> None:
        assert isinstance(event, Received)
        assert spoken is not None
        message = spoken.message
        if event.kind is Kind.CONTENT:
            self.taken.setdefault(event.message_id, set()).add(view.name)
        for entry in message.history:
            if entry.message_id not in view.ids:
                view.shown.add(entry.message_id)
        if message.sender_id != view.name:
            for entry in message.repair_request[:MAX_REPAIR_ANSWERED]:
                view.asked[entry.message_id] = None

    def _delivered(self, view: View, event: Event, _: Spoken | None) -> None:
        assert isinstance(event, Delivered)
        made = self.made.get(event.message_id)
        name = f"{event.message_id[:10]} at {view.name}"
        _demand(
            made is not None
            and (made.sender_id, made.lamport) == (event.sender_id, event.lamport)
            and made.content == event.content,
            f"nobody said {name}",
        )
        assert made is not None
        _demand(event.message_id not in view.ids, f"{name} is delivered again")
        causes = {entry.message_id for entry in made.history}
        absent = causes - view.ids
        _demand(set(event.unmet) == absent, f"{name} comes without {len(absent)} causes, unsaid")
        _demand(absent <= view.lost, f"{name} comes before its causes")
        self.delivered.setdefault(event.message_id, set()).add(view.name)
        self._insert(view, (event.lamport, event.message_id), event.entries_after)
        if view.capped != event.message_id:
            view.highest = max(view.highest, event.lamport)

    def _insert(self, view: View, key: Key, after: int | None) -> None:
        place = bisect_left(view.keys, key)
        _demand(
            after is None or after == len(view.keys) - place,
            f"{view.name} shows {key[1][:10]} at another place than its log has it",
        )
        view.keys.insert(place, key)
        view.ids.add(key[1])
        view.shown.discard(key[1])

    def _capped(self, view: View, event: Event, _: Spoken | None) -> None:
        """The clock need not follow the message that is delivered next."""
        assert isinstance(event, ClockCapped)
        view.capped = event.message_id

    def _acknowledged(self, view: View, event: Event, _: Spoken | None) -> None:
        assert isinstance(event, Acknowledged)
        key = event.message_id
        self._end(view, key)
        if event.error_probability:
            self.wrong.expected += event.error_probability
            self.wrong.found += not self.taken.get(key, set()) - {view.name}
        else:
            known = self.delivered.get(key, set()) - {view.name}
            _demand(bool(known), f"{view.name} calls {key[:10]} acknowledged, and nobody has it")

    def _gave_up(self, view: View, event: Event, _: Spoken | None) -> None:
        assert isinstance(event, GaveUp)
        self._end(view, event.message_id)

    @staticmethod
    def _end(view: View, key: str) -> None:
        _demand(key in view.sent_ns, f"{view.name} ends {key[:10]}, which was not waiting for that")
        del view.sent_ns[key]

    def _lost(self, view: View, event: Event, _: Spoken | None) -> None:
        assert isinstance(event, Lost)
        had = [key for key in event.message_ids if key in view.ids or key not in view.shown]
        _demand(not had, f"{view.name} calls {len(had)} messages lost that it was not waiting for")
        lived_ms = view.last_ms - view.attended_ms
        _demand(
            2 * lived_ms >= (view.config.lost_after_ms or 0),
            f"{view.name} gives up after {lived_ms} ms",
        )
        view.lost.update(event.message_ids)

    def _missing(self, view: View, event: Event, _: Spoken | None) -> None:
        assert isinstance(event, Missing)
        had = [each for each in event.messages if each.message_id in view.ids]
        _demand(not had, f"{view.name} misses {len(had)} messages that it has")

    def _answered(self, view: View, event: Event, _: Spoken | None) -> None:
        assert isinstance(event, RepairAnswered)
        key = event.message_id
        _demand(key in view.asked, f"{view.name} answers for {key[:10]}, and nobody waits for that")
        del view.asked[key]


def _check_bounds(channel: MessageChannel) -> None:
    config, incoming = channel.config, channel.incoming
    bounds = (
        (len(incoming.waiting), config.max_waiting, "messages wait"),
        (len(incoming.wants), config.max_missing, "messages are missing"),
        (len(channel.outgoing), config.max_outgoing, "messages are unacknowledged"),
        (len(channel.filter), config.filter.capacity, "IDs are in one filter"),
    )
    for count, bound, what in bounds:
        _demand(count <= bound, f"{count} {what} where {bound} may")


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise Violation(sentence)
