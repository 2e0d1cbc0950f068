"""Random groups on a bus that loses, repeats, delays and reorders, with restarts.

First the faults, then a time without any: in the end every log is equal, or differs only by what
the participants that lack it were told is lost.
"""

import random
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from storenode.sds.channel import ChannelFullError, MessageChannel
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Acknowledged, Broadcast, Delivered, Event, GaveUp, Lost, Packet
from storenode.sds.snapshot import restore, snapshot
from tests.unit.sds.worlds import NOW, config, log_ids

STEP_MS = 250
REPAIR = RepairConfig(500, 2_000)


@dataclass
class Member:
    channel: MessageChannel
    saved: bytes
    told_lost: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)


@dataclass
class Bus:
    """Participants in one process. Every packet meets its fate once per receiver.

    With a store everything that was sent can be retrieved; without, participants repair.
    """

    seed: int
    size: int
    loss: float
    with_store: bool
    lost_after_ms: int | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.now = NOW
        self.flying: list[tuple[int, int, int, bytes]] = []
        self.stored: dict[str, bytes] = {}
        self.sent = 0
        self.members = [self._member(number) for number in range(self.size)]

    def config(self, number: int) -> ChannelConfig:
        return replace(
            config(f"member{number}", repair=None if self.with_store else REPAIR),
            gap_entries=4,
            resend_ms=3_000,
            resend_possible_ms=9_000,
            sync_min_ms=1_000,
            sync_max_ms=3_000,
            sync_owed_ms=4_000,
            sync_at_least_ms=8_000,
            missing_every_ms=1_000,
            lost_after_ms=self.lost_after_ms,
        )

    def _member(self, number: int) -> Member:
        channel = MessageChannel(self.config(number), self.now, self.chance)
        return Member(channel, snapshot(channel))

    def run(self, steps: int, *, faulty: bool) -> None:
        for _ in range(steps):
            self.now += STEP_MS
            self._arrive(faulty=faulty)
            for number, member in enumerate(self.members):
                if faulty and self.chance.random() < 0.06:
                    self._send(number, member)
                self._handle(number, member.channel.tick(self.now, self.chance), faulty=faulty)
            if faulty and self.chance.random() < 0.05:
                self._restart(self.chance.randrange(self.size))

    def _send(self, number: int, member: Member) -> None:
        self.sent += 1
        try:
            events = member.channel.send(self.now, b"%d" % self.sent)
        except ChannelFullError:
            return
        member.order.append(next(e.message_id for e in events if isinstance(e, Broadcast)))
        self._handle(number, events, faulty=True)
        member.saved = snapshot(member.channel)

    def _restart(self, number: int) -> None:
        """A participant saves before it publishes; what it received after that comes again."""
        member = self.members[number]
        member.channel = restore(self.config(number), member.saved)
        kept = set(log_ids(member.channel))
        member.order = [message_id for message_id in member.order if message_id in kept]

    def _handle(self, number: int, events: list[Event], *, faulty: bool) -> None:
        for event in events:
            if isinstance(event, Broadcast):
                self._fly(number, event, faulty=faulty)
            elif isinstance(event, Delivered):
                self.members[number].order.append(event.message_id)
            elif isinstance(event, Lost):
                self.members[number].told_lost.update(event.message_ids)

    def _fly(self, number: int, event: Broadcast, *, faulty: bool) -> None:
        self.stored.setdefault(event.message_id, event.payload)
        for other in range(self.size):
            if other == number or (faulty and self.chance.random() < self.loss):
                continue
            for _ in range(2 if faulty and self.chance.random() < 0.1 else 1):
                at = self.now + self.chance.randrange(2_000 if faulty else 100)
                heappush(self.flying, (at, self.chance.getrandbits(30), other, event.payload))

    def _arrive(self, *, faulty: bool) -> None:
        while self.flying and self.flying[0][0] <= self.now:
            _, _, number, payload = heappop(self.flying)
            channel = self.members[number].channel
            self._handle(number, channel.receive(self.now, [Packet(payload)]), faulty=faulty)
        if self.with_store:
            for number, member in enumerate(self.members):
                wanted = [entry.message_id for entry in member.channel.missing()]
                found = [Packet(self.stored[key]) for key in wanted if key in self.stored]
                self._handle(number, member.channel.receive(self.now, found), faulty=faulty)

    def check(self) -> None:
        for member in self.members:
            member.channel.check()
            assert sorted(member.order) == sorted(log_ids(member.channel))
            assert len(member.channel.incoming) == 0
            assert len(member.channel.outgoing) == 0
        everything = set().union(*(log_ids(member.channel) for member in self.members))
        for member in self.members:
            lacking = everything - set(log_ids(member.channel))
            assert lacking <= member.told_lost
            shared = [key for key in self._order(everything) if key not in lacking]
            assert log_ids(member.channel) == shared

    def _order(self, everything: set[str]) -> list[str]:
        clocks = {
            entry.message_id: entry.lamport
            for member in self.members
            for entry in member.channel.log.entries()
        }
        return sorted(everything, key=lambda key: (clocks[key], key))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 6),
    loss=st.floats(0, 0.4),
    with_store=st.booleans(),
)
@example(seed=1, size=5, loss=0.4, with_store=False)
@example(seed=2, size=5, loss=0.4, with_store=True)
def test_groups_end_with_equal_logs(seed: int, size: int, loss: float, with_store: bool) -> None:
    bus = Bus(seed, size, loss, with_store)
    bus.run(120, faulty=True)
    bus.run(400, faulty=False)
    assert not any(member.told_lost for member in bus.members)
    bus.check()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_what_differs_was_told_as_lost(seed: int) -> None:
    bus = Bus(seed, 4, 0.5, with_store=False, lost_after_ms=1_500)
    bus.run(120, faulty=True)
    bus.run(400, faulty=False)
    assert any(member.told_lost for member in bus.members)
    bus.check()


def test_every_own_message_ends_in_one_way() -> None:
    bus = Bus(9, 3, 0.3, with_store=True)
    seen: list[Event] = []
    handle = bus._handle

    def watch(number: int, events: list[Event], *, faulty: bool) -> None:
        seen.extend(events)
        handle(number, events, faulty=faulty)

    bus._handle = watch  # type: ignore[method-assign]
    bus.run(60, faulty=True)
    bus.run(300, faulty=False)
    acknowledged = {event.message_id for event in seen if isinstance(event, Acknowledged)}
    gave_up = {event.message_id for event in seen if isinstance(event, GaveUp)}
    own = {key for member in bus.members for key in member.order}
    assert acknowledged | gave_up == own
    assert acknowledged.isdisjoint(gave_up)
