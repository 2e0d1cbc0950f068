"""How many topics followers name together: each is kept, and routed, as long as its call lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from store.serving.failure import busy

MAX_FOLLOWED_BYTES: Final = 128 * 1024 * 1024
"""Of all followers; one caller may take half of it, some 60,000 topics."""

ROUTE_BYTES: Final = 850
"""What a topic costs beside its name."""


class Followed:
    """Counts the topics of `Follow` calls under way, by caller."""

    def __init__(self, limit_bytes: int = MAX_FOLLOWED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._used: Counter[str] = Counter()

    @contextmanager
    def topics(self, caller: str, names: Sequence[str]) -> Iterator[None]:
        """Around a call that follows these topics.

        Raises:
            CallFailure: too many are followed already.
        """
        size = sum(ROUTE_BYTES + len(name) for name in names)
        for used, most, whose in (
            (self._used[caller], self._limit_bytes // 2, "one client"),
            (self._used.total(), self._limit_bytes, "this node"),
        ):
            if size and used + size > most:
                raise busy(
                    f"limit of {most:,} bytes for the topics of all followers of {whose} is"
                    " reached: follow fewer topics, or by pubsub topic alone"
                )
        self._used[caller] += size
        try:
            yield
        finally:
            self._used[caller] -= size
            if not self._used[caller]:
                del self._used[caller]
