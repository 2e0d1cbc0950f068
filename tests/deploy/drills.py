"""Drills: how soon the page and the alerts report a fault, and how soon after its end they stop.

``python -m tests.deploy.drills`` prints the table of docs/reference/alerts.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from store.observe.problems import Problems
from tests.support.faults import FAULTS, WELL_MIN, Fault, healthy, serve

PAGE_INTERVAL_S: Final = 5.0
"""The interval at which an operator reads the page or checks by the command."""

SCRAPE_INTERVAL_S: Final = 15.0
"""The interval of deploy/prometheus, at which rules are evaluated too."""

DRILLED: Final = (
    "the database is away",
    "nothing commits",
    "nothing is stored, since the disk is full",
    "the database gives no further connection",
    "a standby is away",
    "publishing fails",
    "callers give up while nothing is committed",
    "this node's clock is wrong, and publishes are rejected",
    "the clock of one peer is wrong",
    "the clock jumped, and retention is paused",
    "maintenance fails",
    "a peer is away",
    "calls fail with an internal error",
    "the token file is broken",
)


@dataclass
class _Observer:
    """An evaluation of the problems every so often, which is seen ``delay_s`` later."""

    problems: Problems
    interval_s: float
    delay_s: float = 0.0
    sentence: str = ""
    seen_s: list[tuple[float, bool]] = field(default_factory=list)

    def look(self, now_s: float, page: str) -> None:
        if now_s % self.interval_s:
            return
        found = [each for each in self.problems.evaluate() if each.page == page]
        self.seen_s.append((now_s + self.delay_s, bool(found)))
        if found and not self.sentence:
            self.sentence = found[0].sentence

    def first_s(self, since_s: float, *, present: bool) -> float:
        """Return how long after a time the problem is first present, or absent."""
        looks = ((at_s, seen) for at_s, seen in self.seen_s if at_s - self.delay_s > since_s)
        return next(at_s for at_s, seen in looks if seen is present) - since_s


def play(fault: Fault) -> tuple[str, float, float, float, float]:
    """Return what a fault that is played step by step shows.

    Returns:
        The sentence, when the page and when the alert has it, in seconds since the beginning, and
        when either has lost it, since the end.
    """
    now_s = [0.0]
    clock = partial(now_s.__getitem__, 0)
    metrics = healthy(0.0)
    page, alert = (
        _Observer(Problems(metrics, clock, clock), interval_s, delay_s)
        for interval_s, delay_s in ((PAGE_INTERVAL_S, 0.0), (SCRAPE_INTERVAL_S, SCRAPE_INTERVAL_S))
    )
    begin_s = 60.0 * WELL_MIN
    end_s = begin_s + 60.0 * fault.minutes
    while now_s[0] < end_s + 60.0 * (fault.settle_min + 1):
        now_s[0] += PAGE_INTERVAL_S
        serve(metrics)
        for peer in ("a:1", "b:1"):
            metrics.peer_silent_since.labels(peer).set(now_s[0])
        for each in (page, alert):
            each.look(now_s[0], fault.pages[0])
        # Right after a look, which is the worst case.
        if begin_s <= now_s[0] < end_s:
            fault.begin(metrics, now_s[0])
        if now_s[0] == end_s:
            fault.end(metrics, now_s[0])
    begun = [each.first_s(begin_s, present=True) for each in (page, alert)]
    over = [each.first_s(end_s, present=False) for each in (page, alert)]
    return page.sentence, begun[0], begun[1], over[0], over[1]


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| fault | problem | page, `--check` | alert | page, `--check` over | alert over |"
    yield "|---|---|---|---|---|---|"
    for fault in (each for name in DRILLED for each in FAULTS if each.name == name):
        sentence, *seconds = play(fault)
        cells = " | ".join(f"{each:,.0f} s" for each in seconds)
        yield f"| {fault.name} | *{fault.pages[0]}*: {sentence} | {cells} |"


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201 - its purpose
