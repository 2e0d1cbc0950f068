"""Where the pages of an answer go: protocols between who reads them and who sends them."""

from __future__ import annotations

from typing import Protocol


class Room(Protocol):
    """Memory for one page of ``size_bytes``."""

    @property
    def size_bytes(self) -> int:
        """How large the page may be, unless one message alone is larger."""

    def fit(self, page_bytes: int, beside_bytes: int = 0) -> None:
        """Keep what a page of this size needs, and what the call holds beside it."""

    def close(self) -> None:
        """Give it back: the page was sent, or is not sent; once more does nothing."""


class Outlet(Protocol):
    """Where the pages of an answer go, at the pace of who reads them.

    ``caller`` and ``connection`` tell whose turn it is where calls wait. What is raised here is
    what the call is to end with: the node has no room for its reader.
    """

    @property
    def caller(self) -> str:
        """Who called."""

    @property
    def connection(self) -> str:
        """Over which connection."""

    async def room(self, most_bytes: int) -> Room:
        """Wait for room for a page of ``most_bytes`` or less."""

    def spare_room(self, most_bytes: int) -> Room | None:
        """Room for reading a page in advance; None while there is little."""
