"""Peers that lie: they call honest nodes, and begin anew when they are cut off."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sim.calls import Closed, End, Ended, Identity
from sim.gossiping.driver import GOSSIP
from sim.gossiping.judge import LIAR
from sim.gossiping.scenario import Trick
from sim.limits import NS_PER_S
from sim.network import Caller
from sim.tasks import Steps, Task
from store.gossip.events import Events, GetEvents, Inventory, SyncLeaves

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

_PATIENCE_NS: Final = 2 * NS_PER_S
_FRAME_IDS: Final = 64
_REMEMBERED: Final = 200


class Liar(Caller):
    """One of them; a `sim.network.Host`."""

    def __init__(self, world: GossipWorld, number: int, trick: Trick) -> None:
        self.name = f"x{number}"
        self._world = world
        self._number = number
        self._trick = trick
        self._calls = count()
        self._heard: dict[bytes, None] = {}
        self._bodies: list[bytes] = []

    def start(self, victims: list[str]) -> None:
        """Call some nodes, over and over."""
        for victim in victims:
            self._begin(self._haunt(victim))

    def _begin(self, steps: Steps[None]) -> None:
        Task(self._world.timeline, self.name, lambda _: steps, lambda _: None)

    def _haunt(self, victim: str) -> Steps[None]:
        world = self._world
        while True:
            store_id = f"{LIAR}{self._number}/{next(self._calls)}"
            who = Identity(f"{LIAR}{self._number}", store_id)
            try:
                end = yield from world.network.call(self.name, victim, GOSSIP, who)
                self._begin(self._listen(end))
                while True:
                    yield from end.send(self._lie()).wait()
                    yield from world.sleep(int(self._pace_ns() * world.dice.uniform(0.5, 1.5)))
            except Closed:
                yield from world.sleep(int(_PATIENCE_NS * world.dice.uniform(0.5, 1.5)))

    def _listen(self, end: End) -> Steps[None]:
        try:
            while not isinstance(frame := (yield from end.read().wait()), Ended):
                self._hear(frame)
        except Closed:
            return
        end.cancel()

    def _hear(self, frame: Any) -> None:  # noqa: ANN401 - any frame
        if isinstance(frame, Events):
            self._bodies = [*frame.messages, *self._bodies][:_REMEMBERED]
            self._heard.update(dict.fromkeys(self._world.ids_of(frame.messages)))
        elif isinstance(frame, Inventory | SyncLeaves):
            self._heard.update(dict.fromkeys(frame.ids))
        while len(self._heard) > _REMEMBERED:
            del self._heard[next(iter(self._heard))]

    def _pace_ns(self) -> int:
        slow = self._trick in (Trick.CLAIM, Trick.HOARD)
        return NS_PER_S // 2 if slow else NS_PER_S // 50

    def _lie(self) -> Events | Inventory | GetEvents | SyncLeaves:
        dice = self._world.dice
        heard = list(self._heard)[-_FRAME_IDS:]
        match self._trick:
            case Trick.CLAIM:
                return Inventory(heard or [dice.randbytes(32)])
            case Trick.INVENT:
                return Inventory([dice.randbytes(32) for _ in range(_FRAME_IDS)])
            case Trick.REPEAT if self._bodies:
                return Events(self._bodies[:8])
            case Trick.ASK if heard:
                return GetEvents(heard)
            case Trick.HOARD:
                most = self._world.gossip.config.max_frame_ids
                return Inventory([bytes(32)] * (most + 1))
        return SyncLeaves(heard)
