"""Finding out what others miss without knowing, and telling them.

With a short causal history, a message that one participant acknowledged can be missing at another
for good: nothing that the other receives names it. But a filter is never wrong when it says no.
When a received filter lacks recent messages of our log, the next messages that we send name them
in their causal history, so that the other learns of them. What anybody's history names meanwhile
needs no telling.
"""

from collections.abc import Iterable
from typing import Final

from sds.bloom import FilterShape, holds
from sds.limits import MAX_CLOCK, MAX_GAP_IDS
from sds.log import Log
from sds.pages import Key, LogEntry

GAP_GRACE_MS: Final = 10_000
"""Messages younger than this may still be on their way."""

MAX_TELLINGS: Final = 3
"""How often one message is named before its absence must show again."""


_END: Final[Key] = (MAX_CLOCK + 1, "")


def comparable(log: Log, before_ms: int, now_ms: int, count: int) -> list[LogEntry]:
    """The last entries before a time, and those whose clock is ahead of now: at most `count` each.

    How old the latter are cannot be told, and histories do not name them: to wait until they are
    no longer ahead could take years.
    """
    entries = log.preceding((max(before_ms, 0), ""), count)
    newest = log.preceding(_END, 1)
    if newest and newest[0].lamport > now_ms:
        entries += [entry for entry in log.preceding(_END, count) if entry.lamport > now_ms]
    return entries


class Gaps:
    """IDs that somebody lacks, and how often each was told."""

    __slots__ = ("every_ms", "looked_ms", "shape", "told")

    def __init__(self, shape: FilterShape, every_ms: int) -> None:
        self.shape = shape
        self.every_ms = every_ms
        self.looked_ms: int | None = None
        self.told: dict[str, int] = {}

    def is_time(self, now_ms: int) -> bool:
        """Whether a filter may be looked at again; looking takes a while."""
        return self.looked_ms is None or now_ms - self.looked_ms >= self.every_ms

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
