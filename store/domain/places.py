"""The assignment of the places that callers share, and the eviction of holders.

A place is a session of reconciliation, or a stream of gossip. Its holder is *trusted* when its
identity is proven or was named by the operator, or when this node began the call itself; it is
*useful* when it lately brought or took messages. Rules.

1. ``reserved`` places are for trusted holders only. They may have the others too.
2. While there is a free place for a newcomer, it gets that. Else it may take the place of a holder
   that only waits: for the other side, or for a call that may never come.
3. A trusted holder gives way to a trusted newcomer only. One that is worth less than the newcomer
   gives way once it has waited for ``least_wait_ns``, and so does one that is worth nothing, unless
   the newcomer's address has more places than its own; any other one after ``patience_ns``. What a
   caller is worth is whether it is trusted, then whether it is useful.
4. Of those that may have to give way, the one goes that is worth the least; of equals, one of the
   address with the most places, and of those the one that has waited longest.

So untrusted callers, under however many names, keep no trusted one out, and those that only wait
do not keep each other out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FREE: Final = -1
"""A place without a holder."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A peer that calls, by its metadata.

    ``address``: the host or network that it calls from. ``trusted``: it has proven its identity,
    or the operator has named it.
    """

    node_id: str
    store_id: str
    address: str = ""
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """A holder of a place, or a caller that wants one.

    ``waits_ns``: how long a holder has only waited; None: it works.
    """

    trusted: bool
    useful: bool
    address: str
    waits_ns: int | None = None

    @property
    def worth(self) -> tuple[bool, bool]:
        """The value that rule 3 compares."""
        return self.trusted, self.useful


@dataclass(frozen=True, slots=True)
class Places:
    """The rules for one kind of place."""

    limit: int
    reserved: int
    patience_ns: int
    least_wait_ns: int = 0

    def choose(self, newcomer: Standing, holders: Sequence[Standing]) -> int | None:
        """Return the index of the holder to replace, or `FREE`; None: there is no place."""
        untrusted = sum(not each.trusted for each in holders)
        is_full = len(holders) >= self.limit
        is_share_full = not newcomer.trusted and untrusted >= self.limit - self.reserved
        if not is_full and not is_share_full:
            return FREE
        crowds = Counter(each.address for each in holders if not each.trusted)

        def gives_way(holder: Standing) -> bool:
            if holder.trusted and (is_share_full or not newcomer.trusted):
                return False
            is_fair = crowds[holder.address] >= crowds[newcomer.address]
            at_once = holder.worth < newcomer.worth or (is_fair and not any(holder.worth))
            enough_ns = self.least_wait_ns if at_once else self.patience_ns
            return holder.waits_ns is not None and holder.waits_ns >= enough_ns

        leaving = [
            (*each.worth, -crowds[each.address], -(each.waits_ns or 0), index)
            for index, each in enumerate(holders)
            if gives_way(each)
        ]
        return min(leaving)[-1] if leaving else None
