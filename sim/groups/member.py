"""A participant: what stays of it over its lives, and one life with the real channel.

It writes its state down before a message of its own leaves it, so that a life never uses again
what others have seen, and now and then besides; what came after that is gone with a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from sim.clock import Clock
from sim.dice import happens
from sim.groups.judge import View
from sim.groups.link import Link
from sim.groups.spoken import Spoken
from sim.limits import NS_PER_MS
from sim.network import Caller
from sim.timeline import Timer
from storenode.sds.channel import ChannelFullError, MessageChannel
from storenode.sds.envelope import SdsMessage, decode_message
from storenode.sds.events import (
    Broadcast,
    Event,
    Missing,
    Packet,
    Published,
    Reason,
    Receive,
    Send,
    Tick,
)
from storenode.sds.snapshot import restore, snapshot

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

_LASTING: Final = frozenset({Reason.CONTENT, Reason.RESEND, Reason.REPAIR})
_HASH_BYTES: Final = 32


class Member(Caller):
    """One participant; a `sim.network.Host`.

    Attributes:
        channel: of its present life; None while it is off.
        view: what the judge knows of it.
        places: how far it has followed each store, as it was written down last.
    """

    def __init__(self, world: GroupWorld, number: int) -> None:
        self.name = f"p{number}"
        self.world = world
        self.config = replace(world.scenario.config, sender_id=self.name)
        self.clock = Clock(world.timeline)
        self.view = View(self.name, self.config)
        self.channel: MessageChannel | None = None
        self.crashes = 0
        self.places: dict[str, int] = {}
        self._link: Link | None = None
        self._saved: bytes | None = None
        self._saved_places: dict[str, int] = {}
        self._saved_outbox: tuple[Spoken, ...] = ()
        self._tick: Timer | None = None
        self._tick_ms = 0
        self._persist: Timer | None = None

    @property
    def now_ms(self) -> int:
        """What it takes for the time, in milliseconds."""
        return self.clock.unix_ns() // NS_PER_MS

    def note(self, what: str) -> None:
        """Something happened here."""
        self.world.trace.note(self.name, what)

    # Lives

    def boot(self) -> None:
        """Begin a life, where the last one was written down."""
        assert self.channel is None
        if self._saved is None:
            self.channel = MessageChannel(self.config, self.now_ms, self.world.dice)
        else:
            self.channel = restore(self.config, self._saved)
        self.places = dict(self._saved_places)
        self.note(f"starts with {len(self.channel.log)} messages")
        self.world.judge.booted(self.view, self.channel, self._saved, self.world.timeline.now_ns)
        if self.world.stores:
            self._link = Link(self, self._saved_outbox)
        self._tick_now()
        self._persist_later()

    def crash(self, why: str) -> None:
        """End a life: what was not written down is gone."""
        assert self.channel is not None
        self.note(f"crashes {why}")
        self.channel = None
        self.crashes += 1
        for timer in (self._tick, self._persist):
            if timer is not None:
                timer.cancel()
        self._tick = None
        if self._link is not None:
            self._link.end()
            self._link = None
        self.world.network.drop_calls(self.name)
        self.world.restart_later(self)

    def persist(self) -> None:
        """Write everything down."""
        if self.channel is not None and self.world.scenario.persist_ns:
            self._saved = snapshot(self.channel)
            self._saved_places = dict(self.places)
            self._saved_outbox = () if self._link is None else self._link.unstored()

    def jump(self, offset_ns: int) -> None:
        """Somebody sets the clock."""
        self.clock.offset_ns = offset_ns
        self.note(f"has its clock set to {offset_ns // NS_PER_MS} ms ahead")
        self.view.clock_was_set(self.world.timeline.now_ns, self.now_ms)
        if self.channel is not None:
            self._tick_now()

    # What it does

    def say(self, content: bytes) -> None:
        """The user says something."""
        if self.channel is not None:
            try:
                self.step(Send(content))
            except ChannelFullError:
                self.world.mark("a channel was full")

    def receive(self, sender: str, letter: object) -> None:  # noqa: ARG002 - as of every host
        """Hear somebody's broadcast; what comes while it is off is lost."""
        if self.channel is not None:
            assert isinstance(letter, Spoken)
            self.take((letter,))

    def take(self, messages: Sequence[Spoken]) -> bool:
        """Take what came, from others or from a store; False: there was no room for some of it."""
        hinted = bool(self.world.stores)
        self.world.heard += len(messages)
        full_before = self._times_full
        for spoken in messages:
            if self.channel is None:
                break
            packet = Packet(spoken.payload, spoken.hint if hinted else None)
            self.step(Receive((packet,)), spoken)
        return self._times_full == full_before

    @property
    def _times_full(self) -> int:
        return 0 if self.channel is None else self.channel.counts.buffer_full

    def step(self, given: Send | Receive | Published | Tick, spoken: Spoken | None = None) -> None:
        """Give the channel something, and do what it says."""
        channel, judge = self.channel, self.world.judge
        assert channel is not None
        now_ms = self.now_ms
        events = channel.step(now_ms, given, self.world.dice)
        judge.stepped(self.view, channel, now_ms, given, spoken)
        for event in events:
            judge.saw(self.view, event, spoken)
            self._act(event)
            if self.channel is not channel:
                return
        judge.ended_step(self.view, channel)
        if events or isinstance(given, Tick):
            self._arm()

    def _act(self, event: Event) -> None:
        if isinstance(event, Broadcast):
            self._broadcast(event)
        elif isinstance(event, Missing) and self._link is not None:
            self._link.look_for(event.messages)

    def _broadcast(self, event: Broadcast) -> None:
        world = self.world
        message = decode_message(event.payload)
        world.broadcasts[event.reason.value] += 1
        world.judge.spoke(self.view, event.reason, message, world.timeline.now_ns)
        spoken = self._spoken(event, message)
        self.note(f"{event.reason.value} {message.message_id[:10]}")
        if self._link is not None:
            self._link.publish(spoken)
        if event.reason is Reason.CONTENT:
            self.persist()
            if happens(world.dice, world.faults_now.send_crashes):
                world.mark("a participant crashed between writing down and sending")
                self.crash("before it sends")
                return
        world.relay(self.name, spoken)

    def _spoken(self, event: Broadcast, message: SdsMessage) -> Spoken:
        time_ns = self.clock.unix_ns()
        digest = blake2b(event.payload + time_ns.to_bytes(9), digest_size=_HASH_BYTES).digest()
        return Spoken(event.payload, digest, time_ns, message, event.reason in _LASTING)

    def _arm(self) -> None:
        """Tick when the channel says so; a tick that comes early does no harm."""
        channel = self.channel
        assert channel is not None
        due_ms = max(channel.next_due_ms(self.world.dice), self.now_ms + 1)
        self.world.judge.slept(self.view, due_ms - self.now_ms)
        if self._tick is not None:
            if self._tick_ms <= due_ms:
                return
            self._tick.cancel()
        self._tick_ms = due_ms
        delay_ns = due_ms * NS_PER_MS - self.clock.unix_ns()
        self._tick = self.world.timeline.after(delay_ns, self._tick_now)

    def _tick_now(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self.step(Tick())

    def _persist_later(self) -> None:
        def act() -> None:
            self.persist()
            self._persist_later()

        delay_ns = int(self.world.scenario.persist_ns * self.world.dice.uniform(0.5, 1.5))
        self._persist = self.world.timeline.after(delay_ns, act)
