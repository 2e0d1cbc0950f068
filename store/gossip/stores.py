"""The stores that peers stand for: each has a bit in `store.gossip.recent_messages`, and a voice.

Confirmations count stores, and a store is what a peer says that it is. So that one peer cannot
confirm in many names, its *voice* is the first store that it came with: a store that is first met
through a peer with another voice speaks with that one, and what it confirms counts once with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from store.gossip.limits import MAX_OFFENDERS, MAX_STORES
from store.gossip.recent_messages import free_bit
from storenode.common.bounded_dict import BoundedDict


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
        self._voices = BoundedDict[str, str](MAX_OFFENDERS)

    def meet(self, store_id: str, peer: str, joined: set[str]) -> Store:
        """Return the store of a peer; of those that are not ``joined``, one may be forgotten."""
        store = self._stores.get(store_id)
        if store is None:
            self._make_room(joined)
            bit = free_bit(known.bit for known in self._stores.values())
            store = self._stores[store_id] = Store(store_id, bit, self._voice(peer, store_id))
        else:
            self._voice(peer, store_id)
        self._stores.move_to_end(store_id)
        return store

    def of_mask(self, mask: int) -> list[Store]:
        """Return the stores whose bits are set."""
        return [store for store in self._stores.values() if store.bit & mask] if mask else []

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len({store.bit for store in self._stores.values()}) == len(self._stores)
        assert len(self._stores) <= MAX_STORES
        assert len(self._voices) <= MAX_OFFENDERS

    def _voice(self, peer: str, store_id: str) -> str:
        return self._voices.setdefault(peer, store_id)

    def _make_room(self, joined: set[str]) -> None:
        if len(self._stores) < MAX_STORES:
            return
        gone = next(store for name, store in self._stores.items() if name not in joined)
        del self._stores[gone.id]
        self._forget(gone.bit)
