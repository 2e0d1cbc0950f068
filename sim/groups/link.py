"""A participant's link to its channel: broadcasts of others, and a store node over the network.

Without a store node a link remembers nothing: what its feed does not bring is gone. Where
participants follow their store, the feed is a call; else it is the broadcasts of the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sim.bridge import Life
from sim.calls import CallClosedError, End, Identity, Status
from sim.messages import Message, message_of
from sim.service import FOLLOW, HISTORY, LOOKUP, PUBLISH, QUERY, SCAN, ScanRequest
from store.domain.admission import Verdict
from store.domain.ports import CausalRequest, HistoryEntry, SdsLookup, TopicFilter
from storenode.sds.aio.transport import (
    FeedCursorRefusedError,
    FeedPage,
    Fetched,
    Link,
    Outbound,
    PublishResult,
    Route,
    TransportError,
)
from storenode.sds.codec import Entry
from storenode.sds.limits import CALL_TIMEOUT_S

if TYPE_CHECKING:
    from sim.groups.member import Member

ROUTE: Final = Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto")
MAX_RECEIVED: Final = 1_000
"""Letters that wait for a feed to be read; the oldest make room."""

_CHANNEL_ID: Final = ROUTE.channel_id.encode()
_NO_END_NS: Final = 1 << 62


class Radio:
    """The broadcasts that reach a participant while a feed is open."""

    def __init__(self) -> None:
        self._received: deque[Fetched] = deque(maxlen=MAX_RECEIVED)
        self._news = asyncio.Event()
        self._open = 0

    def hear(self, message: Fetched) -> None:
        """Keep a letter for the feed, if there is one."""
        if self._open:
            self._received.append(message)
            self._news.set()

    async def pages(self) -> AsyncGenerator[list[Fetched], None]:
        """Yield what is broadcast from now on; the first page at once."""
        self._open += 1
        try:
            while True:
                page, self._received = list(self._received), deque(maxlen=MAX_RECEIVED)
                yield page
                self._news.clear()
                if not self._received:
                    await self._news.wait()
        finally:
            self._open -= 1
            self._received.clear()


class GroupLink(Link):
    """A way of one life of a participant to its channel: a `Transport` and its `Link` of SDS.

    ``node`` is None without a store node.
    """

    name = ""

    def __init__(self, member: Member, life: Life, node: str | None) -> None:
        self.name = node or "radio"
        self._member = member
        self._world = member.world
        self._life = life
        self._node = node

    def open(self, route: Route) -> GroupLink:  # noqa: ARG002 - one channel
        """Return the link itself, which keeps no state of a connection."""
        return self

    async def close(self) -> None:
        """Close nothing: calls end with the tasks that made them."""

    async def publish(self, batch: Sequence[Outbound]) -> Sequence[PublishResult]:
        """Let the others receive a batch, and have the store take it."""
        world, member = self._world, self._member
        member.view.listens = False
        try:
            if self._life.ended:
                raise TransportError("The participant has crashed.")
            messages = [world.taken(each) for each in batch]
            world.group_judge.left(member.view, member.disk, messages)
            for message in messages:
                world.relay(member.name, message)
            if self._node is not None:
                async with self._call(PUBLISH) as end:
                    await end.send([encoded(each).encoded for each in messages])
                    answer = await _next(end, CALL_TIMEOUT_S)
                verdicts = [_result(*each) for each in zip(messages, answer, strict=True)]
            elif world.network.breaks_now():
                raise TransportError("The radio fails.")
            else:
                verdicts = [PublishResult(stored=True, hint=each.hint) for each in messages]
        except TransportError:
            world.group_judge.tried(member.view, PUBLISH)
            raise
        member.view.listens, member.view.waits_ns = True, world.timeline.now_ns
        return verdicts

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Yield the store's feed, or the broadcasts, which have no past and serve no cursor."""
        self._begin(FOLLOW)
        pages = self._of_store(cursor) if self._world.group.follow else self._of_others(cursor)
        async with aclosing(pages):
            async for page in pages:
                if self._world.group.follow:
                    self._world.group_judge.handed(self._member.view, page)
                yield page

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield all that the store has from a time on."""
        if self._node is not None:
            sent, ids = self._world.sent, self._world.database_at(self._node).ids
            self._member.scans(since_ns, [sent[each[1]] for each in ids if each[0] >= since_ns])
            request = ScanRequest(since_ns, _NO_END_NS)
            async with aclosing(self._pages(SCAN, request)) as pages:
                async for page in pages:
                    yield page

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield messages of the store by hint."""
        return self._pages(QUERY, list(hints))

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        """Return the hints of messages that the store has; a publisher has them at once."""
        task = asyncio.current_task()
        if getattr(task and task.get_coro(), "__qualname__", "") == "OutboxPublisher.run":
            stored = self._world.database_at(self._node).stored if self._node else {}
            return {hint for hint in hints if hint in stored}
        return await super().holds(hints)

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield messages of the store by ID."""
        request = SdsLookup(_CHANNEL_ID, _history_entries(entries), TopicFilter())
        return self._pages(LOOKUP, request)

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield the causal history of messages from the store."""
        self._world.counts["a causal history was asked for"] += 1
        known = frozenset(each.encode() for each in known_ids)
        heads_found = _history_entries(heads)
        request = CausalRequest(
            _CHANNEL_ID, heads_found, TopicFilter(), prefer_proven=True, known_ids=known
        )
        return self._pages(HISTORY, request)

    def _begin(self, method: str) -> None:
        if self._life.ended:
            raise TransportError("The participant has crashed.")
        self._world.group_judge.tried(self._member.view, method)

    @asynccontextmanager
    async def _call(self, method: str) -> AsyncIterator[End]:
        name = self._member.name
        assert self._node is not None
        try:
            who = Identity(name, name)
            async with self._world.network.call(name, self._node, method, who) as end:
                yield end
        except CallClosedError as error:
            refused = error.status is Status.OUT_OF_RANGE
            raise (FeedCursorRefusedError if refused else TransportError)(error.sentence) from None
        except TimeoutError:
            raise TransportError(f"{self.name} says nothing.") from None

    async def _pages(self, method: str, request: object) -> AsyncGenerator[Sequence[Fetched], None]:
        if self._node is None:
            return
        self._begin(method)
        async with self._call(method) as end:
            await end.send(request)
            while (page := await _next(end, CALL_TIMEOUT_S)) is not None:
                yield [self._world.sent[digest] for _, digest, _ in page]

    # Following

    async def _of_store(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        async with self._call(FOLLOW) as end:
            await end.send(cursor)
            timeout_s: float | None = CALL_TIMEOUT_S
            while (page := await _next(end, timeout_s)) is not None:
                messages = [self._world.sent[digest] for digest in page.hashes]
                yield FeedPage(messages, page.cursor, live=page.live)
                timeout_s = None
        raise TransportError(f"{self.name} ended the feed.")

    async def _of_others(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        if cursor:
            raise FeedCursorRefusedError("What was said before is gone.")
        async with aclosing(self._member.radio.pages()) as pages:
            async for page in pages:
                if page and self._world.network.breaks_now():
                    raise TransportError("The radio fails.")
                yield FeedPage(page, b"%d" % next(self._world.numbers), live=True)


async def _next(end: End, timeout_s: float | None) -> Any:  # noqa: ANN401 - a page of any call
    """Return the next page of a call; None after the last.

    Raises:
        CallClosedError: the call ended with an error.
        TimeoutError: nothing came in time.
    """
    async with asyncio.timeout(timeout_s):
        return await end.read()


def _result(message: Fetched, verdict: Verdict) -> PublishResult:
    if verdict is not Verdict.REJECTED:
        return PublishResult(stored=True, hint=message.hint)
    return PublishResult(stored=False, hint=b"", reason="The time is too far from the node's.")


def _history_entries(entries: Sequence[Entry]) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(each.message_id.encode(), each.hint) for each in entries)


def encoded(message: Outbound | Fetched) -> Message:
    """Return a message of the channel as nodes are given it."""
    ephemeral = message.ephemeral if isinstance(message, Outbound) else not message.hint
    topics = ROUTE.pubsub_topic, ROUTE.content_topic
    return message_of(*topics, message.payload, message.timestamp_ns, ephemeral=ephemeral)
