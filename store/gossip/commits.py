"""A batch that this node has written, as the driver of gossip takes it from the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from store.domain.ports import Source
from store.messages.record import RecordBatch


@dataclass(frozen=True, slots=True)
class OwnBatch:
    """A batch that this node wrote: ``new`` are the places of its new messages.

    ``needed``: how many stores must confirm, by hash, where any must. ``size_bytes``: in memory.
    """

    batch: RecordBatch
    new: Sequence[int]
    source: Source
    needed: Mapping[bytes, int]
    size_bytes: int
