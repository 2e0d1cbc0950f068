"""What sessions of simulated nodes state about other stores; the judge is told of all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sim.marks import Mark
from sim.process import Process
from sim.rng import Rng
from store.domain.coverage import Statement, updated


class SimStatements:
    """`store.domain.coverage.Statements` of a database, for the sessions of one process."""

    def __init__(self, process: Process, rng: Rng | None = None) -> None:
        self._process = process
        self._rng = rng
        self._ended: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()

    def ended(self, session_id: str) -> None:
        """A session of this task has ended, about which it may state something."""
        task = asyncio.current_task()
        assert task is not None
        self._ended[task] = session_id

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements, ascending, in place of older ones about the same time."""
        if not statements:
            return
        process = self._process
        task = asyncio.current_task()
        assert task is not None
        session = self._ended.get(task, "")
        process.judge.stated(session, process.database, store_id, statements)
        process.mark(Mark.STATED)
        await process.database.change(process, lambda: self._replace(store_id, statements, now_ns))

    def _replace(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        stated, horizon_ns = self._process.database.stated, self._process.database.horizon_ns
        for store, found in stated.items():
            stated[store] = [each for each in found if each.end_ns > horizon_ns]
        old = stated.get(store_id, [])
        start_ns, end_ns = statements[0].start_ns, statements[-1].end_ns
        about = [each for each in old if each.start_ns < end_ns and each.end_ns > start_ns]
        gone, made = updated(about, statements, now_ns)
        stated[store_id] = [*(each for each in old if each not in gone), *made]

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """By store, those that overlap a range, ascending."""

        def read() -> dict[str, list[Statement]]:
            stated = self._process.database.stated
            about = {
                store: [each for each in found if each.start_ns < end_ns and each.end_ns > start_ns]
                for store, found in stated.items()
            }
            return {
                store: sorted(found, key=lambda each: (each.start_ns, -each.end_ns))
                for store, found in about.items()
                if found
            }

        return await self._process.database.look(read, rng=self._rng)
