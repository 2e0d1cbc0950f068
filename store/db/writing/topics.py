"""Which topic keys the database can name already, remembered within a bound."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from store.db.schema.partitions import PartitionMap
from store.messages.record import RecordBatch

MAX_REMEMBERED: Final = 65_536

TopicRow = tuple[bytes, int, str, str]
"""Topic key, lower bound of the coarse partition (ns, at least 0), pubsub and content topic."""


class KnownTopics:
    """Topic keys known to be in ``storenode.topics``, per coarse partition.

    Forgets everything when the ``era`` changes, which is any value that stands for the partitions
    (one may have been dropped and made again) and for the server (a promoted one may have lost the
    newest names); and the older half when `MAX_REMEMBERED` is passed. A topic that is named twice
    costs one insert that does nothing.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], None] = {}
        self._era: Hashable = None

    def unnamed(
        self, batch: RecordBatch, partitions: PartitionMap, era: Hashable = None
    ) -> list[TopicRow]:
        """Rows that must be written before the batch."""
        if self._era != era:
            self._known.clear()
            self._era = era
        low = partitions.coarse_lower(min(batch.timestamps))
        if low == partitions.coarse_lower(max(batch.timestamps)):
            used = {(low, key) for key in batch.topics}
        else:
            lowers = map(partitions.coarse_lower, batch.timestamps)
            used = set(zip(lowers, batch.topic_keys, strict=True))
        return [(key, lower, *batch.topics[key]) for lower, key in used - self._known.keys()]

    def remember(self, rows: Sequence[TopicRow], era: Hashable = None) -> None:
        """Note rows that were written in an era, unless it is over."""
        if self._era == era:
            self._known.update(((lower, key), None) for key, lower, _, _ in rows)
        if len(self._known) > MAX_REMEMBERED:
            for entry in list(self._known)[: len(self._known) // 2]:
                del self._known[entry]
