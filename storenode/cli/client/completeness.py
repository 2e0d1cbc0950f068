"""`--coverage`: one sentence about how complete the answer for a range of time is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storenode.cli.client.text import format_time, safe
from storenode.cli.errors import USAGE, CliError
from storenode.client.node import content_filter
from storenode.client.types import StoreCoverage

if TYPE_CHECKING:
    from storenode.client.node import NodeClient
    from storenode.client.types import CoverageStep

_MAX_BY_HOUR_NS: Final = 31 * 24 * 3_600_000_000_000
_MAX_NAMED: Final = 3


@dataclass(slots=True)
class _Store:
    """Another store: equal without a break up to ``until_ns``; what differed in all steps."""

    until_ns: int
    compared_ns: int = 0
    keyed: bool = True
    differing: int = 0
    differed_ns: int = 0

    def add(self, step: CoverageStep, found: StoreCoverage) -> None:
        if found.state == StoreCoverage.DIFFERS:
            self.differing += 1
            self.differed_ns = min(self.differed_ns or found.compared_at, found.compared_at)
        elif found.equal_until and self.until_ns == step.time_start:
            self.until_ns = found.equal_until
            self.compared_ns = min(self.compared_ns or found.compared_at, found.compared_at)
            self.keyed = self.keyed and found.keyed


async def completeness(
    client: NodeClient,
    *,
    pubsub_topic: str | None,
    content_topics: tuple[str, ...],
    time_start: int | None,
    time_end: int | None,
) -> str:
    """Say how complete the node is over a range; ask before the answer that it is about.

    Asked afterwards, it would count messages that a session brought after the answer.

    Raises:
        CliError: the range has no start.
    """
    if time_start is None:
        raise CliError(USAGE, "--coverage needs --from: say from when on the answer is to be.")
    end_ns = time.time_ns() if time_end is None else time_end
    pages = client.coverage(
        filter=content_filter(pubsub_topic, content_topics),
        time_start=time_start,
        time_end=time_end,
        by_day=end_ns - time_start > _MAX_BY_HOUR_NS,
    )
    steps: list[CoverageStep] = []
    async with aclosing(pages):
        async for page in pages:
            steps.extend(page.steps)
    return sentence(steps, end_ns)


def sentence(steps: Iterable[CoverageStep], end_ns: int) -> str:
    """What ascending steps say together about the time up to ``end_ns``."""
    steps = list(steps)
    if not steps:
        return "Coverage: none, as this time has not come yet."
    stores: dict[str, _Store] = {}
    for step in steps:
        for found in step.stores:
            stores.setdefault(found.store_id, _Store(steps[0].time_start)).add(step, found)
    differing = {name: each for name, each in stores.items() if each.differing}
    if differing:
        as_of = format_time(min(each.differed_ns for each in differing.values()))
        most = max(each.differing for each in differing.values())
        return (
            f"Coverage: may be incomplete: differs from {_names(differing)} as of {as_of}, "
            f"in up to {most:,} of {len(steps):,} steps; see storenode coverage."
        )
    if any(step.before_horizon for step in steps):
        return "Coverage: may be incomplete: the time begins before the horizon of this store."
    return _confirmed(stores, end_ns)


def _confirmed(stores: dict[str, _Store], end_ns: int) -> str:
    begun = {name: each for name, each in stores.items() if each.compared_ns}
    if not begun:
        return "Coverage: not confirmed by any other store from the start of this time on."
    until_ns = min(max(each.until_ns for each in begun.values()), end_ns)
    agreeing = {name: each for name, each in begun.items() if each.until_ns >= until_ns}
    as_of = format_time(min(each.compared_ns for each in agreeing.values()))
    method = "" if all(each.keyed for each in agreeing.values()) else ", by XOR"
    known = f"as far as {_names(agreeing)} knew as of {as_of}{method}"
    if until_ns >= end_ns:
        return f"Coverage: complete {known}."
    return f"Coverage: complete up to {format_time(until_ns)} {known}; not confirmed after that."


def _names(stores: dict[str, _Store]) -> str:
    names = [safe(name) for name in sorted(stores)]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    number = "1 store" if len(names) == 1 else f"{len(names):,} stores"
    return f"{number} ({', '.join(names[:_MAX_NAMED])}{more})"
