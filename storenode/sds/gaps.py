"""Finding out what others miss without knowing, and telling them.

With a short causal history, a message that one participant acknowledged can be missing at another
for good: nothing that the other receives names it. But a filter is never wrong when it says no.
When a received filter lacks recent messages of our log, the next messages that we send name them
in their causal history, so that the other learns of them. What anybody's history names meanwhile
needs no telling.

A participant that learns of a message may still neither fetch nor ask for it. What its filters go
on lacking for long is therefore *offered*: sent again like an answer that it has asked for, a few
times at most.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from storenode.common.bounded import BoundedDict
from storenode.sds.bloom import Shape, holds
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_CLOCK, MAX_GAP_IDS, MAX_LACKING_IDS, MAX_LACKING_PEERS
from storenode.sds.log import OPEN_ENTRIES, Log
from storenode.sds.pages import Key, LogEntry

GAP_GRACE_MS: Final = 10_000
"""Messages younger than this may still be on their way."""

MAX_TELLINGS: Final = 3
"""How often one message is named before its absence must show again."""

MAX_OFFERS: Final = 2
"""How often one message is offered because of one participant."""

_END: Final[Key] = (MAX_CLOCK + 1, "")


@dataclass(slots=True)
class _Lacking:
    """What a filter lacks, since when, and how often it was offered."""

    since_ms: int
    offers: int = 0

    def is_due(self, now_ms: int, after_ms: int) -> bool:
        """Whether it is offered now."""
        due = self.offers < MAX_OFFERS and now_ms - self.since_ms >= after_ms * (self.offers + 1)
        self.offers += due
        return due


class Gaps:
    """IDs that somebody lacks, and how often each was told.

    ``lacking`` has them by participant too; after the longest delay of SDS-R they are offered.
    """

    __slots__ = (
        *("_below", "_offer_after_ms", "_passed", "_window"),
        *("every_ms", "lacking", "looked_ms", "told"),
    )

    def __init__(self, config: ChannelConfig) -> None:
        self.every_ms = config.gap_every_ms
        self._offer_after_ms = config.repair.request_max_ms if config.repair else 0
        self._window = config.gap_window
        self.lacking = BoundedDict[str, dict[str, _Lacking]](MAX_LACKING_PEERS)
        self.looked_ms: int | None = None
        self.told: dict[str, int] = {}
        self._below = _END
        self._passed = 0

    def is_time(self, now_ms: int) -> bool:
        """Whether a filter may be looked at again; looking takes a while."""
        return self.looked_ms is None or now_ms - self.looked_ms >= self.every_ms

    def entries(self, log: Log, shape: Shape, of_ms: int, now_ms: int) -> list[LogEntry]:
        """What to compare with a filter now: at most twice ``gap_window`` entries.

        The filter has a shape, and is of a time: the last entries from a while before it, and some
        of all that it shows, further down with each look. Those whose clock is ahead of now are
        among them: how old they are cannot be told, and to wait until they are no longer ahead
        could take years.
        """
        count = min(self._window, shape.capacity // 4)
        further = self._further(log, shape.capacity, count)
        before_ms = max(min(of_ms, now_ms) - GAP_GRACE_MS, 0)
        found = log.preceding((before_ms, ""), count)
        first = found[0].key if found else (before_ms, "")
        return found + [each for each in further if each.key < first or each.lamport > now_ms]

    def look(
        self,
        bloom_filter: bytes,
        shape: Shape,
        sender_id: str,
        entries: Iterable[LogEntry],
        now_ms: int,
    ) -> list[str]:
        """Compare a participant's filter with recent entries of the log; what to offer."""
        self.looked_ms = now_ms
        offered: list[str] = []
        lacking = self.lacking[sender_id] = self.lacking.get(sender_id, {})
        for entry in entries:
            message_id = entry.message_id
            if entry.sender_id == sender_id:
                continue
            if holds(bloom_filter, shape.probe(message_id)):
                lacking.pop(message_id, None)
                continue
            if len(self.told) < MAX_GAP_IDS:
                self.told.setdefault(message_id, 0)
            if message_id in lacking or len(lacking) < MAX_LACKING_IDS:
                lack = lacking.setdefault(message_id, _Lacking(now_ms))
                if lack.is_due(now_ms, self._offer_after_ms):
                    offered.append(message_id)
        return offered

    def behind(self) -> dict[str, int]:
        """How many messages, of those that were compared, each participant's filters lack."""
        return {sender_id: len(lacks) for sender_id, lacks in self.lacking.items() if lacks}

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

    def _further(self, log: Log, capacity: int, count: int) -> list[LogEntry]:
        if not count:
            return []
        left = _reach(log, capacity) - self._passed
        found = log.preceding(self._below, min(count, left)) if left > 0 else []
        at_end = len(found) < count
        self._below = _END if at_end else found[0].key
        self._passed = 0 if at_end else self._passed + len(found)
        return found


def _reach(log: Log, capacity: int) -> int:
    """How many entries a filter shows, if its owner has them, and a history can name.

    A filter that may have been rolled over has the newer half of its capacity for certain, in the
    order of their coming, which is not quite that of the log.
    """
    entries = len(log) + log.pruned
    return min(OPEN_ENTRIES, entries if entries <= capacity * 3 // 4 else capacity // 4)
