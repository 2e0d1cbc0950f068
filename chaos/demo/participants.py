"""The participants of the demo: their channels, nodes and links, and their talk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from chaos.participant import Participant
from chaos.tasks import Tasks
from storenode.sds.bloom import FilterShape
from storenode.sds.channel import ChannelFullError
from storenode.sds.config import ChannelConfig, RepairConfig

SEND_EVERY_S: Final = 0.06
"""Mean pause between two lines of all channels together."""

LOSS: Final = 0.2
"""The share of messages that a bad link loses."""

_REPAIR: Final = RepairConfig(request_min_ms=500, request_max_ms=1_500, requests_per_message=16)


@dataclass(frozen=True, slots=True)
class Character:
    """A participant of the cast: the node that it reaches first, and whether its link is bad."""

    name: str
    channel_id: str
    home: str
    has_bad_link: bool = False


READER: Final = "bela"
"""The reader of the conversation of which her link loses a line."""

NEIGHBOUR: Final = "lena"
"""The sender behind the node that is cut off."""

ROAMER: Final = "kim"
"""The only reader of these lines, who then moves to the other side."""

LISTENER: Final = "joe"
"""The participant of the same channel on the other side."""

LEAVER: Final = "hugo"
"""The participant that leaves, and joins again on the same state."""

CAST: Final = (
    Character("ada", "atlas", "n1"),
    Character(READER, "atlas", "n2", has_bad_link=True),
    Character("cora", "atlas", "n3"),
    Character("dan", "birch", "n1", has_bad_link=True),
    Character("elsa", "birch", "n2"),
    Character("finn", "birch", "n3"),
    Character("gina", "cedar", "n1"),
    Character(LEAVER, "cedar", "n2"),
    Character("ines", "cedar", "n3", has_bad_link=True),
    Character(LISTENER, "delta", "n1"),
    Character(ROAMER, "delta", "n3"),
    Character(NEIGHBOUR, "delta", "n3"),
)


def configure(who: Character, *, repairs: bool) -> ChannelConfig:
    """Return a configuration with short intervals, with or without SDS-Repair."""
    return ChannelConfig(
        who.channel_id,
        who.name,
        filter=FilterShape(1_000, 0.01),
        history_entries=6,
        sync_min_ms=1_500,
        sync_max_ms=3_000,
        repair=_REPAIR if repairs else None,
    )


class Crowd:
    """The participants by name, and their talk."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._rng = Random()
        self._silent = asyncio.Event()
        self._talking: asyncio.Task[Any] | None = None
        self._members: dict[str, Participant] = {}

    def __getitem__(self, name: str) -> Participant:
        return self._members[name]

    def __iter__(self) -> Iterator[Participant]:
        return iter(self._members.values())

    def add(self, participant: Participant) -> None:
        """Add a participant."""
        self._members[participant.name] = participant

    async def join(self) -> None:
        """Let all join."""
        await asyncio.gather(*(each.join(self._tasks) for each in self))

    async def leave(self) -> None:
        """Let all leave."""
        await self.stop_talk()
        await asyncio.gather(*(each.leave() for each in self))

    def start_talk(self) -> None:
        """Send lines of random participants until `stop_talk`."""
        self._silent.clear()
        self._talking = self._tasks.start(self._talk())

    async def stop_talk(self) -> None:
        """End the talk; a line that was begun is sent."""
        self._silent.set()
        if self._talking is not None:
            await self._talking

    def set_losses(self, *, on: bool) -> None:
        """Let the bad links lose messages, or carry all."""
        for who in CAST:
            if who.has_bad_link:
                self[who.name].link.loses = self._is_lost if on else _never

    def members(self, channel_id: str) -> list[Participant]:
        """Return the participants of a channel."""
        return [each for each in self if each.channel_id == channel_id]

    async def say(self, name: str, text: str = "") -> str:
        """Send a line, by default the next of many, and return its ID; empty if it is not sent."""
        who = self[name]
        with suppress(ChannelFullError):
            return await who.send((text or f"{name} says {len(who.sent) + 1}").encode())
        return ""

    def _is_lost(self) -> bool:
        return self._rng.random() < LOSS

    async def _talk(self) -> None:
        while not self._silent.is_set():
            await self.say(self._rng.choice(list(self._members)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.expovariate(1 / SEND_EVERY_S)):
                    await self._silent.wait()


def _never() -> bool:
    return False
