"""A simulated store node, as the participants of a group see it: it is written, followed and read.

What it has acknowledged it keeps, whatever becomes of it. Pages have their limits, a call breaks
where the network says so, and a second node has the messages of the first only after a while.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from sim.calls import Closed, End, Ended, Identity, Status
from sim.dice import happens
from sim.groups.limits import MAX_LIVE
from sim.groups.shelf import Shelf
from sim.groups.spoken import ByHint, ById, Causes, FollowFrom, Offer, Page, Request, Spoken
from sim.limits import NS_PER_S
from sim.tasks import Cancelled, Promise, Steps, Task, pause

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

PUBLISH: Final = "PublishStream"
FOLLOW: Final = "Follow"
READ: Final = "Read"

_PULL_EVERY_NS: Final = 3 * NS_PER_S


class _Follower:
    """Who follows: what is only handed on, and how to wake it."""

    def __init__(self) -> None:
        self.live: deque[Spoken] = deque(maxlen=MAX_LIVE)
        self.woken: Promise[None] = Promise()

    def wake(self) -> None:
        woken, self.woken = self.woken, Promise()
        woken.keep(None)


class StoreNode:
    """One store node; a `sim.network.Host`."""

    def __init__(self, world: GroupWorld, number: int) -> None:
        scenario = world.scenario
        self.name = f"s{number}"
        self.up = True
        self.shelf = Shelf(scenario.config.channel_id, scenario.limits)
        self._world = world
        self._who = Identity(self.name, self.name)
        self._tasks: dict[Task, None] = {}
        self._followers: dict[_Follower, None] = {}
        self._page = scenario.limits.page_messages

    @property
    def identity(self) -> Identity | None:
        """Who answers; None while it is off."""
        return self._who if self.up else None

    def start(self) -> None:
        """Begin to fetch what the other nodes have."""
        self._begin("pull", self._pull())

    def crash(self) -> None:
        """End all calls; what is stored stays."""
        self.up = False
        self._world.trace.note(self.name, "is away")
        for task in list(self._tasks):
            task.cancel()
        self._followers.clear()
        self._world.network.drop_calls(self.name)

    def restart(self) -> None:
        """Go on."""
        if not self.up:
            self.up = True
            self._world.trace.note(self.name, "is back")
            self.start()

    def serve(self, method: str, end: End) -> bool:
        """Take a call."""
        work = {PUBLISH: self._take, FOLLOW: self._feed, READ: self._read}.get(method)
        if work is None:
            return False
        task = self._begin(method, _served(work(end)))
        end.on_lost = task.cancel
        return True

    def receive(self, sender: str, letter: object) -> None:
        """Hear nothing of what participants say to each other."""

    # What it does

    def _begin(self, name: str, steps: Steps[None]) -> Task:
        task = Task(self._world.timeline, name, lambda _: steps, self._ended)
        self._tasks[task] = None
        return task

    def _ended(self, task: Task) -> None:
        self._tasks.pop(task, None)

    def _disk(self) -> Steps[None]:
        world = self._world
        yield from pause(world.timeline, int(world.scenario.disk_delay_ns * world.dice.random()))

    def _take(self, end: End) -> Steps[None]:
        while not isinstance(offer := (yield from end.read().wait()), Ended):
            assert isinstance(offer, Offer)
            yield from self._disk()
            self._store(offer)
            if happens(self._world.dice, self._world.faults_now.commit_crashes):
                self._world.fail_soon(self)
                yield from pause(self._world.timeline, NS_PER_S)
            yield from end.send([each.hint for each in offer.messages]).wait()
        end.finish()

    def _store(self, offer: Offer) -> None:
        for spoken in offer.messages:
            if spoken.lasting:
                self.shelf.add(spoken)
            else:
                for follower in self._followers:
                    follower.live.append(spoken)
        self._wake()

    def _wake(self) -> None:
        for follower in list(self._followers):
            follower.wake()

    def _feed(self, end: End) -> Steps[None]:
        start = yield from end.read().wait()
        assert isinstance(start, FollowFrom)
        follower, place, order = _Follower(), start.place, self.shelf.order
        self._followers[follower] = None
        try:
            while True:
                if place == len(order) and not follower.live:
                    yield from follower.woken.wait()
                messages = order[place : place + self._page]
                place += len(messages)
                while follower.live and len(messages) < self._page:
                    messages.append(follower.live.popleft())
                yield from end.send(Page(messages, place)).wait()
        finally:
            self._followers.pop(follower, None)

    def _read(self, end: End) -> Steps[None]:
        request = yield from end.read().wait()
        yield from self._disk()
        answer = self._answer(request)
        if answer is None:
            end.finish(Status.INVALID_ARGUMENT, "the request asks for too much")
            return
        messages, truncated = answer
        for start in range(0, len(messages), self._page):
            page = messages[start : start + self._page]
            yield from end.send(Page(page, truncated=truncated)).wait()
        end.finish()

    def _answer(self, request: Request) -> tuple[list[Spoken], bool] | None:
        limits, shelf = self._world.scenario.limits, self.shelf
        match request:
            case ByHint(hints):
                fits = len(hints) <= limits.query_hashes
                return (shelf.by_hint(hints), False) if fits else None
            case ById(entries):
                return shelf.by_id(entries) if len(entries) <= limits.sds_entries else None
            case Causes(heads, known):
                fits = len(heads) <= limits.causal_heads and len(known) <= limits.causal_known_ids
                return shelf.causes(heads, known) if fits else None

    def _pull(self) -> Steps[None]:
        """Come to hold what the other nodes hold, as reconciliation does."""
        world = self._world
        while True:
            yield from pause(world.timeline, int(_PULL_EVERY_NS * world.dice.uniform(0.5, 1.5)))
            for other in world.stores:
                if other.up and not world.network.is_cut(self.name, other.name):
                    new = [each for each in other.shelf.order if self.shelf.add(each)]
                    if new:
                        self._wake()


def _served(steps: Steps[None]) -> Steps[None]:
    """A call of a participant that may leave at any time."""
    try:
        yield from steps
    except (Closed, Cancelled):
        return
