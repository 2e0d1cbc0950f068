"""Messages that passed a moment ago, so that none is taken or sent twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from store.gateway.limits import MAX_SEEN_MESSAGES

SEEN_S: Final = 120
"""How long a message is remembered. Its timestamp may differ from now by 20 s, so that it may come
again within 40 s."""


class SeenMessages:
    """The messages of the last `SEEN_S` seconds, by any key, at most `MAX_SEEN_MESSAGES` of them.

    Times are seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._since_s: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        """Count the messages."""
        return len(self._since_s)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if a message is remembered."""
        return key in self._since_s

    def add(self, key: Hashable, now_s: float) -> bool:
        """Remember a message; False if it is remembered already."""
        if key in self._since_s:
            return False
        self._since_s[key] = now_s
        if len(self._since_s) > MAX_SEEN_MESSAGES:
            self._since_s.popitem(last=False)
        return True

    def forget(self, now_s: float) -> None:
        """Forget the messages that are too old."""
        while self._since_s and next(iter(self._since_s.values())) < now_s - SEEN_S:
            self._since_s.popitem(last=False)
