"""The frames of a call's messages, in the order in which they are sent, read ahead.

Two portions are being read while one is sent. Those of a sweep can be begun while it is still
under way: what it took stays taken, and what it took first is sent last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from typing import Final

from store.db.pool import Database
from store.db.reading.messages import (
    EXACT_POSITIONS,
    MAX_FRAME_POSITIONS,
    exact_frames,
    most_frames,
)
from store.domain.claims import Found
from store.domain.ports import SyncId

MAX_EARLY_BYTES: Final = 8 * 1024 * 1024
"""Frames of one call that are read before it is known what is sent."""

_EARLY_PORTION: Final = 512
_FIRST_PORTION: Final = 256
_PORTIONS_AHEAD: Final = 2
_PORTION_BYTES: Final = 512 * 1024

Frames = list[bytes | None]
"""Frames of a portion, None where there is none."""

_Task = asyncio.Task[Frames]


class FrameStream:
    """The frames of one call."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._early: list[tuple[list[Found], _Task]] = []
        self._early_messages = 0
        self._early_under_way = 0
        self._early_bytes = 0
        self._growing: Sequence[Found] = ()
        self._under_way: deque[tuple[list[Found], _Task]] = deque()

    def begin_early(self, taken: Sequence[Found]) -> None:
        """Begin with what a sweep has taken and goes on to take, newest first, within limits."""
        self._growing = taken
        self._begin_more()

    def _begin_more(self) -> None:
        while self._early_under_way < _PORTIONS_AHEAD and self._early_bytes < MAX_EARLY_BYTES:
            end = self._early_messages + _EARLY_PORTION
            if end > len(self._growing):
                return
            portion = list(self._growing[self._early_messages : end])[::-1]
            task = self._begin(portion)
            task.add_done_callback(self._note_early)
            self._early.append((portion, task))
            self._early_messages = end
            self._early_under_way += 1

    def _note_early(self, task: _Task) -> None:
        self._early_under_way -= 1
        if task.cancelled() or task.exception() is not None:
            self._growing = ()
            return
        # A gap is a large message, or one that is gone: reading early is no use then.
        for frame in task.result():
            self._early_bytes += MAX_EARLY_BYTES if frame is None else len(frame)
        self._begin_more()

    async def forget_early(self) -> None:
        """Drop what was begun early: something else is sent."""
        tasks = [task for _, task in self._early]
        self._early, self._early_messages, self._growing = [], 0, ()
        await _end(tasks)

    async def portions(
        self, taken: Sequence[Found], order: Iterator[int]
    ) -> AsyncGenerator[tuple[Sequence[Found], Frames], None]:
        """Portions of what was taken, in this order, with the frames of all that is held.

        What was begun early must come last in the order, the latest begun first.
        """
        self._growing = ()
        wanted = islice(map(taken.__getitem__, order), len(taken) - self._early_messages)
        size = _FIRST_PORTION
        self._begin_next(wanted, size)
        while self._under_way:
            portion, frames = self._under_way[0][0], await self._under_way[0][1]
            self._under_way.popleft()
            size = _next_size(size, frames)
            self._begin_next(wanted, size)
            if None not in frames:
                yield portion, frames
                continue
            for start in range(0, len(portion), EXACT_POSITIONS):
                part = slice(start, start + EXACT_POSITIONS)
                yield portion[part], await self._complete(portion[part], frames[part])

    async def aclose(self) -> None:
        """Drop what is being read; wait until nothing is."""
        self._growing = ()
        await _end([task for _, task in (*self._under_way, *self._early)])

    def _begin_next(self, wanted: Iterator[Found], size: int) -> None:
        while len(self._under_way) < _PORTIONS_AHEAD:
            portion = list(islice(wanted, size))
            if portion:
                self._under_way.append((portion, self._begin(portion)))
            elif self._early:
                self._under_way.append(self._early.pop())
            else:
                return

    def _begin(self, portion: Sequence[Found]) -> _Task:
        reading = self._database.read(
            most_frames, _positions(portion), pool=self._database.bulk_pool
        )
        return asyncio.ensure_future(reading)

    async def _complete(self, portion: Sequence[Found], frames: Frames) -> Frames:
        """Fill the gaps in the frames of a portion with what is held after all."""
        if None not in frames:
            return frames
        return await self._database.read(
            exact_frames, _positions(portion), pool=self._database.bulk_pool
        )


async def _end(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _positions(portion: Sequence[Found]) -> list[SyncId]:
    return [(found[1], found[2]) for found in portion]


def _next_size(size: int, frames: Frames) -> int:
    """Messages of the next portion: as many as make a handy number of bytes."""
    if None in frames:
        return max(size // 4, EXACT_POSITIONS)
    size_bytes = sum(len(frame) for frame in frames if frame is not None)
    if size_bytes > 2 * _PORTION_BYTES:
        return max(size // 2, EXACT_POSITIONS)
    return min(2 * size, MAX_FRAME_POSITIONS) if size_bytes < _PORTION_BYTES else size
