"""An outlet with room for every page, for tests of what makes the pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WideRoom:
    """`store.domain.ports.Room`."""

    size_bytes: int

    def fit(self, page_bytes: int, beside_bytes: int = 0) -> None:
        """Count nothing."""

    def close(self) -> None:
        """Count nothing."""


class WideOutlet:
    """`store.domain.ports.Outlet`."""

    caller = "caller"
    connection = "connection"

    async def room(self, most_bytes: int) -> WideRoom:
        """Return as much as is asked for."""
        return WideRoom(most_bytes)

    def spare_room(self, most_bytes: int) -> WideRoom:
        """Return as much as is asked for."""
        return WideRoom(most_bytes)
