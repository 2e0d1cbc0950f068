"""Peers that lie in gossip, and a publisher of other contents under genuine IDs of a channel.

A forged message reaches everybody who the genuine one reaches, and some earlier: it leaves at the
same moment, over a network that loses and delays; and once more later.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from sim.calls import CallClosedError, End, Identity
from sim.gossip_judge import LIAR
from sim.limits import MAX_FRAME_IDS, NS_PER_MS, NS_PER_S
from sim.network import Host
from sim.rng import happens
from sim.scenario import Trick
from sim.streams import GOSSIP
from store.domain.admission import Admission
from store.domain.ports import Source
from store.gossip.events import frame_of, listed
from storenode.message.rules import Policy
from storenode.sds.aio.transport import Fetched
from storenode.sds.codec import SdsMessage, encode_message
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawEvents, RawGossipFrame

if TYPE_CHECKING:
    from sim.world import World

_PAUSE_S: Final = 2.0
_FRAME_IDS: Final = 64
_REMEMBERED: Final = 200
_LATER_S: Final = 10
_MOST_OFF_MS: Final = 2_000
"""The largest distance of a forged message's clock from the genuine one's."""


class Liar(Host):
    """A peer that lies."""

    def __init__(self, world: World, number: int, trick: Trick) -> None:
        self.name = f"x{number}"
        self._world = world
        self._number = number
        self._trick = trick
        self._lives = count()
        self._announced: dict[bytes, None] = {}
        self._bodies: list[bytes] = []

    async def haunt(self, victim: str) -> None:
        """Connect to a node, over and over."""
        world = self._world
        while True:
            store_id = f"{LIAR}{self._number}/{next(self._lives)}"
            who = Identity(f"{LIAR}{self._number}", store_id)
            with suppress(CallClosedError):
                async with world.network.call(self.name, victim, GOSSIP, who) as end:
                    await self._talk(end)
            await asyncio.sleep(_PAUSE_S * world.rng.uniform(0.5, 1.5))

    async def _talk(self, end: End) -> None:
        listening = asyncio.create_task(self._listen(end))
        try:
            while not listening.done() and not end.has_ended:
                await end.send(self._lie())
                await asyncio.sleep(self._pace_s() * self._world.rng.uniform(0.5, 1.5))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, end: End) -> None:
        if self._trick is Trick.DEAF:
            await asyncio.Event().wait()
        while (frame := await end.read()) is not None:
            self._hear(frame)

    def _hear(self, frame: RawGossipFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind == "events":
            self._bodies = [*frame.events.messages, *self._bodies][:_REMEMBERED]
            admission = Admission(Policy(max_drift_ns=None), 0, Source.GOSSIP)
            admission.admit(frame.events.messages)
            self._announced.update(dict.fromkeys(admission.admitted.hashes))
        elif kind != "get_events":
            self._announced.update(dict.fromkeys(listed(frame).ids))

    def _pace_s(self) -> float:
        return 0.5 if self._trick in (Trick.CLAIM, Trick.HOARD, Trick.DEAF) else 0.02

    def _lie(self) -> object:
        rng = self._world.rng
        announced = list(self._announced)[-_FRAME_IDS:]
        leaves = frame_of("sync_leaves", announced)
        lies: dict[Trick, object] = {
            Trick.CLAIM: frame_of("inv", announced or [rng.randbytes(32)]),
            Trick.INVENT: frame_of("inv", [rng.randbytes(32) for _ in range(_FRAME_IDS)]),
            Trick.REPEAT: RawGossipFrame(events=RawEvents(messages=self._bodies[:8]))
            if self._bodies
            else leaves,
            Trick.ASK: frame_of("get_events", announced) if announced else leaves,
            Trick.HOARD: frame_of("inv", [bytes(32)] * (MAX_FRAME_IDS + 1)),
            Trick.GARBAGE: rng.choice(
                (b"garbage", RawGossipFrame(events=RawEvents(messages=[b"\xff"])))
            ),
            Trick.DEAF: leaves,
        }
        return lies[self._trick]


class Forger(Host):
    """Forges a share of all messages, once at the moment when they leave and once later."""

    name = "mallory"

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: set[str] = set()

    def saw(self, message: Fetched) -> None:
        """Note that a message leaves its sender."""
        world = self._world
        genuine = world.group_judge.read(message.payload)
        known = genuine.message_id in self._seen
        if known or not genuine.content or not message.hint:
            return
        self._seen.add(genuine.message_id)
        if not world.group_judge.forged_as(genuine.message_id, genuine.content) and happens(
            world.rng, world.faults_now.forged
        ):
            self._publish(genuine)
            later_ns = int(world.rng.uniform(0, _LATER_S) * NS_PER_S)
            world.timeline.after(later_ns, lambda: self._publish(genuine))

    def _publish(self, genuine: SdsMessage) -> None:
        world, rng = self._world, self._world.rng
        off_ms = int(rng.uniform(-_MOST_OFF_MS, _MOST_OFF_MS))
        false = replace(
            genuine,
            content=b"forged %d" % next(world.numbers),
            sender_id=rng.choice((genuine.sender_id, self.name)),
            lamport=(genuine.lamport or 0) + rng.choice((0, off_ms)),
            history=rng.choice((genuine.history, genuine.history[:1], ())),
            bloom_filter=None,
            repair_request=(),
        )
        world.counts["a message was forged"] += 1
        world.group_judge.forged[false.message_id, false.content or b""] = false
        now_ns = world.timeline.now_ns - rng.choice((0, 1, 500)) * NS_PER_MS
        world.spread(self.name, encode_message(false), now_ns)
