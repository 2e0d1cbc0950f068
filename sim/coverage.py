"""Statements of sessions about other stores, and clients that ask a node how complete it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from reconcile.ids import SyncId
from sim.marks import Mark
from sim.process import Process
from sim.rng import happens
from sim.store import JudgedView, SimIds
from store.domain.coverage import BLOCK_NS, Coverage, aligned
from store.domain.partitioning import DAY_NS, HOUR_NS
from store.domain.ports import NotServingError
from store.domain.view import Span

if TYPE_CHECKING:
    from sim.database import Database
    from sim.node import Node
    from sim.world import World

_MOST_STEPS: Final = 60
_TRIES: Final = 20
_RETRY_S: Final = 0.1
_STEPS_NS: Final = (BLOCK_NS, HOUR_NS, DAY_NS)
_STATED: Final = 0.8
_SLOW_S: Final = (0.0, 0.0, 2.0, 30.0)
"""The times that a client takes for its messages."""


async def read_coverage(world: World) -> None:
    """Ask a node."""
    node = world.rng.choice(world.nodes)
    if node.process is not None:
        node.process.begin_task("coverage", ask_coverage(node, node.process))


def ask_after_loss(world: World, database: Database) -> None:
    """Ask, as clients, what statements say about messages, right after commits were lost."""
    for node in world.nodes:
        if node.peering is None or node.process is None:
            continue
        if node.database is database:
            node.process.begin_task("coverage", _ask_all(node, node.process))


async def _ask_all(node: Node, process: Process) -> None:
    coverage, shown = _reads(node, process)
    assert node.peering is not None
    waiting = [each.waiting for each in node.peering.exchange.statements._stores.values()]
    said = (*process.database.stated.values(), *waiting)
    spans = {(each.start_ns, each.end_ns) for found in said for each in found if each.count}
    for span in sorted(spans)[-_MOST_STEPS:]:
        for _ in range(_TRIES):
            try:
                await _ask_about(process, coverage, shown, [span])
                break
            except NotServingError:
                # Soon it can say how complete it is, and others have not brought back what is lost.
                await asyncio.sleep(_RETRY_S)


def _reads(node: Node, process: Process) -> tuple[Coverage, list[SyncId]]:
    """Return what answers, and the IDs in the view that it has opened last."""
    assert node.peering is not None
    peering, shown = node.peering, list[SyncId]()

    @asynccontextmanager
    async def open_view(lower: SyncId, upper: SyncId) -> AsyncIterator[JudgedView]:
        async with peering.index.open_view(lower, upper) as view:
            shown[:] = view.shown
            yield view

    return Coverage(open_view, peering.exchange.statements, SimIds(process)), shown


async def ask_coverage(node: Node, process: Process) -> None:
    """Ask for the steps of a range, or for messages with the short form."""
    coverage, shown = _reads(node, process)
    try:
        if happens(process.rng, 0.5):
            await _ask_steps(process, coverage, shown)
        else:
            await _ask_messages(process, coverage)
    except NotServingError:
        process.note("cannot say how complete it is")


async def _ask_steps(process: Process, coverage: Coverage, shown: list[SyncId]) -> None:
    span, rng = _range(process), process.rng
    bounds = [span]
    if happens(rng, 0.5):
        step_ns = rng.choice(_STEPS_NS)
        last_ns = (span[1] - 1) // step_ns * step_ns
        first_ns = max(span[0], last_ns - (_MOST_STEPS - 1) * step_ns)
        bounds = list(aligned(first_ns, span[1], step_ns))
    await _ask_about(process, coverage, shown, bounds)


async def _ask_about(
    process: Process, coverage: Coverage, shown: list[SyncId], bounds: Sequence[Span]
) -> None:
    steps = await coverage.steps(bounds)
    for step in steps:
        for store in step.stores:
            if store.equal_until > step.time_start:
                process.mark(Mark.COVERED)
                span = step.time_start, store.equal_until
                database, stores = process.database, (store.store_id,)
                process.judge.covered(database, stores, span, store.compared_at, shown, whole=True)


async def _ask_messages(process: Process, coverage: Coverage) -> None:
    (start_ns, end_ns), rng = _range(process), process.rng
    known = await coverage.known(start_ns, end_ns)
    await asyncio.sleep(rng.choice(_SLOW_S) * rng.random())
    database = process.database
    stored = await database.look(lambda: list(database.ids))
    await asyncio.sleep(rng.choice(_SLOW_S) * rng.random())
    lost, horizon_ns = await coverage.lost_since(known.places)
    found = known.answer((start_ns, end_ns), horizon_ns, lost=lost)
    if found.complete_until > found.complete_from:
        process.mark(Mark.COVERED)
        span, stores = (found.complete_from, found.complete_until), found.store_ids
        process.judge.covered(database, stores, span, found.compared_at, stored, whole=False)


def _range(process: Process) -> Span:
    """Draw the range of a statement about messages, or any other up to now; not empty."""
    rng = process.rng
    said = process.database.stated.values()
    stated = [each for found in said for each in found if each.count]
    if stated and happens(rng, _STATED):
        some = rng.choice(stated)
        return some.start_ns, some.end_ns
    now_ns, scenario = process.timeline.now_ns, process.scenario
    end_ns = now_ns - int(rng.choice((0, 1)) * rng.random() * scenario.history_ns)
    longest_ns = rng.choice((HOUR_NS, DAY_NS, scenario.history_ns + scenario.offset_ns, end_ns))
    return end_ns - 1 - int(rng.random() * (longest_ns - 1)), end_ns
