"""Participants of ours and of the published JavaScript library in one channel, in virtual time.

A broadcast reaches each other participant after a while, or is lost, or comes twice or late; with
a store everybody fetches from it by ID what its participant misses, and ours scan it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Final

import pytest

from storenode.sds.channel import MessageChannel
from storenode.sds.codec import decode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Behind, Broadcast, BroadcastReason, Event, Missing, Packet
from tests.support.javascript import JavaScriptClient, installed, running

OURS: Final = ("ada", "bela")
THEIRS: Final = ("cyd", "dora")
START_MS: Final = 1_763_625_600_000
TICK_MS: Final = 1_000
LINES: Final = 60
EVERY_MS: Final = 2_000
SETTLE_MS: Final = 900_000
TICK_THEIRS_MS: Final = 15_000
"""The interval at which an application of the library sweeps and sends a sync message."""
LOST: Final = 0.15
TWICE: Final = 0.1
LATEST_MS: Final = 2_000


@dataclass
class World:
    """A channel of all participants; ``said`` are the IDs of all messages, by who said them."""

    library: JavaScriptClient
    history: int
    with_store: bool
    now_ms: int = START_MS
    said: dict[str, str] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(1)
        self.ours = {
            name: MessageChannel(ChannelConfig("room", name), START_MS, self.rng) for name in OURS
        }
        self._stored: dict[str, Packet] = {}
        self._due: list[tuple[int, int, str, Packet]] = []
        self._number = 0
        for name in THEIRS:
            self._ask(name, join={"history": self.history})

    def talk(self, count: int, every_ms: int) -> None:
        """Send ``count`` messages, each from a random participant."""
        for number in range(count):
            who = self.rng.choice(OURS + THEIRS)
            text = f"{who} says line {number}"
            if who in self.ours:
                self._follow(who, self.ours[who].send(self.now_ms, text.encode()))
            else:
                self._ask(who, send=text)
            self.run(every_ms)

    def run(self, for_ms: int) -> None:
        """Let time pass."""
        for _ in range(0, for_ms, TICK_MS):
            self.now_ms += TICK_MS
            while self._due and self._due[0][0] <= self.now_ms:
                _, _, who, packet = heappop(self._due)
                self._receive(who, [packet])
            for name, channel in self.ours.items():
                self._follow(name, channel.tick(self.now_ms, self.rng))
            if (self.now_ms - START_MS) % TICK_THEIRS_MS == 0:
                for name in THEIRS:
                    self._ask(name, tick={"sync": True})

    def whole(self, name: str) -> bool:
        """Return True if a participant has everything."""
        return self.log(name) == set(self.said)

    def log(self, name: str) -> set[str]:
        """Return the IDs of what a participant has delivered."""
        channel = self.ours.get(name)
        if channel is None:
            return set(self.logs[name])
        return {entry.message_id for entry in channel.log.entries()}

    def _receive(self, who: str, packets: Sequence[Packet]) -> None:
        if who in self.ours:
            self._follow(who, self.ours[who].receive(self.now_ms, packets))
            return
        for packet in packets:
            hint = b64encode(packet.hint or b"").decode()
            self._ask(who, receive=b64encode(packet.payload).decode(), hint=hint)

    def _follow(self, who: str, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Broadcast():
                    again = event.reason is BroadcastReason.RESEND
                    self._publish(who, event.payload, ephemeral=again)
                case Missing():
                    self._fetch(who, [each.message_id for each in event.messages])
                case Behind():
                    self._fetch(who, list(self._stored))
                case _:
                    pass

    def _ask(self, who: str, **request: object) -> None:
        answer = self.library.ask({"now": self.now_ms, "who": who, **request})
        self.logs[who] = answer["log"]
        self.errors += answer["errors"]
        self.acknowledged.update(answer["acknowledged"])
        for payload in answer["sent"]:
            self._publish(who, b64decode(payload), ephemeral=False)
        self._fetch(who, [message_id for message_id, _ in answer["missing"]])

    def _publish(self, who: str, payload: bytes, *, ephemeral: bool) -> None:
        message = decode_message(payload)
        hint = None if ephemeral else sha256(b"%d" % self.now_ms + payload).digest()
        packet = Packet(payload, hint)
        if message.content and message.sender_id == who:
            self.said.setdefault(message.message_id, who)
        if hint is not None and who in self.ours:
            self.ours[who].published(message.message_id, hint)
        if message.content and not ephemeral:
            self._stored.setdefault(message.message_id, packet)
        for other in OURS + THEIRS:
            copies = 1 + (self.rng.random() < TWICE)
            if other != who and self.rng.random() >= LOST:
                for _ in range(copies):
                    self._give(other, packet, self.rng.randint(0, LATEST_MS))

    def _fetch(self, who: str, message_ids: Iterable[str]) -> None:
        if self.with_store:
            for message_id in message_ids:
                if message_id in self._stored:
                    self._give(who, self._stored[message_id], 100)

    def _give(self, who: str, packet: Packet, after_ms: int) -> None:
        self._number += 1
        heappush(self._due, (self.now_ms + after_ms, self._number, who, packet))


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaScriptClient]:
    folder = installed(tmp_path_factory, Path(__file__).parent)
    with running(folder, "participants.mjs") as client:
        yield client


@pytest.mark.parametrize(("history", "with_store"), [(2, True), (2, False), (200, False)])
def test_all_logs_are_complete(library: JavaScriptClient, history: int, with_store: bool) -> None:
    world = World(library, history, with_store)
    world.talk(LINES, EVERY_MS)
    world.run(SETTLE_MS)
    assert len(world.said) == LINES
    assert world.errors == []
    assert all(world.whole(name) for name in OURS + THEIRS)
    # Both are acknowledged by what the other sends.
    theirs = {message_id for message_id, who in world.said.items() if who in THEIRS}
    assert theirs <= world.acknowledged
    assert not any(channel.outgoing.by_id for channel in world.ours.values())
