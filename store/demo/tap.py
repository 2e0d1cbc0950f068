"""A link that loses messages and records by which call each message came.

It stands between a participant and its node, so its records do not depend on the participant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from store.demo.ledger import Ledger, hash_of
from store.demo.link_wrapper import PassingLink
from storenode.sds.aio.transport import FeedPage, Fetched, Outbound, PublishResult, Route, Transport
from storenode.sds.codec import Entry, MessageError, MessageKind, SdsMessage, decode_message


class Way(StrEnum):
    """A call by which messages come to a participant."""

    LIVE = "live feed"
    CURSOR = "cursor"
    SCAN = "scan"
    HINT = "hint"
    ID = "ID"
    HISTORY = "causal history"
    SDS_REPAIR = "SDS-Repair"


@dataclass(slots=True)
class Passage:
    """The record of one participant's link: IDs of content messages of others."""

    name: str
    loses: Callable[[], bool]
    loses_again: Collection[Way] = ()
    """The ways by which what was lost once is lost again."""
    lost: set[str] = field(default_factory=set)
    came: dict[str, Way] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tap:
    """A transport that loses messages of another one's feed."""

    inner: Transport
    passage: Passage
    ledger: Ledger

    @property
    def name(self) -> str:
        """The name of the inner transport."""
        return self.inner.name

    def open(self, route: Route) -> TapLink:
        """Make a link."""
        return TapLink(self.inner.open(route), route, self.passage, self.ledger)


@dataclass(frozen=True, slots=True)
class TapLink(PassingLink):
    """A link that loses messages of another one's feed."""

    route: Route
    passage: Passage
    ledger: Ledger

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[PublishResult], None]:
        """Publish, and record what is offered and what a node holds."""
        sent: deque[Sequence[Outbound]] = deque()

        async def entered() -> AsyncIterator[Sequence[Outbound]]:
            async for batch in batches:
                sent.append(batch)
                for each in batch:
                    self._offer(each)
                yield batch

        async with aclosing(self.inner.publish(entered())) as answers:
            async for verdicts in answers:
                # No node keeps what goes out as ephemeral, whatever it answers.
                self.ledger.acknowledged.update(
                    verdict.hint
                    for outbound, verdict in zip(sent.popleft(), verdicts, strict=True)
                    if verdict.stored and not outbound.ephemeral
                )
                yield verdicts

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the feed, with losses once it is live."""
        live = not cursor
        async with aclosing(self.inner.follow(cursor)) as pages:
            async for page in pages:
                way = Way.LIVE if live else Way.CURSOR
                arrived = self._let(page.messages, way)
                kept = [each for each in arrived if not (live and self._lose(each))]
                self._came(kept, way)
                live = live or page.live
                yield replace(page, messages=kept)

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Read all messages from a time on."""
        return self._seen(self.inner.scan(since_ns), Way.SCAN)

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Read messages by their hashes."""
        return self._seen(self.inner.by_hint(hints), Way.HINT)

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Read messages by their IDs."""
        return self._seen(self.inner.by_id(entries), Way.ID)

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Read messages with all that they depend on."""
        return self._seen(self.inner.closure(heads, known_ids), Way.HISTORY)

    async def _seen(
        self, pages: AsyncGenerator[Sequence[Fetched], None], way: Way
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        async with aclosing(pages):
            async for page in pages:
                kept = self._let(page, way)
                self._came(kept, way)
                yield kept

    def _offer(self, outbound: Outbound) -> None:
        message, digest = content_of(outbound.payload), self._digest(outbound)
        with suppress(MessageError):
            requests = decode_message(outbound.payload).repair_request
            self.ledger.asked.update(each.message_id for each in requests)
        if message is not None and self._is_answer(message):
            self.ledger.answers.add(digest)
        if not outbound.ephemeral:
            self.ledger.offered.add(digest)

    def _is_answer(self, message: SdsMessage) -> bool:
        """Return True for another's message, and for an own one that a participant asked for."""
        return message.sender_id != self.passage.name or message.message_id in self.ledger.asked

    def _digest(self, message: Outbound | Fetched) -> bytes:
        topics = self.route.pubsub_topic, self.route.content_topic
        return hash_of(topics[0], message.payload, topics[1], message.timestamp_ns)

    def _lose(self, fetched: Fetched) -> bool:
        message = self._from_others(fetched)
        if message is None or message.message_id in self.passage.came or not self.passage.loses():
            return False
        self.passage.lost.add(message.message_id)
        return True

    def _let(self, page: Sequence[Fetched], way: Way) -> Sequence[Fetched]:
        """Return a page without what is lost again."""
        if way not in self.passage.loses_again:
            return page
        return [each for each in page if not self._was_lost(each)]

    def _was_lost(self, fetched: Fetched) -> bool:
        message = self._from_others(fetched)
        return message is not None and message.message_id in self.passage.lost

    def _came(self, page: Sequence[Fetched], way: Way) -> None:
        for fetched in page:
            message = self._from_others(fetched)
            if message is not None:
                is_feed = way in (Way.LIVE, Way.CURSOR)
                is_answer = is_feed and self._digest(fetched) in self.ledger.answers
                came = Way.SDS_REPAIR if is_answer else way
                self.passage.came.setdefault(message.message_id, came)

    def _from_others(self, fetched: Fetched) -> SdsMessage | None:
        message = content_of(fetched.payload)
        return None if message is None or message.sender_id == self.passage.name else message


def content_of(payload: bytes) -> SdsMessage | None:
    """Return the content message in a payload; None for sync messages and anything else."""
    try:
        message = decode_message(payload)
    except MessageError:
        return None
    return message if message.kind is MessageKind.CONTENT else None
