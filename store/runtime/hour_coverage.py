"""The coverage of other stores by hour, for the heat map of the status page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from store.db.summaries.timeline import TIMELINE_DAYS
from store.domain.coverage import HOUR_NS, CoverageReads, CoverageStep, StoreCoverage, aligned
from store.domain.partitioning import DAY_NS
from storenode.message.limits import NS_PER_S

MAX_STORES: Final = 16
"""Stores that are shown; a node has fewer peers."""

Fields = dict[str, Any]


async def read_hour_coverage(reads: CoverageReads, now_ns: int) -> Fields:
    """Return runs of hours with the same coverage, by store; raise as `CoverageReads.steps`.

    A run is its first hour, their number, the state, as of when, up to when it is equal, how many
    messages were missing here and there, how many of each hour were held here then, where that is
    known, and as of when it was last equal. Times are Unix seconds.
    """
    end_ns = now_ns // DAY_NS * DAY_NS + DAY_NS
    hours = list(aligned(end_ns - TIMELINE_DAYS * DAY_NS, end_ns, HOUR_NS))
    steps = await reads.steps(hours)
    stores = sorted({each.store_id for step in steps for each in step.stores})[:MAX_STORES]
    return {
        "start": hours[0][0] // NS_PER_S,
        "stores": [{"store_id": name, "runs": _runs(name, steps)} for name in stores],
    }


def _runs(store_id: str, steps: Sequence[CoverageStep]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for place, step in enumerate(steps):
        found = next((each for each in step.stores if each.store_id == store_id), None)
        if found is None:
            continue
        known = _known(step, found)
        if runs and runs[-1][0] + runs[-1][1] == place and runs[-1][2:] == known:
            runs[-1][1] += 1
        else:
            runs.append([place, 1, *known])
    return runs


def _known(step: CoverageStep, found: StoreCoverage) -> list[Any]:
    partly = step.start_ns < found.equal_until_ns < step.end_ns
    return [
        found.state.value,
        found.compared_ns // NS_PER_S,
        found.equal_until_ns // NS_PER_S if partly else 0,
        found.missing_here,
        found.missing_there,
        found.stored_here,
        found.last_equal_ns // NS_PER_S,
    ]
