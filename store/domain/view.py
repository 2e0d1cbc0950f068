"""What a store holds, as a reconciliation asks for it; ``store.db`` implements it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from reconcile.view import Answer, Read
from store.domain.ports import SyncId


class OpenView(Protocol):
    """What a store holds, fixed at one moment, as a reconciliation asks for it."""

    @property
    def horizon(self) -> SyncId:
        """Below it nothing is held, or kept."""
        ...

    async def answer(self, read: Read) -> Answer:
        """Answer a batch of questions about the range that was opened."""
        ...


class Reconcilable(Protocol):
    """The IDs of a store, for reconciliation."""

    def open_view(self, lower: SyncId, upper: SyncId) -> AbstractAsyncContextManager[OpenView]:
        """Fix what is held in the half-open range; everything that was acknowledged is in it."""
        ...

    @property
    def index_entries(self) -> int:
        """IDs held in memory."""
        ...
