"""The causal history of a message that is sent now (SDS, "Send message")."""

from storenode.sds.config import ChannelConfig
from storenode.sds.envelope import Entry, size_of
from storenode.sds.gaps import Gaps
from storenode.sds.limits import MAX_HISTORY_BYTES
from storenode.sds.log import Log


def history_of(config: ChannelConfig, log: Log, gaps: Gaps, lamport: int) -> tuple[Entry, ...]:
    """What precedes a message with this clock, in log order, and what somebody lacks.

    Messages whose clock is ahead of ours do not precede it: one with the largest clock would be
    in every history from then on.
    """
    entries = log.preceding((lamport, ""), config.history_entries)
    if gaps.told:
        named = {entry.message_id for entry in entries}
        told = [log.recent(key) for key in gaps.take(config.gap_entries)]
        extra = [entry for entry in told if entry and entry.message_id not in named]
        entries = sorted(extra + entries, key=lambda entry: entry.key)
    found = [Entry(entry.message_id, entry.hint, entry.sender_id or None) for entry in entries]
    left = MAX_HISTORY_BYTES - sum(map(size_of, found))
    while left < 0:
        left += size_of(found.pop(0))
    return tuple(found)
