"""A rate limit by epochs, as that of RLN: so many messages in each, and none is carried over.

Source: 17/WAKU2-RLN-RELAY, "Epoch length"; RELIABLE-CHANNEL-API, "Rate Limit Manager".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storenode.common.errors import ArgumentError

_NS_PER_S: Final = 10**9


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit of ``messages`` in each epoch of ``epoch_s`` seconds, counted from the Unix epoch."""

    messages: int
    epoch_s: int = 600

    def __post_init__(self) -> None:
        if self.messages < 1 or self.epoch_s < 1:
            raise ArgumentError("a rate limit needs at least one message and epochs of a second")


class Epochs:
    """The budget of the present epoch; times are Unix time in nanoseconds.

    ``used_up`` is True where messages of the present epoch may have left before: then none is left
    of it. A clock that is set back stays in its epoch.
    """

    def __init__(self, limit: RateLimit, now_ns: int, *, used_up: bool) -> None:
        self._limit = limit
        self._epoch = self._epoch_of(now_ns)
        self._sent = limit.messages if used_up else 0

    def left(self, now_ns: int) -> int:
        """Return how many messages may leave now."""
        epoch = self._epoch_of(now_ns)
        if epoch > self._epoch:
            self._epoch, self._sent = epoch, 0
        return self._limit.messages - self._sent

    def spend(self, count: int) -> None:
        """Consume a number of messages, at most what was left."""
        self._sent += count

    def wait_s(self, now_ns: int) -> float:
        """Return the seconds until the next epoch."""
        begin_ns = (self._epoch + 1) * self._limit.epoch_s * _NS_PER_S
        return max(begin_ns - now_ns, 0) / _NS_PER_S

    def _epoch_of(self, now_ns: int) -> int:
        return now_ns // (self._limit.epoch_s * _NS_PER_S)
