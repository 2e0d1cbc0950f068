"""Which topic keys the database can name already, remembered within a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from message.record import RecordBatch
from store.db.partitions import PartitionMap

MAX_REMEMBERED: Final = 65_536

TopicRow = tuple[bytes, int, str, str]
"""Topic key, lower bound of the coarse partition (ns, at least 0), pubsub and content topic."""


class KnownTopics:
    """Topic keys known to be in ``storenode.topics``, per coarse partition.

    Forgets everything when partitions change (one may have been dropped and made again) and the
    older half when `MAX_REMEMBERED` is passed: a topic that is named twice costs one insert that
    does nothing.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], None] = {}
        self._generation = -1

    def unnamed(self, batch: RecordBatch, partitions: PartitionMap) -> list[TopicRow]:
        """Rows that must be written before the batch."""
        if self._generation != partitions.generation:
            self._known.clear()
            self._generation = partitions.generation
        return [
            (key, lower, *batch.topics[key])
            for lower, key in self._used(batch, partitions)
            if (lower, key) not in self._known
        ]

    def remember(self, rows: Sequence[TopicRow], partitions: PartitionMap) -> None:
        """Note rows that were written."""
        if self._generation == partitions.generation:
            self._known.update(((lower, key), None) for key, lower, _, _ in rows)
        if len(self._known) > MAX_REMEMBERED:
            for entry in list(self._known)[: len(self._known) // 2]:
                del self._known[entry]

    @staticmethod
    def _used(batch: RecordBatch, partitions: PartitionMap) -> set[tuple[int, bytes]]:
        low = partitions.coarse_lower(min(batch.timestamps))
        if low == partitions.coarse_lower(max(batch.timestamps)):
            return {(low, key) for key in batch.topics}
        lowers = map(partitions.coarse_lower, batch.timestamps)
        return set(zip(lowers, batch.topic_keys, strict=True))
