"""``GetCausalHistory``: by a sweep where that can do, else by a walk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from store.domain.causal import CausalWalk
from store.domain.claims import PAUSE, Answer, Done, GiveUp, Pause, Read
from store.domain.ports import CausalRequest
from store.domain.sweep import Sweep
from storenode.sds.codec import sds_key

HASHED_PER_STEP: Final = 4_096
"""Known IDs hashed in one step, a few milliseconds."""


class CausalHistory:
    """One request; ``step`` until it answers ``Done``, then ``result`` holds what was found."""

    def __init__(self, request: CausalRequest) -> None:
        self.result: Sweep | CausalWalk = Sweep(request, frozenset())
        self._request = request
        self._known_keys: set[bytes] = set()
        self._unhashed: Iterator[bytes] | None = iter(request.known_ids)

    def step(self, answer: Answer | None = None) -> Read | Pause | Done:
        """Go on, with the answer if one was asked for."""
        if self._unhashed is not None:
            return self._hash_known(self._unhashed)
        effect = self.result.step(answer)
        if isinstance(effect, GiveUp):
            self.result = CausalWalk(self._request, frozenset(self._known_keys))
            return PAUSE
        return effect

    def _hash_known(self, unhashed: Iterator[bytes]) -> Pause:
        channel = self._request.channel_id
        portion = list(islice(unhashed, HASHED_PER_STEP))
        self._known_keys.update(sds_key(channel, known) for known in portion)
        if not portion:
            self._unhashed = None
            self.result = Sweep(self._request, frozenset(self._known_keys))
        return PAUSE
