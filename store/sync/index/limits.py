"""Bounds of the index in memory, and of the views that read from the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconcile.index import MIN_CHUNK_IDS
from storenode.message.limits import NS_PER_S

DEFAULT_RANGE_NS: Final = 3600 * NS_PER_S
"""How far back the index goes where reconciliation has no range of its own."""

INDEX_SLACK_NS: Final = 600 * NS_PER_S
"""How much further than the range: clocks differ, and a session takes its time."""

FLOOR_STEP_NS: Final = 60 * NS_PER_S
"""Floors are at multiples of it, where summaries have an edge."""

FULL_SHARE: Final = 0.9
"""An index that has no room for everything is filled to this share: there is time until it is full
again."""

LONGEST_BACKOFF_S: Final = 60.0

THREADED_SUMMED: Final = 16_384
"""A keyed sum over an index of more IDs runs beside the event loop."""

THREADED_ANSWERED: Final = 65_536
"""A payload is answered beside the event loop from an index of more IDs: fifty bytes may ask for
all of them, which takes 10 ms for so many."""

MAX_COLD_VIEWS: Final = 4
"""Transactions, each with a connection of its own, that may be open for views at a time."""

THREADED_SPANS: Final = 2_000
THREADED_IDS: Final = 20_000
"""From so many on, a step is left to a thread: it may take 10 ms of the event loop's time."""


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """Bounds that a node has by default.

    Attributes:
        entries: IDs in memory, 96 MB at most.
        chunk_ids: IDs in a full chunk of a small index.
        waiting_commits: commits that wait to be inserted; with more, the index is made anew.
        ids_at_once: IDs of commits that are inserted together.
        inline_ids: so many are inserted on the event loop's thread; more in another one.
        warm_up_ids: IDs that the warm-up reads at a time.
        patience_s: how long a view waits until the index has a commit.
        cold_patience_s: how long a view waits until it may read from the database.
        gather_s: how long commits wait for others, unless a view waits for them.
        settle_s: how often the floor follows the clock where there are no commits.
        backoff_s: the first pause after a failure.
    """

    entries: int = 2_000_000
    chunk_ids: int = MIN_CHUNK_IDS
    waiting_commits: int = 16_384
    ids_at_once: int = 16_384
    inline_ids: int = 2_000
    warm_up_ids: int = 65_536
    patience_s: float = 5.0
    cold_patience_s: float = 5.0
    gather_s: float = 0.02
    settle_s: float = 60.0
    backoff_s: float = 1.0


def index_window_ns(sync_range_ns: int | None, sync_offset_ns: int) -> int:
    """How far back the index goes for such a schedule; a range of None is everything."""
    return (sync_range_ns or DEFAULT_RANGE_NS) + sync_offset_ns + INDEX_SLACK_NS
