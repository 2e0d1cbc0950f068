"""Whose turn it is: the nodes of a participant, tried one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from storenode.common.backoff import Backoff
from storenode.sds.aio.limits import FIRST_DELAY_S, MAX_DELAY_S
from storenode.sds.aio.transport import Link


class Rotation:
    """Stays with one link until that fails; when all have failed in a row, it is time to rest."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._at = 0
        self._failures = 0
        self._backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)

    @property
    def link(self) -> Link:
        """Whose turn it is."""
        return self._links[self._at]

    def worked(self) -> None:
        """The link serves."""
        self._failures = 0
        self._backoff.reset()

    def failed(self) -> float:
        """The link does not serve: it is the next one's turn, after so many seconds."""
        self._failures += 1
        self._at = (self._at + 1) % len(self._links)
        return 0.0 if self._failures % len(self._links) else self._backoff.take()

    def in_turn(self) -> list[Link]:
        """All links, beginning with the one whose turn it is."""
        return [*self._links[self._at :], *self._links[: self._at]]
