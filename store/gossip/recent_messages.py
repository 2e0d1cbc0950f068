"""The newest messages that are stored here, and which peers and stores have each ("Seen").

The newest `GossipLimits.seen_ids` messages are remembered, in the order in which they became
known, each with sets of peers and stores as bits of an integer; bodies may cross. What concerns a
peer is about its stream, and forgotten with it; what concerns a store stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storenode.common.bounded_dict import BoundedDict


def free_bit(taken: Iterable[int]) -> int:
    """Return the lowest power of two that is not among some distinct ones."""
    mask = sum(taken)
    return ~mask & (mask + 1)


@dataclass(slots=True)
class SeenMessage:
    """A message that is stored here.

    Attributes:
        content: Its content digest, empty where it is not known.
        quiet: It was learnt of as one that had been held for a while, and so was not announced.
        holders: The stores that are known to hold it.
        notified: The peers to which this node has announced it.
        expecting: Those to which it has again, which should answer.
        sent_to: The peers that its body was sent to.
        received_from: Those that it came from.
    """

    content: bytes
    quiet: bool
    holders: int = 0
    notified: int = 0
    expecting: int = 0
    sent_to: int = 0
    received_from: int = 0

    def learn_content(self, content: bytes) -> None:
        """Set the content digest; nothing is known of who holds another one."""
        if content and content != self.content:
            if self.content:
                self.holders = 0
            self.content = content


class RecentMessages(BoundedDict[bytes, SeenMessage]):
    """The messages by hash, the newest at the end. Forgetting a bit is linear in their number."""

    def forget_peer(self, bit: int) -> None:
        """Forget a peer whose stream has ended."""
        for seen in self.values():
            seen.notified &= ~bit
            seen.expecting &= ~bit
            seen.sent_to &= ~bit
            seen.received_from &= ~bit

    def forget_store(self, bit: int) -> None:
        """Clear the bit of a store."""
        for seen in self.values():
            seen.holders &= ~bit
