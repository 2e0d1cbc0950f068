"""The index, the summaries and the views of a node on a database, for tests."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace

import numpy as np

from reconcile.ids import SyncId
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.db.reconciliation import DatabaseIds
from store.domain.environment import Environment
from store.domain.hub import CommitRow, WrittenIds
from store.observe.metrics import Metrics
from store.sync.index.hot import HotIndex
from store.sync.index.views import IndexedReconcilable, StoredView
from store.sync.limits import IndexLimits
from storenode.message.limits import NS_PER_S
from tests.integration.storage.node import Node, running
from tests.integration.storage.world import NOW
from tests.support.naive_view import NaiveView
from tests.unit.reconcile.answers import check_answer, random_read
from tests.unit.reconcile.worlds import random_spans

WINDOW = 3600 * NS_PER_S
PATIENCE_S = 90.0
PATIENT = IndexLimits(patience_s=PATIENCE_S, cold_patience_s=PATIENCE_S)
"""A view waits as long as a busy machine makes it; by itself it turns to the database after 5 s."""


@dataclass
class Clock:
    """A clock that tests set."""

    now_ns: int = NOW

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Steady:
    """The monotonic clock, which tests advance."""

    offset_ns: int = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.offset_ns


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        """Keep an event."""
        self.events.append((event, fields))

    debug = warning = error = info


@dataclass
class ViewingNode(Node):
    """A node's storage with its index and its views.

    Attributes:
        events: names of the index's events, and what came with them.
    """

    hot: HotIndex
    written_ids: WrittenIds
    views: IndexedReconcilable
    clock: Clock
    steady: Steady
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state of the index."""
        async with asyncio.timeout(PATIENCE_S), self.hot.moved:
            await self.hot.moved.wait_for(reached)

    async def until_warm(self) -> None:
        """Wait until there is an index."""
        await self.until(lambda: self.hot._index is not None)

    async def stored_view(self) -> NaiveView:
        """Return what the database holds, as rows say it."""
        rows = await self.rows("select ts, hash from storenode.messages")
        return NaiveView((row[0], row[1]) for row in rows)  # type: ignore[misc]


@asynccontextmanager
async def viewing(
    url: str,
    *,
    window_ns: int = WINDOW,
    limits: IndexLimits | None = None,
    started: bool = True,
) -> AsyncIterator[ViewingNode]:
    """Open a node's storage with views; without an index unless it is ``started``."""
    clock, steady, log, written_ids = Clock(), Steady(), Log(), WrittenIds()
    limits = replace(limits or PATIENT, backoff_s=0.01, lowest_ns=NOW - window_ns)
    environment = Environment(clock, steady, random.Random(0), log, Metrics("1.0").count_intake)
    indexes: list[HotIndex] = []

    def note(commits: Sequence[CommitRow]) -> None:
        for index in indexes:
            index.commits(commits)

    async with running(url, written_ids=written_ids, on_commits=note) as node:
        stored = DatabaseIds(node.database)
        hot = HotIndex(stored, written_ids, environment, limits)
        indexes.append(hot)
        views = IndexedReconcilable(stored, hot, limits)
        parts = {each.name: getattr(node, each.name) for each in fields(node)}
        made = ViewingNode(
            **parts,
            hot=hot,
            written_ids=written_ids,
            views=views,
            clock=clock,
            steady=steady,
            events=log.events,
        )
        try:
            if started:
                hot.start()
                await made.until_warm()
            yield made
        finally:
            await hot.stop()


async def check_view(
    view: StoredView, oracle: NaiveView, rng: random.Random, *, above: SyncId | None = None
) -> None:
    """Ask a view everything about random spans, and about everything."""
    for count in (1, 12, 40):
        spans = random_spans(rng, oracle.ids, count)
        if above is not None:
            spans = spans[np.array([lower >= above for lower, _ in spans.pairs()], np.bool_)]
        read = random_read(rng, oracle, spans)
        check_answer(oracle, read, await view.answer(read))


def everything(lower: SyncId, upper: SyncId) -> Read:
    """Measure, and read, one range."""
    spans = Spans.of([(lower, upper)])
    return Read(measure=spans, items=spans)
