"""When the Bloom filter goes along.

Histories tell what a participant has (`storenode.sds.history`), so the filter, most of a message,
is needed only where they do not suffice. It is sent

- with every n-th message of content;
- with the next message after something that histories do not repair: a cause was given up, so that
  what led to it is unknown; a restart; too many heads;
- with a sync message, if nobody has shown a filter for long. One is enough for all: who hears it
  searches for what it shows, and names what it lacks, which all others hear.
"""


class Showing:
    """Decides for each message; ``due`` asks for the filter with the next one.

    ``every_ms`` is the longest time without a filter in the channel, and ``last_ms`` when there
    was one, in running time.
    """

    __slots__ = ("_every", "_every_ms", "due", "last_ms")

    def __init__(self, every: int, every_ms: int, now_ms: int) -> None:
        self._every = every
        self._every_ms = every_ms
        self.due = False
        self.last_ms = now_ms

    def content(self, number: int, now_ms: int) -> bool:
        """Whether a message of content carries it, the ``number``-th message in all."""
        return self._take(now_ms, wanted=number % self._every == 0)

    def sync(self, now_ms: int, *, wanted: bool) -> bool:
        """Whether a sync message carries it, where it need not be ``wanted``."""
        return self._take(now_ms, wanted=wanted or now_ms - self.last_ms >= self._every_ms)

    def heard(self, now_ms: int) -> None:
        """Somebody has shown a filter."""
        self.last_ms = now_ms

    def _take(self, now_ms: int, *, wanted: bool) -> bool:
        if not (wanted or self.due):
            return False
        self.due, self.last_ms = False, now_ms
        return True
