"""What a node takes from clients, and the clients: publishing, retries, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sim.database import Unavailable
from sim.limits import NS_PER_MS, NS_PER_S
from sim.messages import Message
from sim.network import Caller
from sim.process import Handler, Process
from sim.tasks import Promise, Steps, Task, within
from store.domain.admission import Admission, Verdict
from store.domain.ports import Source
from store.messages.record import RecordBatch

if TYPE_CHECKING:
    from sim.world import World

PUBSUB: Final = "/waku/2/rs/7/0"

_PATIENCE_NS: Final = 2 * NS_PER_S
_TRIES: Final = 4
_HELD: Final = (Verdict.ACCEPTED, Verdict.DUPLICATE)
_BATCHES: Final = (1, 1, 2, 5)


@dataclass(frozen=True, slots=True)
class Publish:
    """A ``PublishRequest``."""

    number: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The answer to one."""

    number: int
    verdicts: tuple[Verdict, ...]


class Intake:
    """Takes what clients publish; a `sim.process.Service`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def methods(self) -> Mapping[str, Handler]:
        """None: clients write letters."""
        return {}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """What clients publish."""
        return {Publish: self._take}

    def start(self) -> None:
        """Nothing to begin with."""

    def check(self) -> None:
        """Nothing is kept."""

    def store(self, batch: RecordBatch) -> Steps[None]:
        """Make what was accepted durable.

        Raises:
            Unavailable: nobody knows whether it is.
        """
        if len(batch):
            yield from self._process.database.write(self._process, batch).wait()

    def _take(self, sender: str, letter: Publish) -> None:
        self._process.spawn("publish", self.take_in(sender, letter))

    def take_in(self, sender: str, letter: Publish) -> Steps[None]:
        """Store what a client publishes, and answer it."""
        process = self._process
        admission = Admission(process.policy(), process.clock.unix_ns(), Source.CLIENT)
        admission.admit(letter.messages)
        published = admission.admitted
        try:
            yield from self.store(published.batch)
        except Unavailable:
            return
        verdicts = tuple(published.verdicts)
        held = [
            digest
            for digest, verdict in zip(published.hashes, verdicts, strict=True)
            if verdict in _HELD
        ]
        process.note(f"acknowledges {len(held)} of {len(verdicts)} to {sender}")
        process.judge.acknowledge(process.database, held)
        process.network.post(process.name, sender, Results(letter.number, verdicts))


class Client(Caller):
    """Publishes, and tries again, also elsewhere, until it is answered or gives up."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._numbers = count(1)
        self._made = count(1)
        self._asked: dict[int, Promise[Results]] = {}
        self._task = Task(world.timeline, name, lambda _: self._run(), lambda _: None)

    def receive(self, sender: str, letter: object) -> None:  # noqa: ARG002 - as of every host
        """An answer."""
        if isinstance(letter, Results) and letter.number in self._asked:
            self._asked[letter.number].keep(letter)

    def stop(self) -> None:
        """Publish no more."""
        self._task.cancel()

    def _run(self) -> Steps[None]:
        world = self._world
        while True:
            yield from world.sleep(int(world.scenario.publish_every_ns * world.dice.uniform(0, 2)))
            messages = [self._make() for _ in range(world.dice.choice(_BATCHES))]
            yield from self._publish(tuple(message.encoded for message in messages))

    def _make(self) -> Message:
        """Most are fresh; some are too old or too new for some nodes, or ephemeral, or large."""
        world, dice = self._world, self._world.dice
        age_ns = int(dice.uniform(-1, 3) * NS_PER_S)
        if dice.random() < 0.05:
            age_ns = int(dice.uniform(-60, 60) * NS_PER_S)
        time_ns = world.timeline.now_ns - age_ns
        if world.scenario.moments < world.scenario.history:
            time_ns -= time_ns % (100 * NS_PER_MS)
        message = world.compose(
            b"%s %d" % (self.name.encode(), next(self._made)),
            time_ns,
            ephemeral=dice.random() < 0.03,
        )
        world.judge.make(message)
        return message

    def _publish(self, messages: tuple[bytes, ...]) -> Steps[None]:
        world = self._world
        number = next(self._numbers)
        letter = Publish(number, messages)
        for _ in range(_TRIES):
            node = world.dice.choice(world.nodes)
            answer = self._asked[number] = Promise()
            world.network.post(self.name, node.name, letter)
            late = TimeoutError("no answer")
            try:
                yield from within(world.timeline, answer, _PATIENCE_NS, late)
            except TimeoutError:
                continue
            finally:
                del self._asked[number]
            return
