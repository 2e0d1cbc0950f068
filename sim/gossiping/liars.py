"""Peers that lie: they connect to honest nodes, and begin anew when they are cut off."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sim.calls import Closed, End, Ended, Identity
from sim.gossiping.checker import LIAR
from sim.gossiping.scenario import Trick
from sim.gossiping.streams import GOSSIP
from sim.network import Caller
from store.domain.admission import Admission
from store.domain.ports import Source
from store.gossip.events import GetEvents, Inventory, OutgoingBodies, SyncLeaves
from storenode.message.rules import Policy

if TYPE_CHECKING:
    from sim.node_world import NodeWorld

_PAUSE_S: Final = 2.0
_FRAME_IDS: Final = 64
_REMEMBERED: Final = 200


class Liar(Caller):
    """A peer that lies."""

    def __init__(self, world: NodeWorld, number: int, trick: Trick) -> None:
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
            with suppress(Closed):
                end = await world.network.call(self.name, victim, GOSSIP, who)
                try:
                    await self._talk(end)
                finally:
                    end.cancel()
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
        while not isinstance(frame := await end.read(), Ended):
            self._hear(frame)

    def _hear(self, frame: Any) -> None:  # noqa: ANN401 - any frame
        if isinstance(frame, OutgoingBodies):
            self._bodies = [*frame.messages, *self._bodies][:_REMEMBERED]
            admission = Admission(Policy(max_drift_ns=None), 0, Source.GOSSIP)
            admission.admit(frame.messages)
            self._announced.update(dict.fromkeys(admission.admitted.hashes))
        elif isinstance(frame, Inventory | SyncLeaves):
            self._announced.update(dict.fromkeys(frame.ids))

    def _pace_s(self) -> float:
        return 0.5 if self._trick in (Trick.CLAIM, Trick.HOARD, Trick.DEAF) else 0.02

    def _lie(self) -> object:
        rng, most = self._world.rng, self._world.gossip.limits.max_frame_ids
        announced = list(self._announced)[-_FRAME_IDS:]
        lies: dict[Trick, object] = {
            Trick.CLAIM: Inventory(announced or [rng.randbytes(32)]),
            Trick.INVENT: Inventory([rng.randbytes(32) for _ in range(_FRAME_IDS)]),
            Trick.REPEAT: OutgoingBodies(self._bodies[:8])
            if self._bodies
            else SyncLeaves(announced),
            Trick.ASK: GetEvents(announced) if announced else SyncLeaves(announced),
            Trick.HOARD: Inventory([bytes(32)] * (most + 1)),
            Trick.GARBAGE: rng.choice((b"garbage", OutgoingBodies([b"\xff"]))),
            Trick.DEAF: SyncLeaves(announced),
        }
        return lies[self._trick]
