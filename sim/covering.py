"""Clients that ask a node how complete it is; the judge holds what it says against the truth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from reconcile.ids import SyncId
from sim.dice import Dice, happens
from sim.index import SimIds
from sim.marks import Mark
from sim.process import Process
from sim.stating import SimStatements
from sim.views import JudgedView, JudgedViews
from store.domain.coverage import BLOCK_NS, HOUR_NS, Span, aligned, answered
from store.domain.partitioning import DAY_NS
from store.domain.ports import StoreBusy, StoreUnavailable
from store.sync.coverage import Coverage

if TYPE_CHECKING:
    from sim.database import Database
    from sim.node import Node
    from sim.world import World

_PAUSE_S: Final = 6.0
_MOST_STEPS: Final = 60
_STEPS_NS: Final = (BLOCK_NS, HOUR_NS, DAY_NS)
_STATED: Final = 0.8
_SLOW_S: Final = (0.0, 0.0, 2.0, 30.0)
"""How long a client takes for its messages."""


async def read_coverage(world: World, dice: Dice) -> None:
    """Ask nodes, one after the other, with chance of its own: what else happens stays the same."""
    while True:
        await asyncio.sleep(_PAUSE_S * dice.uniform(0, 2))
        node = dice.choice(world.nodes)
        if node.process is not None:
            node.process.begin_task("coverage", ask_coverage(node, node.process, dice))


def ask_after_loss(world: World, database: Database) -> None:
    """Have clients ask what statements say about messages, right after commits were lost."""
    for node in world.nodes:
        if node.peering is None or node.process is None:
            continue
        if node.database is database:
            work = _ask_all(node, node.process, world.own_dice())
            node.process.begin_task("coverage", work)


async def _ask_all(node: Node, process: Process, dice: Dice) -> None:
    coverage, views = _reads(node, process, dice)
    said = process.database.stated.values()
    spans = {(each.start_ns, each.end_ns) for found in said for each in found if each.count}
    try:
        for span in sorted(spans)[-_MOST_STEPS:]:
            await _ask_about(process, coverage, views, [span])
    except (StoreBusy, StoreUnavailable):
        process.note("cannot say how complete it is")


def _reads(node: Node, process: Process, dice: Dice) -> tuple[Coverage, _Views]:
    assert node.peering is not None
    ids = SimIds(process, dice)
    views = _Views(process, ids, node.peering.index)
    return Coverage(views, SimStatements(process, dice), ids), views


async def ask_coverage(node: Node, process: Process, dice: Dice) -> None:
    """One client: it asks for steps of a range, or for messages with the short form."""
    coverage, views = _reads(node, process, dice)
    try:
        if happens(dice, 0.5):
            await _ask_steps(process, coverage, views, dice)
        else:
            await _ask_messages(process, coverage, dice)
    except (StoreBusy, StoreUnavailable):
        process.note("cannot say how complete it is")


async def _ask_steps(process: Process, coverage: Coverage, views: _Views, dice: Dice) -> None:
    span = _range(process, dice)
    bounds = [span]
    if happens(dice, 0.5):
        step_ns = dice.choice(_STEPS_NS)
        last_ns = (span[1] - 1) // step_ns * step_ns
        first_ns = max(span[0], last_ns - (_MOST_STEPS - 1) * step_ns)
        bounds = list(aligned(first_ns, span[1], step_ns))
    await _ask_about(process, coverage, views, bounds)


async def _ask_about(
    process: Process, coverage: Coverage, views: _Views, bounds: Sequence[Span]
) -> None:
    steps = await coverage.steps(bounds)
    for step in steps:
        for store in step.stores:
            if store.equal_until_ns > step.start_ns:
                process.mark(Mark.COVERED)
                span = step.start_ns, store.equal_until_ns
                database, stores = process.database, (store.store_id,)
                process.judge.covered(
                    database, stores, span, store.compared_ns, views.shown, whole=True
                )


async def _ask_messages(process: Process, coverage: Coverage, dice: Dice) -> None:
    start_ns, end_ns = _range(process, dice)
    known = await coverage.known(start_ns, end_ns)
    await asyncio.sleep(dice.choice(_SLOW_S) * dice.random())
    database = process.database
    held = await database.look(lambda: list(database.ids), dice=dice)
    await asyncio.sleep(dice.choice(_SLOW_S) * dice.random())
    lost, horizon_ns = await coverage.lost_since(known.places)
    found = answered((start_ns, end_ns), known, horizon_ns, lost=lost)
    if found.until_ns > found.from_ns:
        process.mark(Mark.COVERED)
        span = found.from_ns, found.until_ns
        process.judge.covered(database, found.store_ids, span, found.compared_ns, held, whole=False)


def _range(process: Process, dice: Dice) -> Span:
    """What some statement about messages covers, or any time up to now or before; not empty."""
    said = process.database.stated.values()
    stated = [each for found in said for each in found if each.count]
    if stated and happens(dice, _STATED):
        some = dice.choice(stated)
        return some.start_ns, some.end_ns
    now_ns, scenario = process.timeline.now_ns, process.scenario
    end_ns = now_ns - int(dice.choice((0, 1)) * dice.random() * scenario.history_ns)
    longest_ns = dice.choice((HOUR_NS, DAY_NS, scenario.history_ns + scenario.offset_ns, end_ns))
    return end_ns - 1 - int(dice.random() * (longest_ns - 1)), end_ns


class _Views(JudgedViews):
    """``shown``: the IDs of the view that was opened last."""

    shown: list[SyncId]

    @asynccontextmanager
    async def open_view(
        self, lower: SyncId, upper: SyncId, *, recent: bool = False
    ) -> AsyncIterator[JudgedView]:
        """Fix what is held in a range."""
        async with super().open_view(lower, upper, recent=recent) as view:
            self.shown = view.shown
            yield view
