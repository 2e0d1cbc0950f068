"""Clients that publish, operators that ask for sessions, and what a node does for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from sim.database import DatabaseUnavailableError
from sim.limits import NS_PER_MS, NS_PER_S
from sim.marks import Mark
from sim.messages import Message
from sim.network import Caller
from sim.process import Process
from store.domain.admission import Admission, Verdict
from store.domain.ports import Source

if TYPE_CHECKING:
    from sim.node import Node
    from sim.node_world import NodeWorld

PUBSUB: Final = "/waku/2/rs/7/0"

_PATIENCE_S: Final = 2.0
_TRIES: Final = 4
_STORED: Final = (Verdict.ACCEPTED, Verdict.DUPLICATE)
_BATCHES: Final = (1, 1, 2, 5)


@dataclass(frozen=True, slots=True)
class Publish:
    """A request to publish messages."""

    number: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The answer to one."""

    number: int
    verdicts: tuple[Verdict, ...]


async def publish(process: Process, sender: str, messages: Sequence[bytes]) -> tuple[Verdict, ...]:
    """Store what a client publishes, and return the verdict on each message.

    Raises:
        DatabaseUnavailableError: it is stored or not.
    """
    admission = Admission(process.policy(), process.clock.unix_ns(), Source.CLIENT)
    admission.admit(messages)
    published = admission.admitted
    if len(published.batch):
        await process.node.store(process, published.batch)
    verdicts = tuple(published.verdicts)
    stored = [
        digest
        for digest, verdict in zip(published.hashes, verdicts, strict=True)
        if verdict in _STORED
    ]
    process.note(f"acknowledges {len(stored)} of {len(verdicts)} to {sender}")
    process.judge.acknowledge(process.database, stored)
    return verdicts


async def take(process: Process, sender: str, letter: Publish) -> None:
    """Store what a client publishes, and answer it."""
    with suppress(DatabaseUnavailableError):
        verdicts = await publish(process, sender, letter.messages)
        process.network.post(process.name, sender, Results(letter.number, verdicts))


class Client(Caller):
    """Publishes, and tries again, also elsewhere, until it is answered or gives up."""

    def __init__(self, world: NodeWorld, name: str) -> None:
        self.name = name
        self._world = world
        self._numbers = count(1)
        self._made = count(1)
        self._asked: dict[int, asyncio.Event] = {}

    def receive(self, sender: str, letter: object) -> None:  # noqa: ARG002 - as of every host
        """Receive an answer."""
        if isinstance(letter, Results) and letter.number in self._asked:
            self._asked[letter.number].set()

    async def run(self) -> None:
        """Publish until this is cancelled."""
        world = self._world
        while True:
            pause_ns = world.scenario.publish_every_ns * world.rng.uniform(0, 2)
            await asyncio.sleep(pause_ns / NS_PER_S)
            messages = [self._make() for _ in range(world.rng.choice(_BATCHES))]
            await self._publish(tuple(message.encoded for message in messages))

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

    async def _publish(self, messages: tuple[bytes, ...]) -> None:
        world = self._world
        number = next(self._numbers)
        answered = self._asked[number] = asyncio.Event()
        for _ in range(_TRIES):
            node = world.rng.choice(world.nodes)
            world.network.post(self.name, node.name, Publish(number, messages))
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await answered.wait()
                    break
        del self._asked[number]


_ANSWER_TIMES_S: Final = (0.0, 1.0, 60.0)
_FROM_NS: Final = (None, 0)
"""Where a session begins: as the schedule has it, or with everything."""


async def ask_nodes(world: NodeWorld) -> None:
    """Ask nodes, one after the other; what was asked for goes on when this is cancelled."""
    while True:
        await asyncio.sleep(world.scenario.ask_every_ns * world.rng.uniform(0, 2) / NS_PER_S)
        await _ask(world, world.rng.choice(world.nodes))


async def _ask(world: NodeWorld, node: Node) -> None:
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
