"""The IDs of a database as reconciliation reads them: protocols that ``store.db`` implements.

``store.sync.index.hot`` opens views of them, with the newest IDs in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from reconcile.ids import SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, Needs
from store.domain.hub import CommitRow, Place

Span = tuple[int, int]
"""A half-open range of timestamps in Unix nanoseconds."""


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
        """Read what the view needs; raises as `lattices`."""

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the lattice sums of disjoint, ascending ranges of time.

        None: not known, or too many messages are in no known sum to compute it in time.

        Raises:
            StoreUnavailableError: the database does not serve, or the view was open for too long.
        """

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
