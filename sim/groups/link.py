"""A participant's connection to store nodes: publishing, following, and fetching what is missing.

Each of the three is a task that goes from node to node when one fails, and rests in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sim.calls import Closed, End, Ended, Identity
from sim.groups.limits import MAX_OUTBOX
from sim.groups.quests import Quests
from sim.groups.spoken import Causes, FollowFrom, Offer, Page, Request, Spoken
from sim.groups.store import FOLLOW, PUBLISH, READ
from sim.limits import NS_PER_S
from sim.tasks import Promise, Steps, Task, pause, within
from storenode.sds.events import MissingMessage, Published

if TYPE_CHECKING:
    from sim.groups.member import Member

_BATCH: Final = 4
_REST_NS: Final = 1 * NS_PER_S
_ANSWER_NS: Final = 10 * NS_PER_S
_LAST_KEY: Final = (2**64, "")


class Link:
    """The link of one life of a participant."""

    def __init__(self, member: Member, outbox: Sequence[Spoken]) -> None:
        self._member = member
        self._world = member.world
        self._outbox = deque(outbox)
        self._quests = Quests(member.world.scenario.limits)
        self._woken: dict[str, Promise[None]] = {}
        work = {"publish": self._publishing(), "look": self._looking()}
        if member.world.scenario.follow:
            work["follow"] = self._following()
        self._tasks = [self._begin(name, steps) for name, steps in work.items()]

    def end(self) -> None:
        """Nothing goes on."""
        for task in self._tasks:
            task.cancel()

    def publish(self, spoken: Spoken) -> None:
        """Publish a message when its turn comes; what stores do not keep may have none."""
        if spoken.lasting or len(self._outbox) < MAX_OUTBOX:
            self._outbox.append(spoken)
            self._wake("publish")

    def unstored(self) -> tuple[Spoken, ...]:
        """What no store has said yet that it keeps: it must outlive a crash."""
        return tuple(spoken for spoken in self._outbox if spoken.lasting)

    def look_for(self, messages: Sequence[MissingMessage]) -> None:
        """Some messages are missing."""
        self._quests.want(messages, self._world.timeline.now_ns)
        self._wake("look")

    # Waiting

    def _begin(self, name: str, steps: Steps[None]) -> Task:
        return Task(self._world.timeline, name, lambda _: steps, lambda _: None)

    def _wake(self, who: str) -> None:
        if who in self._woken:
            self._woken.pop(who).keep(None)

    def _sleep(self, who: str, until_ns: int | None) -> Steps[None]:
        """Wait until somebody wakes us, or until a time."""
        woken = self._woken[who] = Promise[None]()
        timeline = self._world.timeline
        timer = None if until_ns is None else timeline.at(until_ns, lambda: woken.keep(None))
        try:
            yield from woken.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _rest(self) -> Steps[None]:
        yield from pause(self._world.timeline, int(_REST_NS * self._world.dice.uniform(0.5, 2)))

    def _call(self, node: str, method: str) -> Steps[End]:
        name = self._member.name
        return (yield from self._world.network.call(name, node, method, Identity(name, name)))

    def _in_time(self, promise: Promise[Any]) -> Steps[Any]:
        silent = TimeoutError("a store says nothing")
        return (yield from within(self._world.timeline, promise, _ANSWER_NS, silent))

    # Publishing

    def _publishing(self) -> Steps[None]:
        number = self._world.dice.randint(0, 1)
        while True:
            if not self._outbox:
                yield from self._sleep("publish", None)
            number += 1
            try:
                yield from self._publish_to(self._node(number))
            except (Closed, TimeoutError):
                yield from self._rest()

    def _publish_to(self, node: str) -> Steps[None]:
        end = yield from self._call(node, PUBLISH)
        try:
            while self._outbox:
                batch = list(self._outbox)[:_BATCH]
                yield from self._in_time(end.send(Offer(batch)))
                hints = set((yield from self._in_time(end.read())))
                self._published([each for each in batch if each.hint in hints])
            end.half_close()
        finally:
            end.cancel()

    def _published(self, batch: Sequence[Spoken]) -> None:
        for spoken in batch:
            if spoken in self._outbox:
                self._outbox.remove(spoken)
            if self._member.channel is not None and spoken.lasting:
                self._member.step(Published(spoken.message.message_id, spoken.hint))

    def _node(self, number: int) -> str:
        stores = self._world.stores
        return stores[number % len(stores)].name

    # Following

    def _following(self) -> Steps[None]:
        number = self._world.dice.randint(0, 1)
        while True:
            number += 1
            with suppress(Closed):
                yield from self._follow(self._node(number))
            yield from self._rest()

    def _follow(self, node: str) -> Steps[None]:
        member = self._member
        end = yield from self._call(node, FOLLOW)
        try:
            yield from end.send(FollowFrom(member.places.get(node, 0))).wait()
            while isinstance(page := (yield from end.read().wait()), Page):
                if not member.take(page.messages):
                    break  # What there was no room for must be read once more, from here.
                member.places[node] = page.place
        finally:
            end.cancel()

    # Fetching

    def _looking(self) -> Steps[None]:
        number = self._world.dice.randint(0, 1)
        timeline = self._world.timeline
        while True:
            request = self._quests.next(timeline.now_ns, self._known)
            if request is None:
                yield from self._sleep("look", self._quests.next_due_ns())
                continue
            number += 1
            try:
                yield from self._look(self._node(number), request)
            except (Closed, TimeoutError):
                yield from self._rest()

    def _look(self, node: str, request: Request) -> Steps[None]:
        if isinstance(request, Causes):
            self._world.mark("a causal history was asked for")
        found, truncated = yield from self._ask(node, request)
        if truncated:
            self._world.mark("an answer was truncated")
        member, quests = self._member, self._quests
        before = set(quests.by_id)
        member.take(found)
        channel = member.channel
        assert channel is not None
        quests.answered(request, channel.incoming.wants, self._world.timeline.now_ns)
        quests.deepened(deeper=bool(found) and not quests.by_id.keys() <= before)

    def _ask(self, node: str, request: Request) -> Steps[tuple[list[Spoken], bool]]:
        end = yield from self._call(node, READ)
        found: list[Spoken] = []
        truncated = False
        try:
            yield from self._in_time(end.send(request))
            while not isinstance(page := (yield from self._in_time(end.read())), Ended):
                found += page.messages
                truncated |= page.truncated
        finally:
            end.cancel()
        return found, truncated

    def _known(self, most: int) -> Sequence[str]:
        channel = self._member.channel
        assert channel is not None
        return [entry.message_id for entry in channel.log.preceding(_LAST_KEY, most)]
