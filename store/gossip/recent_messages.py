"""The newest messages that are stored here, and which peers and stores have each ("Seen").

The newest `GossipLimits.seen_ids` messages are remembered, in the order in which they became
known, each with sets of peers and stores as bits of an integer; bodies may cross. What concerns a
peer is about its stream, and forgotten with it; what concerns a store stays.

Confirmations count stores, and a store is what a peer claims to be. So that one peer cannot
confirm in many names, its *voice* is the first store that it came with: a store that is first met
through a peer with another voice speaks with that one, and what it confirms counts once with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from store.gossip.limits import MAX_OFFENDERS, MAX_PEERS, MAX_STORES
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
    """The messages by hash, the newest at the end. Forgetting a bit is linear in their number.

    ``gone``: the bits of peers that have left and are not forgotten yet.
    """

    gone = 0

    def forget_peer(self, bit: int) -> None:
        """Forget a peer whose stream has ended, together with others: some come over and over."""
        self.gone |= bit
        if self.gone.bit_count() < MAX_PEERS:
            return
        for seen in self.values():
            seen.notified &= ~self.gone
            seen.expecting &= ~self.gone
            seen.sent_to &= ~self.gone
            seen.received_from &= ~self.gone
        self.gone = 0

    def forget_store(self, bit: int) -> None:
        """Clear the bit of a store."""
        for seen in self.values():
            seen.holders &= ~bit


@dataclass(frozen=True, slots=True)
class Store:
    """A store: its ID, its bit, and the name in which its confirmations count."""

    id: str
    bit: int
    voice: str


class Stores:
    """The stores that are known, the one last met at the end.

    ``forget`` is called with the bit of a store that is forgotten, to clear it wherever it is kept.
    """

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget
        self._stores: OrderedDict[str, Store] = OrderedDict()
        self.voices = BoundedDict[str, str](MAX_OFFENDERS)

    def meet(self, store_id: str, peer: str, joined: set[str]) -> Store:
        """Return the store of a peer; of those that are not ``joined``, one may be forgotten."""
        store, voice = self._stores.get(store_id), self._voice(peer, store_id)
        if store is None:
            self._make_room(joined)
            bit = free_bit(known.bit for known in self._stores.values())
            store = self._stores[store_id] = Store(store_id, bit, voice)
        self._stores.move_to_end(store_id)
        return store

    def of_mask(self, mask: int) -> list[Store]:
        """Return the stores whose bits are set."""
        return [store for store in self._stores.values() if store.bit & mask] if mask else []

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len({store.bit for store in self._stores.values()}) == len(self._stores)
        assert len(self._stores) <= MAX_STORES
        assert len(self.voices) <= MAX_OFFENDERS

    def _voice(self, peer: str, store_id: str) -> str:
        return self.voices.setdefault(peer, store_id)

    def _make_room(self, joined: set[str]) -> None:
        if len(self._stores) < MAX_STORES:
            return
        gone = next(store for name, store in self._stores.items() if name not in joined)
        del self._stores[gone.id]
        self._forget(gone.bit)
