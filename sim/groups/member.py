"""A participant: its state over its lives, and one life of the shipped participant.

Its application sends messages, and reads the log and what comes after as any application does. A
life ends when it leaves, or with a crash: then all is gone that no transaction has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from sim.bridge import Life
from sim.groups.disk import Disk, SimState
from sim.groups.judge import View
from sim.groups.link import ROUTE, GroupLink, Radio
from sim.limits import NS_PER_MS, NS_PER_S
from sim.network import Host
from sim.rng import happens
from sim.timeline import Clock
from storenode.common.errors import ClientClosedError
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.join_options import Joining
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.transport import Fetched
from storenode.sds.channel import ChannelFullError, MessageChannel
from storenode.sds.codec import SdsMessage
from storenode.sds.events import Broadcast, CaughtUp, Event, Packet, Refused, Withdrawn

if TYPE_CHECKING:
    from sim.world import World

_RESTART_S: Final = 1, 5, 15
_QUIET_NS: Final = 2 * NS_PER_S
"""The time after which nothing of a participant that has left may still run."""

_LATEST_READER_S: Final = 1.5
"""The latest time at which an application begins to read, while transactions are running."""

LEAVE_NS: Final = 30 * NS_PER_S
"""The longest time that leaving takes."""


class Member(Host):
    """A participant.

    Attributes:
        participant: of its present life; None while it is off.
        disk: what is written down of it; backup: what was when its life began.
        view: the judge's view of it.
        life: the present or the last one.
    """

    def __init__(self, world: World, number: int) -> None:
        self.name = f"p{number}"
        self.world = world
        self._hashes = number % 2 == 1
        self.config = replace(world.group.config, sender_id=self.name)
        self.clock = Clock(world.timeline)
        self.view = View(self.name, self.config)
        self.disk, self.backup = Disk(), Disk()
        self.participant: Participant | None = None
        self.crashes = 0
        self.life = Life()
        self.life.ended = True
        self.radio = Radio()
        self._channel: Channel | None = None
        self._leaving = asyncio.Event()

    @property
    def now_ms(self) -> int:
        """The time of its clock, in milliseconds."""
        return self.clock.unix_ns() // NS_PER_MS

    def note(self, what: str) -> None:
        """Note an event in the trace."""
        self.world.trace.note(self.name, what)

    # Lives

    def boot(self) -> None:
        """Begin a life, where the last one was written down; nothing to do while one lasts."""
        if self.life.ended:
            self.life, self.radio = Life(), Radio()
            self._leaving = asyncio.Event()
            self.world.loop.begin(self.life, self._live(self.life))

    def crash(self, why: str) -> None:
        """End a life: what was not written down is gone."""
        self.note(f"crashes {why}")
        self.crashes += 1
        self.participant = None
        self.life.end()
        self.world.network.drop_calls(self.name)
        if self.disk.connection and happens(self.world.rng, self.world.faults_now.restored):
            self.world.counts["a participant was restored from a backup"] += 1
            self.disk = self.backup
            self.view.forget(self.disk.log.keys())
        self.world.restart_later(self, _RESTART_S)

    def crash_soon(self, why: str) -> None:
        """Crash at this moment."""
        life = self.life

        def act() -> None:
            if not life.ended:
                self.world.counts[f"a participant crashed {why}"] += 1
                self.crash(why)

        self.world.timeline.soon(act)

    def leave(self) -> None:
        """End a life in good order."""
        self.note("leaves")
        self._leaving.set()
        life = self.life

        def look() -> None:
            left = life.ended or self.world.over
            self.world.judge.demand(left, f"{self.name} does not leave")

        self.world.timeline.after(LEAVE_NS, look)

    @property
    def stays(self) -> bool:
        """True if it takes part, and is not about to leave."""
        return self.participant is not None and not self._leaving.is_set()

    async def _live(self, life: Life) -> None:
        world = self.world
        names: list[str | None] = [node.name for node in world.nodes]
        nodes = world.rng.sample(names, len(names)) or [None]
        state, clock = SimState(self, life), self.clock.unix_ns
        joining = Joining(state=state, route=ROUTE, config=self.config, clock=clock, rng=world.rng)
        links = [GroupLink(self, life, node) for node in nodes]
        participant = await Participant.join(joining, None, links)
        self.note(f"starts with {len(participant.core.log)} messages")
        world.group_judge.booted(self.view, participant, self.disk, self.now_ms)
        if world.faults_now.restored:
            self.backup = self.disk.backup()
        self._watch(participant.core)
        self.participant, self._channel = participant, Channel(participant)
        world.loop.begin(life, self._read(self._channel))
        await self._leaving.wait()
        await participant.leave()
        self.participant = None
        world.timeline.after(_QUIET_NS, lambda: self._over(life))

    def _over(self, life: Life) -> None:
        if not (life.ended or self.world.over):
            tasks = list(life.tasks)
            self.world.judge.demand(not tasks, f"tasks are left of {self.name}: {tasks}")
            self.note("has left")
            life.end()
            self.world.restart_later(self, _RESTART_S)

    # Its application

    def say(self, content: bytes) -> None:
        """Send a message of the user."""
        assert self._channel is not None
        self.world.loop.begin(self.life, self._say(self._channel, content))

    async def _say(self, channel: Channel, content: bytes) -> None:
        # Where there are forgeries, some make IDs as the JavaScript library does.
        hashed = self._hashes and self.world.scenario.faults.forged > 0
        name = sha256(content).hexdigest() if hashed else None
        try:
            message_id = await channel.send(content, name)
        except ChannelFullError:
            self.world.counts["a channel was full"] += 1
        except ClientClosedError:
            self.world.counts["something was said too late"] += 1
        else:
            self.view.promised.add(message_id)

    async def _read(self, channel: Channel) -> None:
        await asyncio.sleep(self.world.rng.uniform(0, _LATEST_READER_S))
        with suppress(ClientClosedError):
            async for change in channel.changes():
                if isinstance(change, Withdrawn):
                    self.world.group_judge.hidden(self.view, change)
                else:
                    self.world.group_judge.shown(self.view, self.disk, change)

    # What others do

    def receive(self, sender: str, letter: object) -> None:  # noqa: ARG002 - as of every host
        """Receive a broadcast; what comes while it is off is lost."""
        assert isinstance(letter, Fetched)
        if self.participant is not None:
            self.radio.hear(letter)

    def jump(self, offset_ns: int) -> None:
        """Set the clock."""
        self.clock.offset_ns = offset_ns
        self.note(f"has its clock set to {offset_ns // NS_PER_MS} ms ahead")
        self.view.clock_was_set(self.world.timeline.now_ns, self.now_ms)

    # What the judge sees

    def check(self) -> None:
        """Verify the whole of its present life, if it is on."""
        if self.participant is not None:
            self.world.group_judge.check(self.view, self.participant)

    def open_end(self) -> str:
        """Return a sentence about what it still has to do; empty if that is nothing."""
        if self.participant is None:
            return f"{self.name} is not there"
        core, view = self.participant.core, self.view
        for count, what in (
            (len(core.incoming.waiting) or len(core.incoming.wants), "messages that wait"),
            (len(core.outgoing), "unacknowledged messages"),
            (len(self.participant.ledger.outbox), "unpublished messages"),
            (view.keys != view.shown_keys, "messages that it has not shown"),
        ):
            if count:
                return f"{self.name} has {count} {what}"
        return ""

    def check_left(self) -> None:
        """Verify that it has left, and has written down what it has shown."""
        assert self.life.ended, f"{self.name} has not left"
        saved = sorted((row["lamport"], name) for name, row in self.disk.log.items())
        shown = [message_id for _, message_id in self.view.shown_keys]
        assert [name for _, name in saved] == shown, f"{self.name} has not saved what it has shown"

    def scans(self, since_ns: int, messages: Iterable[Fetched]) -> None:
        """Note a scan that will bring these messages; another search closes no gap."""
        task = asyncio.current_task()
        if since_ns in self.view.searched:
            self.view.searched.remove(since_ns)
        elif getattr(task and task.get_coro(), "__name__", "") == "searches":
            # It continues with a search that failed, from where that had come to.
            return
        elif self.participant is not None:
            self.world.group_judge.scans(self.view, messages, self.participant.ledger.commits)

    def _watch(self, core: Any) -> None:  # noqa: ANN401 - a channel, whose methods are replaced
        receive, next_due_ms = core.receive, core.next_due_ms

        def one_by_one(now_ms: int, packets: Iterable[Packet]) -> list[Event]:
            events: list[Event] = []
            for packet in packets:
                received = self.world.group_judge.read(packet.payload)
                self.world.counts["received"] += 1
                self.world.counts["received bytes"] += len(packet.payload)
                events += self._judged(core, receive(now_ms, [packet]), received)
            return events

        def due_watched(rng: object) -> int:
            due_ms: int = next_due_ms(rng)
            if self.view.ticked_ns == self.world.timeline.now_ns:
                delay_ms = due_ms - self.now_ms
                self.world.judge.demand(
                    delay_ms <= max(self.config.sync_at_least_ms, 1),
                    f"{self.name} sleeps for {delay_ms} ms",
                )
            return due_ms

        core.receive, core.next_due_ms = one_by_one, due_watched
        for name in ("send", "published", "recalled", "tick", "abandon"):
            setattr(core, name, partial(self._watched, core, name, getattr(core, name)))

    def _watched(
        self, core: MessageChannel, name: str, method: Callable[..., list[Event]], *given: object
    ) -> list[Event]:
        events = self._judged(core, method(*given), abandoned=name == "abandon")
        if name == "tick":
            self.view.ticked_ns = self.world.timeline.now_ns
        return events

    def _judged(
        self,
        core: MessageChannel,
        events: list[Event],
        received: SdsMessage | None = None,
        *,
        abandoned: bool = False,
    ) -> list[Event]:
        world, view = self.world, self.view
        judge = world.group_judge
        judge.stepped(view, core, self.now_ms, received)
        view.abandons = abandoned
        for event in events:
            judge.saw(view, event, received)
            if isinstance(event, CaughtUp):
                judge.caught_up(view, event, core)
            if isinstance(event, Broadcast):
                message = judge.read(event.payload)
                world.counts[event.reason.value] += 1
                judge.spoke(view, event.reason, message)
                self.note(f"{event.reason.value} {message.message_id[:10]}")
        refused = any(isinstance(event, Refused) for event in events)
        judge.ended_step(view, core, None if refused else received)
        return events
