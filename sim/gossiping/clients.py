"""Publishers, and a reconciliation: messages that come by other ways than gossip."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from sim.gossiping.node import MAX_DRIFT_NS, SimNode
from sim.limits import NS_PER_S
from sim.messages import Message
from store.domain.admission import Admission
from store.domain.ports import Source
from storenode.message.rules import Policy

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

_TRIES: Final = 30
"""Parents that no store holds are drawn as `GossipScenario.strange`."""
_PATIENCE_S: Final = 2.0
_BATCHES: Final = (1, 1, 2, 5)
_SYNC_MESSAGES: Final = 50


class Publisher:
    """Publishes, and tries again, also elsewhere, until it is answered or gives up."""

    def __init__(self, world: GossipWorld, name: str) -> None:
        self._world = world
        self._name = name.encode()
        self._made = count(1)

    async def run(self) -> None:
        """Publish until cancelled."""
        world = self._world
        while True:
            await asyncio.sleep(world.gossip.publish_every_s * world.dice.uniform(0, 2))
            messages = [self._make() for _ in range(world.dice.choice(_BATCHES))]
            await self._publish([message.encoded for message in messages])

    def _make(self) -> Message:
        world = self._world
        age_ns = int(world.dice.uniform(-1, 3) * NS_PER_S)
        payload = b"%s %d" % (self._name, next(self._made))
        return world.compose(payload + bytes(world.dice.randint(0, 200)), world.now_ns() - age_ns)

    async def _publish(self, messages: list[bytes]) -> None:
        world = self._world
        asked = world.dice.choice(world.gossip.min_confirms)
        for _ in range(_TRIES):
            node = world.dice.choice(world.nodes)
            await asyncio.sleep(world.network.delay_s())
            if (life := node.life) is None:
                continue
            task = life.call(partial(life.publish, messages, asked))
            done, _ = await asyncio.wait({task}, timeout=_PATIENCE_S)
            if done and not task.cancelled() and task.result():
                return


class Reconciler:
    """Reconciles stores now and then, as `store.domain` does between nodes: found, then stored."""

    def __init__(self, world: GossipWorld) -> None:
        self._world = world
        self.sessions = 0

    async def run(self) -> None:
        """Bring messages from one node to another until cancelled."""
        world = self._world
        while True:
            await asyncio.sleep(world.gossip.sync_every_s * world.dice.uniform(0, 2))
            one, other = world.dice.sample(world.nodes, 2)
            if not world.network.is_cut(one.name, other.name):
                await self._bring(one, other)

    async def _bring(self, one: SimNode, other: SimNode) -> None:
        life = other.life
        if one.life is None or life is None:
            return
        lacking = [digest for digest in one.store.log if digest not in other.store.held]
        messages = [one.store.held[digest] for digest in lacking[:_SYNC_MESSAGES]]
        if not messages:
            return
        life.gossip.driver.found(one.who.node_id, one.who.store_id, lacking[:_SYNC_MESSAGES])
        await asyncio.sleep(self._world.network.delay_s())
        admission = Admission(Policy(max_drift_ns=MAX_DRIFT_NS), other.unix_ns(), Source.TRANSFER)
        admission.admit(messages)
        batch = admission.admitted.batch
        if batch.hashes and not life.life.ended:
            store = partial(life.session.write, batch, Source.TRANSFER, 0)
            await asyncio.wait({life.call(store)})
            self.sessions += 1
