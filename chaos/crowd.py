"""The SDS participants of a run by name, and their talk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from chaos.participant import Participant
from chaos.tasks import Tasks
from storenode.sds.channel import ChannelFullError


class Crowd:
    """Participants; while they talk, a random one sends a line every ``mean_pause_s``."""

    def __init__(self, tasks: Tasks, rng: Random, mean_pause_s: float) -> None:
        self._tasks = tasks
        self._rng = rng
        self._mean_pause_s = mean_pause_s
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

    def members(self, channel_id: str) -> list[Participant]:
        """Return the participants of a channel."""
        return [each for each in self if each.channel_id == channel_id]

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

    async def say(self, name: str, text: str = "") -> str:
        """Send a line, by default the next of many, and return its ID; empty if it is not sent."""
        who = self[name]
        with suppress(ChannelFullError):
            return await who.send((text or f"{name} says {len(who.sent) + 1}").encode())
        return ""

    def count_due(self) -> int:
        """Return the number of lines that participants lack, have not published, or wait for."""
        due = 0
        for each in self:
            status = each.look()
            lines = sum(len(other.sent) for other in self.members(each.channel_id))
            lacking = max(lines - each.length - len(each.lost), 0)
            due += lacking + status.unpublished + int(not status.synced)
        return due

    async def _talk(self) -> None:
        while not self._silent.is_set():
            await self.say(self._rng.choice(list(self._members)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.expovariate(1 / self._mean_pause_s)):
                    await self._silent.wait()
