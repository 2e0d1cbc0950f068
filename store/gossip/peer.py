"""A joined peer: what waits to be sent to it, and what of it waits for the database.

One frame is under way to a peer at a time, so whatever comes meanwhile is gathered and goes
together. The order of kinds: what it is asked for, leaves, announcements, bodies. Bodies are read
from the database when the stream can take them, a frame at a time, first those that the peer has
asked for and then those that are pushed; when too many wait to be pushed, the others are only
announced.

Announcements are of two kinds. *Answers* name what the peer is known to hold, or should say
whether it holds; they go out at once. *News* names what it may not hold yet; no more than
`NEWS_WINDOW` of them are out until the peer reports that it holds them, or `NEWS_PATIENCE_NS` pass
without any sign of it. Where it says so of one, it has passed over those that were announced long
before: its policy refuses them, or it has them from elsewhere, as another node reports.
"""

from __future__ import annotations

from collections import OrderedDict

from store.gossip.limits import NEWS_ORDER, NEWS_PATIENCE_NS, NEWS_WINDOW, GossipLimits
from store.gossip.recent_messages import Store
from storenode.wire.storenode.v1.peer_pb2 import Inventory


class GossipPeer:
    """The queues of a stream with a peer.

    Attributes:
        bit: of the peer, in `store.gossip.recent_messages`.
        writing: a frame is under way to it.
        announced_last: the last frame was an announcement, so bodies go before the next one.
        loading: bodies to be read next, each with whether it is pushed.
        is_loading: they are being read.
        ready: bodies that were read, each with whether it is pushed.
        unanswered: news that are out, each with its number, of which ``announced`` is the newest.
        leaves: which version of the leaves it was sent last.
        leaves_received_ns: when it has sent its own.
        unstored: frames and bytes of it that wait for the database.
        rest_ns: it is not read from before.
        reading: what was last said to the driver.
    """

    def __init__(self, key: str, store: Store, bit: int) -> None:
        self.key = key
        self.store = store
        self.bit = bit
        self.writing = False
        self.announced_last = False
        self.loading: dict[bytes, bool] = {}
        self.is_loading = False
        self.ready: dict[bytes, tuple[bytes, bool]] = {}
        self.answers: OrderedDict[bytes, None] = OrderedDict()
        self.news: OrderedDict[bytes, None] = OrderedDict()
        self.pushes: OrderedDict[bytes, None] = OrderedDict()
        self.asked: OrderedDict[bytes, None] = OrderedDict()
        self.unanswered: OrderedDict[bytes, int] = OrderedDict()
        self.unanswered_ns = 0
        self.announced = 0
        self.leaves: int = -1
        self.leaves_due: Inventory | None = None
        self.leaves_received_ns: int | None = None
        self.unstored_bytes = 0
        self.unstored_frames = 0
        self.rest_ns = 0
        self.reading = True

    def answer(self, digest: bytes, limit: int) -> bool:
        """Queue an answer; return False if that drops the oldest."""
        self.news.pop(digest, None)
        return _queue(self.answers, digest, limit)

    def tell(self, digest: bytes, limit: int) -> bool:
        """Queue news; return False if that drops the oldest."""
        return digest in self.answers or _queue(self.news, digest, limit)

    def holds(self, now_ns: int, digest: bytes) -> None:
        """Note that the peer has a message."""
        for queue in (self.news, self.pushes):
            if digest in queue:
                del queue[digest]
                self.answers[digest] = None
        number = self.unanswered.pop(digest, None)
        if number is None:
            return
        self.unanswered_ns = now_ns
        while self.unanswered:
            oldest = next(iter(self.unanswered))
            if self.unanswered[oldest] >= number - NEWS_ORDER:
                return
            del self.unanswered[oldest]

    def take_announcements(self, now_ns: int, most: int) -> list[bytes]:
        """Return the next announcements."""
        taken = _take(self.answers, most)
        if self.unanswered and self._is_over(now_ns):
            self.unanswered.clear()
        if not self.unanswered:
            self.unanswered_ns = now_ns
        news = _take(self.news, min(most - len(taken), NEWS_WINDOW - len(self.unanswered)))
        for digest in news:
            self.announced += 1
            self.unanswered[digest] = self.announced
        return taken + news

    def announces(self, now_ns: int) -> bool:
        """Return True if there is something to announce."""
        if self.answers:
            return True
        return bool(self.news) and (len(self.unanswered) < NEWS_WINDOW or self._is_over(now_ns))

    @property
    def wake_ns(self) -> int | None:
        """The time at which held-back news go out without an answer; None: none are held back."""
        if self.news and len(self.unanswered) >= NEWS_WINDOW:
            return self.unanswered_ns + NEWS_PATIENCE_NS
        return None

    def _is_over(self, now_ns: int) -> bool:
        """Return True if the peer has not answered the news for too long."""
        return now_ns >= self.unanswered_ns + NEWS_PATIENCE_NS

    def gather(self, most: int) -> list[bytes]:
        """Return the bodies to read from the database next; none while some are on their way."""
        if self.is_loading or self.ready:
            return []
        for queue, is_pushed in ((self.asked, False), (self.pushes, True)):
            for digest in _take(queue, most - len(self.loading)):
                self.loading.setdefault(digest, is_pushed)
        return list(self.loading)

    def check(self, limits: GossipLimits) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len(self.answers) <= 2 * limits.queued_ids
        assert len(self.news) <= limits.queued_ids
        assert not self.answers.keys() & self.news.keys()
        assert len(self.pushes) <= limits.pushed_ids
        assert len(self.asked) <= limits.asked_ids
        assert len(self.loading) <= limits.round_ids
        assert not self.loading.keys() & self.ready.keys()
        assert len(self.unanswered) <= NEWS_WINDOW
        assert (self.unstored_bytes > 0) <= (self.unstored_frames > 0)


def _queue(queue: OrderedDict[bytes, None], digest: bytes, limit: int) -> bool:
    queue[digest] = None
    if len(queue) <= limit:
        return True
    queue.popitem(last=False)
    return False


def _take(queue: OrderedDict[bytes, None], most: int) -> list[bytes]:
    return [queue.popitem(last=False)[0] for _ in range(min(len(queue), max(0, most)))]
