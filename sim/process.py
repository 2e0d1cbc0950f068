"""The process of a node, from a start to a crash, and the environment of its drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sim.bridge import Life
from sim.marks import Mark
from store.domain.environment import Environment
from store.domain.hub import OwnCommits

if TYPE_CHECKING:
    from sim.node import Node

_T = TypeVar("_T")


class Process:
    """A life of a node: the state that its parts share, which a crash loses.

    Attributes:
        alive: until it crashes, or is stopped.
        at_end: actions to run then.
    """

    def __init__(self, node: Node) -> None:
        world = node.world
        self.node, self.name, self.clock = node, node.name, node.clock
        self.database, self.identity, self.policy = node.database, node.who, node.policy
        self.scenario, self.rng, self.timeline = world.scenario, world.rng, world.timeline
        self.network, self.judge = world.network, world.judge
        self.alive = True
        self.at_end: list[Callable[[], object]] = []
        self.life = Life()
        self.own = OwnCommits(self.scenario.own_bytes)
        self.world_env = environment_of(self)

    def note(self, what: str) -> None:
        """Note an event in the trace."""
        self.node.world.trace.note(self.name, what)

    def mark(self, what: Mark) -> None:
        """Count a rare event."""
        self.node.world.counts[str(what)] += 1

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
        """End all tasks; only for `Node`."""
        self.alive = False
        self.life.end()
        for action in self.at_end:
            action()


_MARKS: Final = {"index_lost": Mark.INDEX_LOST, "index_failed": Mark.INDEX_FAILED}


class SimLog:
    """Writes into the trace; an error that a driver logs is a fault of the node."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def debug(self, event: str, **fields: object) -> None:
        """Note it."""
        self._note(event, fields)

    info = debug

    def warning(self, event: str, **fields: object) -> None:
        """Note it; fail the run if an honest peer is cut off."""
        self._note(event, fields)
        if event == "gossip_peer_cut_off":
            node = self._process.node
            node.world.gossip_checker.cuts_off(node, str(fields["peer"]), str(fields["reason"]))

    def error(self, event: str, **fields: object) -> None:
        """Fail the run: no driver of a simulated node logs an error while it runs.

        Raises:
            ViolationError: the node runs.
        """
        self._note(event, fields)
        if self._process.alive:
            error, name = fields.get("exc_info"), self._process.name
            cause = error if isinstance(error, BaseException) else None
            self._process.judge.fail(f"{name} logs an error: {event} {cause!r}", cause)

    def _note(self, event: str, fields: Mapping[str, object]) -> None:
        if event in _MARKS:
            self._process.mark(_MARKS[event])
        what = " ".join(f"{name}={value}" for name, value in fields.items())
        self._process.note(f"{event} {what}".rstrip())


def environment_of(process: Process) -> Environment:
    """Return the clocks of the node, the generator of the run, and its trace."""
    return Environment(
        now_ns=process.clock.unix_ns,
        steady_ns=process.clock.steady_ns,
        random=process.rng,
        log=SimLog(process),
        count_intake=lambda *_: None,  # the judge sees every message
    )
