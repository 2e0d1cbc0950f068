"""Looks at every host of the database's URL, and keeps what was seen of the newest one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import psycopg

from store.db.pool import Database
from store.db.primary import HostChoice, PrimaryGuard
from store.domain.ports import StoreUnavailable
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.runtime.limits import (
    HOSTS_AWAY_END_TIMEOUT_S,
    HOSTS_END_TIMEOUT_S,
    HOSTS_KEEP_INTERVAL_S,
    HOSTS_TIMEOUT_S,
)

_LOG = get_logger("store.runtime.hosts")
_ALARMING = frozenset({"commits_lost", "host_refused", "timeline_not_kept"})


def note_hosts(metrics: Metrics) -> Callable[[str, Mapping[str, object]], None]:
    """Log and count what happens to hosts."""

    def note(name: str, fields: Mapping[str, object]) -> None:
        write = _LOG.error if name in _ALARMING else _LOG.info
        write(name if name == "commits_lost" else f"database_{name}", **fields)
        metrics.database_events.labels(name).inc()

    return note


class HostWatch:
    """Keeps the pools on the newest server; `url` names all hosts."""

    def __init__(
        self,
        guard: PrimaryGuard,
        url: str,
        metrics: Metrics,
        *,
        database: Database,
        on_look: Callable[[HostChoice], None],
    ) -> None:
        self._guard = guard
        self._url = url
        self._metrics = metrics
        self._database = database
        self._on_look = on_look
        self._kept_s = time.monotonic()
        self._moved_to = url
        self._served = True

    async def look(self) -> None:
        """Look at the hosts once."""
        try:
            async with asyncio.timeout(HOSTS_TIMEOUT_S):
                choice = await self._guard.choose(self._url)
        except (psycopg.Error, OSError, TimeoutError) as error:
            _LOG.debug("database_hosts_not_seen", reason=str(error))
            return
        self._served = choice.served
        if choice.url != self._moved_to:
            self._moved_to = choice.url
            self._database.move(choice.url)
        self._metrics.database_hosts_refused.set(len(choice.refused))
        self._metrics.database_timeline.set(self._guard.timeline)
        self._on_look(choice)
        if time.monotonic() - self._kept_s > HOSTS_KEEP_INTERVAL_S:
            self._kept_s = time.monotonic()
            await asyncio.to_thread(self._guard.keep)

    async def end(self) -> None:
        """Keep what was seen up to the end, as far as the database still answers."""
        patience_s = HOSTS_END_TIMEOUT_S if self._served else HOSTS_AWAY_END_TIMEOUT_S
        with contextlib.suppress(psycopg.Error, StoreUnavailable, TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._database.read(self._guard.reach)
        await asyncio.to_thread(self._guard.keep)
