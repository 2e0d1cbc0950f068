"""What a causal walk will need next, as far as that can be seen from what was read already.

The walk stops at the first reference that cannot be resolved. Others behind it cannot either:
asking for all of them at once makes one round trip of many. So the look goes along the frontier
and then on through claimants that were read and not taken yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from store.domain.claims import (
    FIRST_GROUP,
    Child,
    Claim,
    Claims,
    Found,
    HintQuery,
    Reference,
    references,
)
from store.domain.ports import SyncId

MAX_SEEN_REFERENCES: Final = 4_096
"""References of one look, a few milliseconds."""

MAX_READ_KEYS: Final = 4_096
MAX_READ_HINTS: Final = 512
"""Keys and hints of one read."""

Expansion = tuple[Child | None, int, Sequence[Reference]]
"""A child (None: the request), the slot of the first reference that counts, and all of them."""


class LookAhead:
    """One look; ``keys`` and ``hints`` are what should be read."""

    def __init__(
        self, claims: Claims, outcomes: Mapping[bytes, int], taken: Sequence[Found]
    ) -> None:
        """``outcomes``: number of the message that was taken for a key, or a negative mark."""
        self.keys: dict[bytes, None] = {}
        self.hints: dict[tuple[bytes, bytes], HintQuery] = {}
        self.newest: SyncId | None = None
        self._claims = claims
        self._outcomes = outcomes
        self._taken = taken
        self._left = MAX_SEEN_REFERENCES
        self._reached: deque[Claim] = deque()
        self._met: set[bytes] = set()

    def look(self, frontier: Iterable[Expansion], ignored: frozenset[int], *, deep: bool) -> None:
        """Collect what ``frontier`` needs, and if ``deep`` what the claimants behind it need.

        References whose outcome is one of the marks in ``ignored`` need nothing.
        """
        for child, first, found in frontier:
            self._visit(child, first, found, ignored)
            if self._full():
                return
        while deep and self._reached and not self._full():
            claim = self._reached.popleft()
            self._visit(claim[:3], 0, references(claim[4], claim[5]), ignored)

    def _full(self) -> bool:
        return (
            self._left <= 0 or len(self.keys) >= MAX_READ_KEYS or len(self.hints) >= MAX_READ_HINTS
        )

    def _visit(
        self, child: Child | None, first: int, found: Sequence[Reference], ignored: frozenset[int]
    ) -> None:
        self._left -= 1 + len(found)
        outcomes, claims = self._outcomes, self._claims
        for slot in range(first, len(found)):
            key, hint = found[slot]
            outcome = outcomes.get(key)
            if outcome is not None and outcome >= 0:
                if (
                    hint is None
                    or self._taken[outcome][2] == hint
                    or claims.is_hint_read(key, hint)
                ):
                    continue
                self.hints[key, hint] = HintQuery(key, hint, child, slot)
            elif outcome in ignored:
                continue
            elif hint is None and outcome is not None and outcome <= FIRST_GROUP:
                continue  # all that it selects was taken
            elif not claims.is_read(key):
                self._want(key, child)
            elif hint is not None and claims.lacks_hint(key, hint):
                self.hints[key, hint] = HintQuery(key, hint, child, slot)
            else:
                self._reach(key)

    def _want(self, key: bytes, child: Child | None) -> None:
        self.keys[key] = None
        if child is not None:
            position = child[1], child[2]
            if self.newest is None or position > self.newest:
                self.newest = position

    def _reach(self, key: bytes) -> None:
        claim = self._claims.peek(key)
        if claim is not None and key not in self._met:
            self._met.add(key)
            self._reached.append(claim)
