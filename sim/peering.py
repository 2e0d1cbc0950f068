"""The exchange of a simulated node with its peers: the shipped drivers, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from sim.lookups import CHANNEL, JudgedFetcher
from sim.peers import JudgedExchange, SimCaller
from sim.process import Process
from sim.store import FEED, JudgedIndex, SimIds, SimStore
from sim.streams import Handler
from store.domain.ports import (
    HistoryEntry,
    NotServingError,
    PeerAddress,
    SdsLookup,
    StoreUnavailableError,
    TopicFilter,
)
from store.sync.fetch import FetchWork, OnlineRecorder, Resumer
from store.sync.schedule import ScheduleConfig, Synchronizer
from store.sync.session.exchange import RECONCILE, TRANSFER
from store.sync.session.report import SessionReport

_ENDLESS: Final = (FEED, "resume", "online", "retention")
_RETRY_S: Final = 1.0
_QUIET_S: Final = 30.0
"""The time after which nothing may be left of what was stopped."""


class Peering:
    """The exchange of one process with its peers."""

    def __init__(self, process: Process, peers: tuple[PeerAddress, ...], store: SimStore) -> None:
        scenario = process.scenario
        self._process = process
        self.stopped = False
        self._ids = SimIds(process)
        self.index = JudgedIndex(process, self._ids)
        self._store = store
        self.exchange = JudgedExchange(process, self._store, self.index)
        caller = SimCaller(process, self._store)
        work = FetchWork(caller, self._store, process.policy, process.world_env)
        self._synchronizer = Synchronizer(
            ScheduleConfig(
                peers=peers,
                interval_ns=scenario.interval_ns,
                range_ns=scenario.range_ns,
                offset_ns=scenario.offset_ns,
                wide_interval_ns=scenario.wide_ns,
                max_sessions=scenario.sessions,
            ),
            caller,
            self.exchange,
            JudgedFetcher(process, work, caller.asked),
            process.world_env,
        )
        self._recorder = OnlineRecorder(
            self._store, process.world_env, interval_s=scenario.online_every_s
        )
        self._resumer = Resumer(
            peers,
            work,
            self._recorder,
            slack_ns=scenario.offset_ns,
            proceed=self._synchronizer.start,
            failed=lambda _peer, _error: None,
        )

    def calls(self) -> Mapping[str, Handler]:
        """Return the calls that are served to peers alone."""
        exchange = self.exchange
        return {
            RECONCILE: lambda stream: exchange.serve_reconcile(stream.caller, stream),
            TRANSFER: lambda stream: exchange.serve_transfer(stream.caller, stream),
        }

    def start(self) -> None:
        """Begin with the resume, which begins the schedule."""
        self._store.resuming = True
        self._recorder.begin()
        self._process.begin_task("online", self._recorder.run())
        self._process.begin_task("resume", self._resume())

    def check(self) -> None:
        """Verify the machines, and the bounds on what is open."""
        self.exchange.check()
        self._ids.check()
        self.index.check()
        self._synchronizer.check()
        self._resumer.check()

    def ask(self, peer: PeerAddress | None, start_ns: int | None) -> asyncio.Task[SessionReport]:
        """Begin a session for an operator, who may cancel it."""
        name = "" if peer is None else str(peer)
        session = self._synchronizer.synchronize(name, start_ns, None)
        return self._process.begin_task("operator", session)

    def fetch(self, peer: PeerAddress, entries: tuple[HistoryEntry, ...]) -> asyncio.Task[None]:
        """Begin a lookup of SDS messages for a client."""
        request = SdsLookup(CHANNEL.encode(), entries, TopicFilter())
        return self._process.begin_task("look-up", self._fetch(str(peer), request))

    async def _fetch(self, peer_name: str, request: SdsLookup) -> None:
        with suppress(NotServingError):
            await self._synchronizer.fetch(peer_name, request)

    async def stop(self) -> None:
        """Stop as a node does that shuts down; then nothing may be left.

        Raises:
            AssertionError: a task is left.
        """
        life = self._process.life
        self.stopped = True
        await self._synchronizer.stop()
        self.exchange.close()
        for task in [task for task in life.tasks if task.get_name() in _ENDLESS]:
            task.cancel()
        await self.exchange.statements.flush()
        await self._recorder.note()
        await self.index.stop()
        await asyncio.sleep(_QUIET_S + self._process.scenario.silence_ns / 1e9)
        left = [task for task in life.tasks if task is not asyncio.current_task()]
        assert not left, f"tasks are left of a node that was stopped: {left}"
        self.exchange.check_empty()

    async def _resume(self) -> None:
        while True:
            try:
                await self._resumer.run()
            except StoreUnavailableError:
                # As the node's own background tasks: they are started again.
                await asyncio.sleep(_RETRY_S)
