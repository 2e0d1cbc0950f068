"""Peers that call this node, and when they were last heard: also those that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S

MAX_CALLERS: Final = 64
"""Whoever was heard longest ago is forgotten: in clear text names are invented easily."""


class Callers:
    """Node IDs of callers."""

    def __init__(self) -> None:
        self._heard_ns = BoundedDict[str, int](MAX_CALLERS)

    def heard(self, node_id: str, now_ns: int) -> None:
        """A peer has begun or ended a call."""
        self._heard_ns[node_id] = now_ns

    def last_heard(self) -> Iterator[tuple[str, float]]:
        """Node IDs and Unix seconds, the oldest first."""
        for node_id, heard_ns in self._heard_ns.items():
            yield node_id, heard_ns / NS_PER_S
