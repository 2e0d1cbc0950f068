"""One life of a node: from a start to a crash, with everything that it has in memory only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sim.bridge import Life
from sim.environment import environment_of
from sim.marks import Mark
from store.domain.hub import WrittenIds

if TYPE_CHECKING:
    from sim.node import Node

_T = TypeVar("_T")


class Process:
    """What the parts of a node share; nothing of it is left after a crash.

    Attributes:
        alive: until it crashes, or is stopped.
        at_end: what others must be told then.
    """

    def __init__(self, node: Node) -> None:
        world = node.world
        self.node, self.name, self.clock = node, node.name, node.clock
        self.database, self.identity, self.policy = node.database, node.who, node.policy
        self.scenario, self.dice, self.timeline = world.scenario, world.dice, world.timeline
        self.network, self.judge = world.network, world.judge
        self.alive = True
        self.at_end: list[Callable[[], None]] = []
        self.life = Life()
        self.written_ids = WrittenIds(self.scenario.written_ids)
        self.world_env = environment_of(self)

    def note(self, what: str) -> None:
        """Something happened here."""
        self.node.world.trace.note(self.name, what)

    def mark(self, what: Mark) -> None:
        """Something rare happened."""
        self.node.world.marks[str(what)] += 1

    def begin_task(self, name: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin a coroutine, which ends with the process at the latest."""
        task = self.node.world.loop.begin(self.life, work)
        task.set_name(name)
        return task

    def crash_soon(self) -> None:
        """End it at this moment."""
        self.timeline.soon(self._crash)

    def _crash(self) -> None:
        if self.alive and self.node.process is self:
            self.mark(Mark.COMMIT_CRASH)
            self.node.crash("after a commit")

    def end(self) -> None:
        """Nothing goes on; only for `Node`."""
        self.alive = False
        self.life.end()
        for action in self.at_end:
            action()
