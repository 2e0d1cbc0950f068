"""Operators: they have a node reconcile now, and do not always wait for the end of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.tasks import Steps, Task, within
from store.domain.ports import EmptyWindow, StoreBusy

if TYPE_CHECKING:
    from sim.node import Node
    from sim.world import World

_PATIENCE_NS: Final = (0, NS_PER_S, 60 * NS_PER_S)
_FROM_NS: Final = (None, 0)
"""Where a session begins: as the schedule has it, or with everything."""


class Operator:
    """Asks nodes, one after the other, until `stop`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._task = Task(world.timeline, "operator", lambda _: self._run(), lambda _: None)

    def stop(self) -> None:
        """Ask no more; what was asked for goes on."""
        self._task.cancel()

    def _run(self) -> Steps[None]:
        world = self._world
        while True:
            yield from world.sleep(int(world.scenario.ask_every_ns * world.dice.uniform(0, 2)))
            node = world.dice.choice(world.nodes)
            if node.process is not None:
                yield from self._ask(node)

    def _ask(self, node: Node) -> Steps[None]:
        world, process, peering = self._world, node.process, node.peering
        if peering is None or not node.peers:
            return
        peer = world.dice.choice((None, *node.peers))
        question = peering.ask(peer, world.dice.choice(_FROM_NS))
        late = TimeoutError("the operator has gone away")
        patience_ns = world.dice.choice(_PATIENCE_NS)
        try:
            yield from within(world.timeline, question.answer, patience_ns, late)
        except TimeoutError:
            # Where the node has crashed meanwhile, nobody is left who knows of the question.
            if node.process is process:
                world.trace.note(node.name, "is asked no longer")
                question.withdraw()
                world.marks[str(Mark.WITHDRAWN)] += 1
        except (EmptyWindow, StoreBusy, InterruptedError):
            world.trace.note(node.name, "has no session for an operator")
        else:
            world.marks[str(Mark.ASKED)] += 1
