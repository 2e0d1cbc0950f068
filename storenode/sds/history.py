"""The causal history of a message that is sent now (SDS, "Send message").

The last entries of the log alone hide what was said at the same time, and acknowledge only
themselves. So the *heads* are named too: the messages that no other message in the log names. All
heads together lead to the whole log, since each message leads to its causes; so a participant
that receives one message and fetches what it lacks has everything that its sender had, without any
filter.
"""

from collections.abc import Iterable
from typing import Final

from storenode.sds.codec import Entry, size_of
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_HEADS, MAX_HISTORY_BYTES
from storenode.sds.log import MessageLog

RECENT_MS: Final = 120_000
"""An entry of the log that is older need not be named besides the heads: sync messages have named
it. In a slow channel it would be a third of each line."""


class Heads:
    """IDs of the messages in the log that no other one names, oldest first."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}

    def add(self, message_id: str, history: Iterable[Entry], *, named: bool = False) -> bool:
        """Add a message of the log; ``named`` if another one names it already.

        False if there are too many heads: the oldest was forgotten.
        """
        for entry in history:
            self.ids.pop(entry.message_id, None)
        if not named:
            self.ids[message_id] = None
        if len(self.ids) <= MAX_HEADS:
            return True
        del self.ids[next(iter(self.ids))]
        return False


def history_of(
    config: ChannelConfig, log: MessageLog, named: Iterable[str], lamport: int, *, last: int
) -> tuple[Entry, ...]:
    """Return the causes of a message with this clock, in log order.

    Messages whose clock is ahead of ours do not precede it: one with the largest clock would be
    in every history from then on. What is neither named nor recent has been named by others since.
    """
    extra = (log.recent(key) for key in dict.fromkeys(named))
    chosen = {entry.message_id: entry for entry in extra if entry is not None}
    count = last if chosen else config.history_entries
    since = lamport - RECENT_MS if chosen and config.name_heads else 0
    before = (entry for entry in log.preceding((lamport, ""), count) if entry.lamport >= since)
    chosen |= {entry.message_id: entry for entry in before}
    entries = sorted(chosen.values(), key=lambda entry: entry.key)
    found = [Entry(entry.message_id, entry.hint, entry.sender_id or None) for entry in entries]
    left = MAX_HISTORY_BYTES - sum(map(size_of, found))
    while left < 0:
        left += size_of(found.pop(0))
    return tuple(found)
