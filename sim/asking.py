"""Operators: they have a node reconcile now, and do not always wait for the end of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sim.limits import NS_PER_S
from sim.marks import Mark

if TYPE_CHECKING:
    from sim.node import Node
    from sim.world import World

_PATIENCE_S: Final = (0.0, 1.0, 60.0)
_FROM_NS: Final = (None, 0)
"""Where a session begins: as the schedule has it, or with everything."""


async def ask_nodes(world: World) -> None:
    """Ask nodes, one after the other; what was asked for goes on when this is cancelled."""
    while True:
        await asyncio.sleep(world.scenario.ask_every_ns * world.dice.uniform(0, 2) / NS_PER_S)
        await _ask(world, world.dice.choice(world.nodes))


async def _ask(world: World, node: Node) -> None:
    process, peering = node.process, node.peering
    if peering is None or not node.peers:
        return
    peer = world.dice.choice((None, *node.peers))
    answer = peering.ask(peer, world.dice.choice(_FROM_NS))
    await asyncio.wait({answer}, timeout=world.dice.choice(_PATIENCE_S))
    if answer.cancelled():
        world.trace.note(node.name, "has no session for an operator")
    elif answer.done():
        world.marks[str(Mark.ASKED)] += 1
    elif node.process is process:
        # Where the node has crashed meanwhile, nobody is left who knows of the question.
        world.trace.note(node.name, "is asked no longer")
        answer.cancel()
        world.marks[str(Mark.WITHDRAWN)] += 1
