"""The participants: their channels, nodes and links, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from store.demo.ledger import Ledger
from store.demo.limits import FILTER_ERROR_RATE, FILTER_IDS, LOSS, SAY_EVERY_S
from store.demo.tap import Passage, Tap
from store.demo.tasks import Tasks
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import ChannelEvent, Events, Message
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.status import Status
from storenode.sds.bloom import FilterShape
from storenode.sds.channel import ChannelFullError
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Missing

CHANNELS: Final = ("atlas", "birch", "cedar", "delta")
_REPAIR: Final = RepairConfig(request_min_ms=500, request_max_ms=1_500, requests_per_message=16)
_LOG_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Character:
    """A participant of the cast: the node that it reaches first, and whether its link is bad."""

    name: str
    channel_id: str
    home: str
    bad_link: bool = False


READER: Final = "bela"
"""Reads the conversation of which her link loses a line."""

NEIGHBOUR: Final = "lena"
"""Says something behind the node that is cut off."""

ROAMER: Final = "kim"
"""Alone has heard it, and goes to the other side."""

LISTENER: Final = "joe"
"""Is there, in the same channel."""

LEAVER: Final = "hugo"
"""Closes the program for a while, and begins it again on the same state."""

CAST: Final = (
    Character("ada", "atlas", "n1"),
    Character(READER, "atlas", "n2", bad_link=True),
    Character("cora", "atlas", "n3"),
    Character("dan", "birch", "n1", bad_link=True),
    Character("elsa", "birch", "n2"),
    Character("finn", "birch", "n3"),
    Character("gina", "cedar", "n1"),
    Character(LEAVER, "cedar", "n2"),
    Character("ines", "cedar", "n3", bad_link=True),
    Character(LISTENER, "delta", "n1"),
    Character(ROAMER, "delta", "n3"),
    Character(NEIGHBOUR, "delta", "n3"),
)


class Person:
    """A participant, with the link that it has, from one `join` to the next `leave`."""

    def __init__(
        self,
        who: Character,
        places: Sequence[StoreNode],
        state: Path,
        ledger: Ledger,
        *,
        repairs: bool,
    ) -> None:
        self.who = who
        self.loses = False
        """Whether its link loses messages now."""
        self.missed: set[str] = set()
        """What it found missing so far, by ID."""
        self.status = Status()
        self.length = 0
        self.final: list[Message] = []
        self._ledger = ledger
        self._state = state
        self._stack: AsyncExitStack | None = None
        self._channel: Channel | None = None
        # What is being said is said to the end before the program is closed.
        self._turn = asyncio.Lock()
        self.said: list[str] = []
        """IDs of what it has said."""
        rng = Random()
        self.loses_next = False
        """Whether its link loses the next message of another."""
        self.on_event: Callable[[ChannelEvent], None] | None = None
        self.passage = Passage(who.name, lambda: self._loses_now(rng))
        self._places = [Tap(place, self.passage, ledger) for place in places]
        self._config = ChannelConfig(
            who.channel_id,
            who.name,
            filter=FilterShape(FILTER_IDS, FILTER_ERROR_RATE),
            history_entries=6,
            sync_min_ms=1_500,
            sync_max_ms=3_000,
            repair=_REPAIR if repairs else None,
        )

    @property
    def here(self) -> bool:
        """Whether the program runs."""
        return self._channel is not None

    async def join(self, tasks: Tasks) -> None:
        """Join the channel, with the state of the last time if there is one."""
        stack = AsyncExitStack()
        channel = await stack.enter_async_context(
            Channel.join(
                self._places,
                self.who.channel_id,
                self.who.name,
                state=self._state,
                config=self._config,
            )
        )
        self._stack, self._channel = stack, channel
        tasks.start(self._count(channel))
        tasks.start(self._note(channel.events()))

    async def leave(self) -> None:
        """Leave the channel; what was said is published first, if a node can be reached."""
        async with self._turn:
            stack, self._stack, self._channel = self._stack, None, None
            if stack is not None:
                await stack.aclose()

    async def say(self, text: str = "") -> str:
        """Say a line, by default the next of many; returns its ID.

        Nothing happens, and the ID is empty, when away or when too much is unacknowledged.
        """
        async with self._turn:
            if self._channel is None:
                return ""
            content = (text or f"{self.who.name} says {len(self.said) + 1}").encode()
            with suppress(ChannelFullError):
                message_id = await self._channel.send(content)
                self.said.append(message_id)
                self._ledger.say(self.who.channel_id, message_id, content)
                return message_id
            return ""

    def has_met(self, message_ids: Iterable[str]) -> bool:
        """Return True if all of some messages came to it."""
        return all(message_id in self.passage.came for message_id in message_ids)

    async def log(self) -> list[Message]:
        """Return the whole log in order; empty when away."""
        found: list[Message] = []
        page = await self._channel.log(_LOG_PAGE) if self._channel else []
        while page and self._channel:
            found = page + found
            page = await self._channel.log(_LOG_PAGE, before=page[0].key)
        return found

    def look(self) -> Status:
        """Return the status now; an empty one while away."""
        self.status = self._channel.status if self._channel else Status()
        return self.status

    def _loses_now(self, rng: Random) -> bool:
        if self.loses_next:
            self.loses_next = False
            return True
        return self.loses and rng.random() < LOSS

    async def _count(self, channel: Channel) -> None:
        self.length = 0
        async for _ in channel.messages():
            self.length += 1

    async def _note(self, events: Events[ChannelEvent]) -> None:
        async for event in events:
            if self.on_event is not None:
                self.on_event(event)
            if isinstance(event, Missing):
                self.missed.update(each.message_id for each in event.messages)


class People:
    """All participants, and their talk."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._rng = Random()
        self._silent = asyncio.Event()
        self._talking: asyncio.Task[Any] | None = None
        self.all: dict[str, Person] = {}

    def __getitem__(self, name: str) -> Person:
        return self.all[name]

    def __iter__(self) -> Iterator[Person]:
        return iter(self.all.values())

    def add(self, person: Person) -> None:
        """Add a participant."""
        self.all[person.who.name] = person

    async def join(self) -> None:
        """Have all join."""
        await asyncio.gather(*(person.join(self._tasks) for person in self.all.values()))

    async def remember(self) -> None:
        """Keep the logs of all as they are now in `Person.final`."""
        for person in self:
            person.final = await person.log()
            person.look()

    async def leave(self) -> None:
        """Have all leave."""
        await self.be_silent()
        await asyncio.gather(*(person.leave() for person in self.all.values()))

    def talk(self) -> None:
        """Have them talk until `be_silent`."""
        self._silent.clear()
        self._talking = self._tasks.start(self._talk())

    async def be_silent(self) -> None:
        """End the talk; a line that was begun is said to its end."""
        self._silent.set()
        if self._talking is not None:
            await self._talking

    def bad_links(self, *, lose: bool) -> None:
        """Make the bad links lose messages, or carry everything."""
        for person in self.all.values():
            person.loses = lose and person.who.bad_link

    def members(self, channel_id: str) -> list[Person]:
        """Return the participants of a channel."""
        return [each for each in self.all.values() if each.who.channel_id == channel_id]

    async def _talk(self) -> None:
        while not self._silent.is_set():
            await self._rng.choice(list(self.all.values())).say()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.expovariate(1 / SAY_EVERY_S)):
                    await self._silent.wait()
