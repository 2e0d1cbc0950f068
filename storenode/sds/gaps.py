"""Finding out what others miss without knowing, and telling them.

With a short causal history, a message that one participant acknowledged can be missing at another
for good: nothing that the other receives names it. But a filter is never wrong when it says no.
When a received filter lacks recent messages of our log, the next messages that we send name them
in their causal history, so that the other learns of them. What anybody's history names meanwhile
needs no telling.
"""

from collections.abc import Iterable
from typing import Final

from storenode.sds.bloom import FilterShape, holds
from storenode.sds.limits import MAX_CLOCK, MAX_GAP_IDS
from storenode.sds.log import OPEN_ENTRIES, Log
from storenode.sds.pages import Key, LogEntry

GAP_GRACE_MS: Final = 10_000
"""Messages younger than this may still be on their way."""

MAX_TELLINGS: Final = 3
"""How often one message is named before its absence must show again."""

_END: Final[Key] = (MAX_CLOCK + 1, "")


class Gaps:
    """IDs that somebody lacks, and how often each was told."""

    __slots__ = ("_below", "_passed", "every_ms", "looked_ms", "shape", "told")

    def __init__(self, shape: FilterShape, every_ms: int) -> None:
        self.shape = shape
        self.every_ms = every_ms
        self.looked_ms: int | None = None
        self.told: dict[str, int] = {}
        self._below = _END
        self._passed = 0

    def is_time(self, now_ms: int) -> bool:
        """Whether a filter may be looked at again; looking takes a while."""
        return self.looked_ms is None or now_ms - self.looked_ms >= self.every_ms

    def entries(self, log: Log, of_ms: int, now_ms: int, count: int) -> list[LogEntry]:
        """What to compare with a filter of a time now: at most twice ``count`` entries.

        The last from a while before it, and some of all that a filter shows, further down with
        each look. Those whose clock is ahead of now are among them: how old they are cannot be
        told, and to wait until they are no longer ahead could take years.
        """
        further = self._further(log, count)
        before_ms = max(min(of_ms, now_ms) - GAP_GRACE_MS, 0)
        found = log.preceding((before_ms, ""), count)
        first = found[0].key if found else (before_ms, "")
        return found + [each for each in further if each.key < first or each.lamport > now_ms]

    def look(
        self, bloom_filter: bytes, sender_id: str, entries: Iterable[LogEntry], now_ms: int
    ) -> None:
        """Compare a participant's filter with recent entries of the log."""
        self.looked_ms = now_ms
        for entry in entries:
            if entry.sender_id == sender_id or entry.message_id in self.told:
                continue
            if len(self.told) >= MAX_GAP_IDS:
                return
            if not holds(bloom_filter, self.shape.probe(entry.message_id)):
                self.told[entry.message_id] = 0

    def named(self, message_id: str) -> None:
        """Somebody's history names a message."""
        self.told.pop(message_id, None)

    def take(self, count: int) -> list[str]:
        """IDs for the causal history of the message that is sent now."""
        chosen = list(self.told)[:count]
        for message_id in chosen:
            times = self.told.pop(message_id) + 1
            if times < MAX_TELLINGS:
                self.told[message_id] = times
        return chosen

    def _further(self, log: Log, count: int) -> list[LogEntry]:
        left = self._reach(log) - self._passed
        found = log.preceding(self._below, min(count, left)) if left > 0 else []
        at_end = len(found) < count
        self._below = _END if at_end else found[0].key
        self._passed = 0 if at_end else self._passed + len(found)
        return found

    def _reach(self, log: Log) -> int:
        """How many entries a filter shows, if its owner has them, and a history can name.

        A filter that may have been rolled over has the newer half of its capacity for certain,
        in the order of their coming, which is not quite that of the log.
        """
        capacity, entries = self.shape.capacity, len(log) + log.pruned
        return min(OPEN_ENTRIES, entries if entries <= capacity * 3 // 4 else capacity // 4)
