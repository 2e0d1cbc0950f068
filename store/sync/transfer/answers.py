"""Answers that wait until the stream takes them, in 4 bytes each where there may be many."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from storenode.message.limits import HASH_BYTES


class Answers:
    """A queue of answers: first what is stored, then refusals by name, then those in bulk."""

    def __init__(self, ids: SyncIds) -> None:
        self._ids = ids
        self._stored = array("i")
        self._named: deque[tuple[bytes, str]] = deque()
        self._refused: dict[str, array[int]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._stored) + len(self._named) + sum(map(len, self._refused.values()))

    @property
    def named(self) -> int:
        """How many refusals by name wait; whoever adds to them has a limit."""
        return len(self._named)

    def store(self, places: NDArray[np.int32]) -> None:
        """The IDs at these places are durable."""
        self._stored.frombytes(places.tobytes())

    def refuse_by_name(self, digest: bytes, reason: str) -> None:
        """Refuse one message, with a reason of its own."""
        self._named.append((digest, reason))

    def refuse(self, places: Iterable[int], reason: str) -> None:
        """Refuse many, for one of a few reasons."""
        self._refused.setdefault(reason, array("i")).extend(places)

    def take(self, most: int) -> tuple[list[bytes], list[tuple[bytes, str]]]:
        """The next ones, ``most`` at most: hashes that are stored, and refusals."""
        stored = self._hashes(self._stored, most)
        most -= len(stored)
        count = min(most, len(self._named))
        refused = [self._named.popleft() for _ in range(count)]
        for reason in list(self._refused):
            hashes = self._hashes(self._refused[reason], most - len(refused))
            refused += [(digest, reason) for digest in hashes]
            if not self._refused[reason]:
                del self._refused[reason]
        return stored, refused

    def _hashes(self, places: array[int], most: int) -> list[bytes]:
        """Remove the first places and give their hashes."""
        first = places[:most]
        del places[:most]
        joined = self._ids.hashes[np.array(first, np.int64)].tobytes()
        return [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
