"""A link that loses messages, and sees what comes by which way.

It stands between a participant and its node, so what it says is not the participant's own word:
what was lost on the link, and by which call each message came at last.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from storenode.sds.aio.passing import PassingLink
from storenode.sds.aio.transport import FeedPage, Fetched, Outbound, Route, Transport, Verdict
from storenode.sds.codec import Entry, Kind, MessageError, SdsMessage, decode_message

if TYPE_CHECKING:
    from store.demo.ledger import Ledger


class Way(StrEnum):
    """By which call a message came to a participant."""

    LIVE = "live feed"
    CURSOR = "cursor"
    SCAN = "scan"
    HINT = "hint"
    ID = "ID"
    HISTORY = "causal history"
    SDS_REPAIR = "SDS-Repair"


@dataclass(slots=True)
class Passage:
    """What passed one participant's link: IDs of content of others."""

    name: str
    loses: Callable[[], bool]
    loses_again: Collection[Way] = ()
    """The ways by which what was lost once is lost again."""
    said: dict[str, bytes] = field(default_factory=dict)
    """The hashes of its own messages, by ID, as a node holds them."""
    lost: set[str] = field(default_factory=set)
    came: dict[str, Way] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tap:
    """Another transport, less what the passage loses of its feed."""

    inner: Transport
    passage: Passage
    ledger: Ledger

    @property
    def name(self) -> str:
        """That of the other."""
        return self.inner.name

    def open(self, route: Route) -> TapLink:
        """Make a link."""
        return TapLink(self.inner.open(route), route, self.passage, self.ledger)


@dataclass(frozen=True, slots=True)
class TapLink(PassingLink):
    """One channel of it."""

    route: Route
    passage: Passage
    ledger: Ledger

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[Verdict], None]:
        """Publish, and enter what is offered and what a node holds."""

        async def entered() -> AsyncIterator[Sequence[Outbound]]:
            async for batch in batches:
                for each in batch:
                    self._offer(each)
                yield batch

        async with aclosing(self.inner.publish(entered())) as answers:
            async for verdicts in answers:
                self.ledger.acknowledged.update(each.hint for each in verdicts if each.held)
                yield verdicts

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """The feed, with losses from when it is live on."""
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
        """All from a time on."""
        return self._seen(self.inner.scan(since_ns), Way.SCAN)

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Some by their hashes."""
        return self._seen(self.inner.by_hint(hints), Way.HINT)

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Some by their IDs."""
        return self._seen(self.inner.by_id(entries), Way.ID)

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Some with all that they depend on."""
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
        if outbound.ephemeral:
            return
        digest = self.ledger.offer(self.route, outbound.payload, outbound.timestamp_ns)
        with suppress(MessageError):
            asked = decode_message(outbound.payload).repair_request
            self.ledger.asked.update(each.message_id for each in asked)
        message = content_of(outbound.payload)
        if message is not None and self._answers(message, digest):
            self.ledger.answers.add(digest)

    def _answers(self, message: SdsMessage, digest: bytes) -> bool:
        """Whether this is the answer to a request for repair: a node holds the message already."""
        said = self.passage.said
        first = said.get(message.message_id)
        if first not in self.ledger.acknowledged:
            said[message.message_id] = digest
        again = first == digest and message.message_id in self.ledger.asked
        return again or message.sender_id != self.passage.name or said[message.message_id] != digest

    def _lose(self, fetched: Fetched) -> bool:
        message = self._from_others(fetched)
        if message is None or message.message_id in self.passage.came or not self.passage.loses():
            return False
        self.passage.lost.add(message.message_id)
        return True

    def _let(self, page: Sequence[Fetched], way: Way) -> Sequence[Fetched]:
        """A page without what is lost again."""
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
                came = Way.SDS_REPAIR if fetched.hint in self.ledger.answers else way
                self.passage.came.setdefault(message.message_id, came)

    def _from_others(self, fetched: Fetched) -> SdsMessage | None:
        message = content_of(fetched.payload)
        return None if message is None or message.sender_id == self.passage.name else message


def content_of(payload: bytes) -> SdsMessage | None:
    """A message of a channel that has content; None for sync messages and for anything else."""
    try:
        message = decode_message(payload)
    except MessageError:
        return None
    return message if message.kind is Kind.CONTENT else None
