"""When this node last took in a message of each pubsub topic.

Hours without a message are those of all topics together: they do not show one shard that is silent
among others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from store.messages.record import RecordBatch
from store.runtime.limits import MAX_STATUS_TOPICS
from storenode.common.bounded import BoundedDict


class HeardTopics:
    """Of the pubsub topics that were heard last, `MAX_STATUS_TOPICS` of them."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._last_s = BoundedDict[str, float](MAX_STATUS_TOPICS)

    def take(self, batch: RecordBatch) -> None:
        """Note a batch that was stored, or that was held already."""
        now_s = self._now_s()
        for pubsub, _ in batch.topics.values():
            self._last_s[pubsub] = now_s

    def fields(self, held: Iterable[str]) -> dict[str, Any]:
        """For the status page: the topics ``held`` and heard, silent ones first. Unix seconds."""
        last_s = {**dict.fromkeys(held, 0.0), **self._last_s}
        ascending = sorted(last_s.items(), key=lambda each: (each[1], each[0]))
        return {
            "since": int(self._since_s),
            "last": [[name, int(when)] for name, when in ascending[:MAX_STATUS_TOPICS]],
        }
