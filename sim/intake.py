"""Clients that publish, and operators that ask for sessions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from sim.calls import CallClosedError, Identity
from sim.limits import NS_PER_MS, NS_PER_S
from sim.marks import Mark
from sim.messages import Message
from sim.network import Host
from sim.rng import happens
from sim.service import PUBLISH

if TYPE_CHECKING:
    from sim.node import Node
    from sim.world import World

PUBSUB: Final = "/waku/2/rs/7/0"

_PATIENCE_S: Final = 2.0
_TRIES: Final = 4
_BATCHES: Final = (1, 1, 2, 5)


class Client(Host):
    """Publishes, and tries again, also elsewhere, until it is answered or gives up."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._made = count(1)

    async def act(self) -> None:
        """Publish some messages."""
        messages = [self._make() for _ in range(self._world.rng.choice(_BATCHES))]
        await self._publish([message.encoded for message in messages])

    def _make(self) -> Message:
        """Draw a message; some are too old or too new for some nodes, or ephemeral, or large."""
        world, rng = self._world, self._world.rng
        age_ns = int(rng.uniform(-1, 3) * NS_PER_S)
        if rng.random() < 0.05:
            age_ns = int(rng.uniform(-60, 60) * NS_PER_S)
        time_ns = world.timeline.now_ns - age_ns
        if world.scenario.moments < world.scenario.history:
            time_ns -= time_ns % (100 * NS_PER_MS)
        message = world.compose(
            b"%s %d" % (self.name.encode(), next(self._made)),
            time_ns,
            ephemeral=rng.random() < 0.03,
        )
        world.judge.make(message)
        return message

    async def _publish(self, messages: list[bytes]) -> None:
        rng = self._world.rng
        for _ in range(_TRIES):
            node = rng.choice(self._world.nodes)
            with suppress(CallClosedError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._call(node, messages)
                # Answers are lost, too.
                if not happens(rng, self._world.faults_now.lost):
                    return
            await asyncio.sleep(_PATIENCE_S * rng.random())

    async def _call(self, node: Node, messages: list[bytes]) -> None:
        who = Identity(self.name, "")
        async with self._world.network.call(self.name, node.name, PUBLISH, who) as end:
            await end.send(messages)
            await end.read()


_ANSWER_TIMES_S: Final = (0.0, 1.0, 60.0)
_FROM_NS: Final = (None, 0)
"""The beginnings of a session's range: the schedule's, or everything."""


async def ask_node(world: World) -> None:
    """Ask a node for a session, which continues when this is cancelled."""
    node = world.rng.choice(world.nodes)
    process, peering = node.process, node.peering
    if peering is None or not node.peers:
        return
    peer = world.rng.choice((None, *node.peers))
    answer = peering.ask(peer, world.rng.choice(_FROM_NS))
    await asyncio.wait({answer}, timeout=world.rng.choice(_ANSWER_TIMES_S))
    if answer.cancelled():
        world.trace.note(node.name, "has no session for an operator")
    elif answer.done():
        world.counts[str(Mark.ASKED)] += 1
    elif node.process is process:
        # Where the node has crashed meanwhile, nobody is left who knows of the question.
        world.trace.note(node.name, "is asked no longer")
        answer.cancel()
        world.counts[str(Mark.WITHDRAWN)] += 1
