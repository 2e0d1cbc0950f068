"""Chat lines of ten bytes in one SDS channel: bytes stored per line, seconds until acknowledged.

The cores of a group talk beside a store in virtual time: published messages are stored, unless they
are ephemeral, and reach the others 100 ms later or are lost; missing ones are fetched from the
store. ``--messages`` is the number of lines.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from heapq import heappop, heappush
from typing import Final

from bench.support import options, report
from storenode.sds.channel import MessageChannel
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Acknowledged, Broadcast, Event, Missing, Packet

START_MS: Final = 1_763_625_600_000
WAY_MS: Final = 100
MAX_SETTLE_S: Final = 3_600
PEOPLE: Final = (3, 10)
EVERY_S: Final = (2, 5, 30, 300)
LOSSES: Final = (0.0, 0.1)


class Group:
    """People, the store beside them, and what is under way."""

    def __init__(self, people: int, lost: float) -> None:
        self.rng = random.Random(1)
        self.lost = lost
        self.now_ms = START_MS
        self.stored: dict[str, Packet] = {}
        self.sent_ms: dict[str, int] = {}
        self.took_ms: list[int] = []
        self.stored_bytes = 0
        self.broadcasts: Counter[str] = Counter()
        self._due: list[tuple[int, int, int, Packet]] = []
        self._number = 0
        self.people = [
            MessageChannel(ChannelConfig("room", f"person{number}"), START_MS, self.rng)
            for number in range(people)
        ]

    def say(self, at_ms: int) -> None:
        """Send a line of a random person, after all that happens until then."""
        self.run(at_ms)
        who = self.rng.randrange(len(self.people))
        events = self.people[who].send(at_ms, b"%010d" % len(self.sent_ms))
        first = next(event for event in events if isinstance(event, Broadcast))
        self.sent_ms[first.message_id] = at_ms
        self._follow(who, events)

    def run(self, until_ms: int) -> None:
        """Let time pass."""
        while True:
            ticks = [person.next_due_ms(self.rng) for person in self.people]
            next_ms = max(min([*ticks, *(due[0] for due in self._due[:1])]), self.now_ms)
            if next_ms > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = next_ms
            while self._due and self._due[0][0] <= next_ms:
                _, _, who, packet = heappop(self._due)
                self._follow(who, self.people[who].receive(next_ms, [packet]))
            for who, person in enumerate(self.people):
                if ticks[who] <= next_ms:
                    self._follow(who, person.tick(next_ms + 1, self.rng))

    def _follow(self, who: int, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Broadcast():
                    self._publish(who, event)
                case Missing():
                    for each in event.messages:
                        if each.message_id in self.stored:
                            self._give(who, self.stored[each.message_id])
                case Acknowledged() if event.message_id in self.sent_ms:
                    self.took_ms.append(self.now_ms - self.sent_ms[event.message_id])
                case _:
                    pass

    def _publish(self, who: int, event: Broadcast) -> None:
        self.broadcasts[event.reason.value] += 1
        packet = Packet(event.payload)
        if not event.passes:
            packet = Packet(event.payload, sha256(b"%d" % self.now_ms + event.payload).digest())
            self.stored[event.message_id] = packet
            self.stored_bytes += len(event.payload)
            self.people[who].published(event.message_id, packet.hint)
        for other in range(len(self.people)):
            if other != who and self.rng.random() >= self.lost:
                self._give(other, packet)

    def _give(self, who: int, packet: Packet) -> None:
        self._number += 1
        heappush(self._due, (self.now_ms + WAY_MS, self._number, who, packet))


def measure(lines: int, people: int, every_s: int, lost: float) -> dict[str, float]:
    """Return the bytes stored per line, and the mean seconds until a line is acknowledged."""
    group = Group(people, lost)
    for number in range(lines):
        # Lines come at any time, so often in the mean.
        group.say(START_MS + int((number + group.rng.random()) * every_s * 1_000))
    for _ in range(MAX_SETTLE_S):
        if len(group.took_ms) < lines or any(len(each.log) < lines for each in group.people):
            group.run(group.now_ms + 1_000)
    assert len(group.took_ms) == lines, f"{len(group.took_ms)} of {lines} were acknowledged"
    assert all(len(each.log) == lines for each in group.people), "somebody lacks lines"
    return {
        "bytes_per_line": group.stored_bytes / lines,
        "ack_s": sum(group.took_ms) / lines / 1_000,
        "syncs": group.broadcasts["sync"],
    }


def main() -> None:
    """Run all cases."""
    given = options(__doc__, messages=1_000)
    for people in PEOPLE:
        for every_s in EVERY_S:
            for lost in LOSSES:
                report(
                    benchmark="sds lines",
                    people=people,
                    seconds_between_lines=every_s,
                    lost=lost,
                    **measure(given.messages, people, every_s, lost),
                )
