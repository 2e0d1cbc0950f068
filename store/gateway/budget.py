"""Bytes that the gateway holds for clients: of all of them, and a share of that for each."""

from __future__ import annotations

from store.gateway.faults import Fault


class Budget:
    """So many bytes at a time, which also count in the budget that this one is a share of."""

    __slots__ = ("_limit_bytes", "_whole", "held_bytes")

    def __init__(self, limit_bytes: int, whole: Budget | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._whole = whole
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes; `give` must follow.

        Raises:
            Fault: There are too many.
        """
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise Fault("busy", "the gateway holds too many bytes: try again in a few seconds")
        if self._whole is not None:
            self._whole.take(size_bytes)
        self.held_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """They are no longer held."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "more bytes were given back than taken"
        if self._whole is not None:
            self._whole.give(size_bytes)
