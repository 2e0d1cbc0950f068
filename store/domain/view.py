"""The contents of a store as a reconciliation reads them, and their sources.

``store.sync.index`` offers `Reconcilable` over `StoredIds`, which ``store.db`` implements.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from reconcile.ids import SyncId, SyncIds
from reconcile.index import IndexView
from reconcile.lattice import LatticeSum
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, Measured, Needs, Spans, View
from store.domain.hub import CommitRow, Place

Span = tuple[int, int]
"""A half-open range of timestamps in Unix nanoseconds."""


class OpenView(Protocol):
    """The IDs of a store at one moment, as a reconciliation reads them."""

    @property
    def horizon(self) -> SyncId:
        """The lowest ID that is stored or accepted."""

    @property
    def memory_start(self) -> SyncId | None:
        """The ID from which on every ID is in memory; None: none is."""

    @property
    def places(self) -> Sequence[Place]:
        """The newest commits of what it was made from, one or two; of what was read, so far."""

    @property
    def ids(self) -> View:
        """The IDs of the range that was opened; `load` reads what they need."""

    async def load(self, needs: Needs) -> Loaded:
        """Read what ``ids`` need; raises as `lattices`."""

    async def measure(self, spans: Spans) -> Measured:
        """Return counts and fingerprints of spans; raises as `lattices`."""

    @property
    def indexed(self) -> IndexView | None:
        """The IDs in memory; from `memory_start` on all of them."""

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the lattice sums of disjoint, ascending ranges of time.

        None: not known, or so many messages are in no sum that is known that it would take too
        long.

        Raises:
            StoreUnavailableError: the database does not serve, or the view was open for too long.
            StoreBusyError: too many views read from the database already.
        """

    async def listed(self, span: Span, limit: int) -> SyncIds | None:
        """Return a range's IDs and content digests, None over a limit; raises as `lattices`."""

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view, which ascend, with their content digests; raises as `listed`."""


class Reconcilable(Protocol):
    """The IDs of a store, for reconciliation."""

    def open_view(
        self, lower: SyncId, upper: SyncId, *, recent: bool = False
    ) -> AbstractAsyncContextManager[OpenView]:
        """Open a view of a half-open range, with everything that was acknowledged.

        ``recent``: what other nodes of the store have acknowledged in the last seconds may be
        missing. Then no statement is needed where all is in memory.
        """

    @property
    def index_entries(self) -> int:
        """IDs held in memory."""


class ColdView(Protocol):
    """The contents of a store at one moment, as summaries that load what they lack."""

    @property
    def view(self) -> SummaryView:
        """The summaries."""

    @property
    def place(self) -> Place:
        """The newest commit of what is held."""

    @property
    def horizon_ns(self) -> int:
        """The store's horizon at that moment."""

    async def load(self, needs: Needs) -> Loaded:
        """Read what the view needs; raises as `OpenView.lattices`."""

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return what `OpenView.lattices` does."""

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view with their content digests, ascending."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest commit, and the horizon; ``served``: whether a given commit was not lost."""

    place: Place
    horizon_ns: int
    served: bool


class StoredIds(Protocol):
    """The IDs that the database holds. All methods raise `StoreUnavailableError` without it."""

    def open_cold(self) -> AbstractAsyncContextManager[ColdView]:
        """Open a view of everything that is stored now."""

    async def newest(self, seen: Place) -> Newest:
        """Return the newest commit now, and whether the database still has one that was seen."""

    async def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """Return the IDs that some commits have added and that are stored, in any order."""
