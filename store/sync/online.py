"""Records while a node runs that it takes messages in."""

from __future__ import annotations

import asyncio
from typing import Final

from store.domain.coverage import IntakeRecord, Interval
from store.domain.environment import Environment
from store.domain.ports import StoreUnavailable
from store.sync.limits import ONLINE_INTERVAL_S
from storenode.message.limits import NS_PER_S

_LONGEST_STEP_NS: Final = 3 * int(ONLINE_INTERVAL_S) * NS_PER_S


class OnlineRecorder:
    """One per node. An interval ends where the database is away, the clock leaps or the node stops.

    ``begin`` comes before the resume looks at the clock, so that no time lies between the two.
    """

    def __init__(self, record: IntakeRecord, environment: Environment) -> None:
        self._record = record
        self._environment = environment
        self._start_ns = self._end_ns = 0

    def begin(self) -> None:
        """The node takes messages in from now on."""
        self._start_ns = self._end_ns = self._environment.now_ns()

    async def run(self) -> None:
        """Record it every few seconds, until it is cancelled."""
        while True:
            await self.note()
            await asyncio.sleep(ONLINE_INTERVAL_S)

    async def note(self) -> None:
        """Record that the node was online until now; where that fails, a new interval begins."""
        now_ns = self._environment.now_ns()
        if not 0 <= now_ns - self._end_ns <= _LONGEST_STEP_NS:
            self._start_ns = now_ns
        self._end_ns = now_ns
        try:
            await self._record.record(Interval(self._start_ns, now_ns, resumed=False))
        except StoreUnavailable as error:
            self._environment.log.debug("online_not_noted", error=str(error))
            self._end_ns = 0
