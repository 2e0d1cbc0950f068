"""Commits as the feed reports them, and the IDs of those that this node has just written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from reconcile.ids import SyncIds
from store.domain.hub import Place
from store.messages.record import RecordBatch
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES

MAX_WRITTEN_IDS: Final = 65_536
"""IDs that wait here; the oldest batches are dropped, and can be read from the database."""

_Offer = tuple[list[int], list[bytes], list[bytes], frozenset[bytes] | None]
_NOTHING: Final[_Offer] = ([], [], [], None)


@dataclass(frozen=True, slots=True)
class CommitRow:
    """One row of ``storenode.commits``; ``topics`` None: too many to be listed."""

    place: Place
    batch: int
    messages: int
    min_ts: int
    max_ts: int
    topics: tuple[bytes, ...] | None


def at_most(commits: Iterable[CommitRow], messages: int) -> list[CommitRow]:
    """The first commits with at most so many messages in all, but the first whatever it has."""
    chosen: list[CommitRow] = []
    for commit in commits:
        messages -= commit.messages
        if chosen and messages < 0:
            break
        chosen.append(commit)
    return chosen


class WrittenIds:
    """IDs of batches that this node writes, by the tokens of their commits, within a bound.

    A batch is offered right before its transaction commits, so it is here when its commit is seen.
    One that was rolled back is offered under a token that no commit ever has, and is dropped in
    time. (Its number may come again on a promoted standby.) Tokens are those of `Place`.
    """

    def __init__(self, most: int = MAX_WRITTEN_IDS) -> None:
        self._most = most
        self._offers: OrderedDict[int, _Offer] = OrderedDict()
        self._held = 0
        self.dropped = 0
        """The number of batches that were dropped before their commits were seen."""

    @property
    def tokens(self) -> frozenset[int]:
        """The tokens of the batches whose commits were not seen yet."""
        return frozenset(self._offers)

    def offer(self, token: int, batch: RecordBatch, added: frozenset[bytes] | None) -> None:
        """Hold the IDs of a batch: of those with ``added`` hashes, or of all when it is None."""
        before, *_ = self._offers.pop(token, _NOTHING)
        columns = batch.timestamps, batch.hashes, batch.content_digests
        self._offers[token] = (*columns, added)
        self._held += len(batch.hashes) - len(before)
        while self._held > self._most:
            _, (dropped, *_) = self._offers.popitem(last=False)
            self._held -= len(dropped)
            self.dropped += 1

    def take(self, token: int) -> SyncIds | None:
        """Return the IDs that a commit has added, in any order; None: they are not here."""
        timestamps, hashes, contents, added = self._offers.pop(token, _NOTHING)
        if not timestamps:
            return None
        self._held -= len(timestamps)
        joined = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH_BYTES)
        digests = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, CONTENT_DIGEST_BYTES)
        ids = SyncIds(np.array(timestamps, np.int64), joined, digests)
        if added is None:
            return ids
        return ids[np.array([digest in added for digest in hashes], np.bool_)]
