"""The context of the node for client calls; made by ``store.runtime``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from store.db.feed import DatabaseFeed
from store.db.messages import DatabaseReader
from store.db.sds import DatabaseSdsReader
from store.domain.access import Access
from store.domain.coverage import Coverage, Interval
from store.domain.ports import Writer
from store.domain.quota import Quota
from store.domain.unread import Confirmations
from store.domain.view import Span
from store.messages.cursor import FollowCursors
from store.observe.clocks import ClockComparison
from store.observe.metrics import Metrics
from store.observe.problems import Problem
from store.serving.answers import UnsentBudget
from store.serving.arrivals import Arrivals
from store.serving.queue import FairQueue
from store.serving.tasks import Drain
from storenode.common.bounded_dict import BoundedDict
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus

MIB: Final = 1024 * 1024

MAX_REQUESTS_BYTES: Final = 256 * MIB
"""Requests that have come and are not answered: all of publishers, and large ones of others."""

MAX_FOLLOWED_BYTES: Final = 128 * MIB
"""Topics of all followers; one caller may take half of it, some 60,000 topics."""

MAX_UNSTORED_MESSAGES: Final = 65_536
"""Messages that could not be stored and may be published again when they are older than
``--max-clock-drift``."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of a node, towards peers and in its status.

    ``store_id`` names the database behind the node: two nodes on one database have the same.
    ``cluster``: whose messages it exchanges live; None with those of any.
    """

    node_id: str
    store_id: str
    version: str
    cluster: int | None = None


class Health:
    """The health of a node, as it is now.

    ``revision`` grows with each change of readiness and of the problems, not of their numbers. It
    begins with the time in milliseconds, so that none of before a restart comes again.
    ``unready``: why the node is not ready; None if it is. ``halted``: why it serves no calls.
    ``problems``: critical ones first, then the oldest.
    """

    def __init__(self, unready: str | None = None) -> None:
        self.revision = time.time_ns() // 1_000_000
        self.unready = self.halted = unready
        self.problems: Sequence[Problem] = ()
        self._changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """True if there is no obstacle."""
        return self.unready is None

    def change(
        self, unready: str | None, halted: str | None, problems: Sequence[Problem] = ()
    ) -> bool:
        """Replace the present health; return True if that is a new revision."""
        before = self._content()
        self.unready, self.halted, self.problems = unready, halted, problems
        if self._content() == before:
            return False
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def await_revision(self, since: int) -> int:
        """Wait until the revision is not ``since``, and return it."""
        while self.revision == since:
            await self._changed.wait()
        return self.revision

    def _content(self) -> object:
        names = [(each.page, each.critical, each.since_s) for each in self.problems]
        return self.unready, self.halted, names


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts of a node that client calls use, over any protocol.

    ``policy``: the rules for messages of clients, as they are now, horizon included.
    ``now_ns``: the node's clock, Unix nanoseconds. ``monotonic_ns``: one that never goes back.
    ``access``: the rules in force.
    ``state``: the status; may raise the errors of ``store.domain.ports``.
    ``probes``: the quota of calls that need no right, which take nothing from others.
    Coverage is read for one caller at a time. ``arrivals``: the requests that have not come in
    full, whose bounds a task of the node keeps to. ``requests``, ``followed``: the memory of those
    that have come, and of followed topics.
    ``unstored``: when messages that were in time and could not be stored were received, by their
    content digests.
    """

    identity: NodeIdentity
    writer: Writer
    reader: DatabaseReader
    feed: DatabaseFeed
    sds: DatabaseSdsReader
    cursors: FollowCursors
    policy: Callable[[], Policy]
    access: Callable[[], Access]
    now_ns: Callable[[], int]
    monotonic_ns: Callable[[], int]
    health: Health
    state: Callable[[], Awaitable[NodeStatus]]
    metrics: Metrics
    coverage: Coverage
    intake: Callable[[int, int], Awaitable[Sequence[Interval]]]
    missing_parents: Callable[[bytes, Sequence[Span]], Awaitable[Sequence[int]]]
    quota: Quota = field(default_factory=Quota)
    probes: Quota = field(default_factory=lambda: Quota(max_calls=4_096, max_streams=4_096))
    confirmations: Confirmations | None = None
    drain: Drain = field(default_factory=Drain)
    arrivals: Arrivals = field(default_factory=Arrivals)
    answers: UnsentBudget = field(default_factory=lambda: UnsentBudget(time.monotonic))
    coverage_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    read_only: bool = False
    clocks: ClockComparison = field(default_factory=ClockComparison)
    unstored: BoundedDict[bytes, int] = field(
        default_factory=lambda: BoundedDict(MAX_UNSTORED_MESSAGES)
    )
    requests: FairQueue = field(default_factory=lambda: FairQueue(MAX_REQUESTS_BYTES))
    followed: FairQueue = field(
        default_factory=lambda: FairQueue(
            MAX_FOLLOWED_BYTES,
            "bytes of followed topics",
            "follow fewer topics, or by pubsub topic alone",
        )
    )
