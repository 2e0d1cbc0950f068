"""Links of participants that record what they carry, and that lose messages on purpose.

A link stands between a participant and its node, so its records do not depend on the participant.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from chaos.checker.history import Ack, History, Published, fingerprint, message_hash
from storenode.sds.aio.transport import (
    FeedPage,
    Fetched,
    Link,
    Outbound,
    PublishResult,
    Route,
    Transport,
)
from storenode.sds.codec import MessageError, MessageKind, SdsMessage, decode_message
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage


class Way(StrEnum):
    """A call by which messages reach a participant."""

    LIVE = "live feed"
    CURSOR = "cursor"
    SCAN = "scan"
    HINT = "hint"
    ID = "ID"
    HISTORY = "causal history"
    SDS_REPAIR = "SDS-Repair"


@dataclass(slots=True)
class Traffic:
    """The messages that the participants of a run publish, and their acknowledgements.

    Attributes:
        history: has them, by hash, before they are sent.
        find_store: returns the store behind a link now, by the name of the link.
        requested: IDs that participants requested from each other.
        answers: hashes of messages that were published again for such a request (SDS-Repair).
    """

    history: History
    find_store: Callable[[str], str]
    requested: set[str] = field(default_factory=set)
    answers: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class LinkState:
    """The losses and the record of one participant's links; IDs are of others' content messages.

    Attributes:
        name: the participant's name.
        loses: returns True if the next message of another is lost.
        lost: IDs of messages that were lost.
        arrivals: the way by which each message arrived first.
    """

    name: str
    loses: Callable[[], bool] = lambda: False
    lost: set[str] = field(default_factory=set)
    arrivals: dict[str, Way] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordingTransport:
    """A transport whose links record, and lose messages of the feed."""

    inner: Transport
    state: LinkState
    traffic: Traffic

    @property
    def name(self) -> str:
        """The name of the inner transport."""
        return self.inner.name

    def open(self, route: Route) -> RecordingLink:
        """Make a link."""
        return RecordingLink(self.inner.open(route), route, self.state, self.traffic)


def _reading(call: str, way: Way) -> Callable[..., AsyncGenerator[Sequence[Fetched], None]]:
    """Return a method that makes a call of the inner link, and records what arrives."""

    async def read(
        self: RecordingLink, *arguments: object
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        async with aclosing(getattr(self.inner, call)(*arguments)) as pages:
            async for page in pages:
                self._record_arrivals(page, way)
                yield page

    return read


class RecordingLink(Link):
    """A link that records, and loses messages of the feed."""

    def __init__(self, inner: Link, route: Route, state: LinkState, traffic: Traffic) -> None:
        self.inner = inner
        self.route = route
        self.state = state
        self.traffic = traffic

    @property
    def name(self) -> str:
        """The name of the inner link."""
        return self.inner.name

    scan = _reading("scan", Way.SCAN)
    by_hint = _reading("by_hint", Way.HINT)
    by_id = _reading("by_id", Way.ID)
    closure = _reading("closure", Way.HISTORY)

    async def close(self) -> None:
        """Close the inner link."""
        await self.inner.close()

    async def publish(self, batch: Sequence[Outbound]) -> Sequence[PublishResult]:
        """Publish, and record what is sent and what a node stores."""
        self._record(batch)
        results = await self.inner.publish(batch)
        # No node stores an ephemeral message, whatever it answers.
        stored = {
            result.hint
            for outbound, result in zip(batch, results, strict=True)
            if result.stored and not outbound.ephemeral
        }
        ack = Ack(self.traffic.find_store(self.name), time.monotonic(), 0)
        self.traffic.history.acknowledge(stored, ack)
        return results

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the feed, with losses once it is live."""
        live = not cursor
        async with aclosing(self.inner.follow(cursor)) as pages:
            async for page in pages:
                way = Way.LIVE if live else Way.CURSOR
                kept = [each for each in page.messages if not (live and self._lose(each))]
                self._record_arrivals(kept, way)
                live = live or page.live
                yield replace(page, messages=kept)

    def _record(self, batch: Sequence[Outbound]) -> None:
        rows = []
        for outbound in batch:
            message = self._build(outbound)
            digest = message_hash(message, self.route.pubsub_topic)
            self._record_repair(outbound.payload, digest)
            mark = fingerprint(message, self.route.pubsub_topic)
            sent = Published(mark, outbound.timestamp_ns, self.state.name, outbound.ephemeral)
            rows.append((digest, sent))
        self.traffic.history.publish(rows)

    def _record_repair(self, payload: bytes, digest: bytes) -> None:
        with suppress(MessageError):
            requests = decode_message(payload).repair_request
            self.traffic.requested.update(each.message_id for each in requests)
        message = decode_content(payload)
        if message is not None and (
            message.sender_id != self.state.name or message.message_id in self.traffic.requested
        ):
            self.traffic.answers.add(digest)

    def _build(self, message: Outbound | Fetched) -> WakuMessage:
        is_ephemeral = isinstance(message, Outbound) and message.ephemeral
        return WakuMessage(
            payload=message.payload,
            content_topic=self.route.content_topic,
            timestamp=message.timestamp_ns,
            ephemeral=is_ephemeral or None,
        )

    def _lose(self, fetched: Fetched) -> bool:
        message = self._from_others(fetched)
        if message is None or message.message_id in self.state.arrivals or not self.state.loses():
            return False
        self.state.lost.add(message.message_id)
        return True

    def _record_arrivals(self, page: Sequence[Fetched], way: Way) -> None:
        for fetched in page:
            message = self._from_others(fetched)
            if message is not None:
                digest = message_hash(self._build(fetched), self.route.pubsub_topic)
                is_feed = way in (Way.LIVE, Way.CURSOR)
                is_answer = is_feed and digest in self.traffic.answers
                arrived = Way.SDS_REPAIR if is_answer else way
                self.state.arrivals.setdefault(message.message_id, arrived)

    def _from_others(self, fetched: Fetched) -> SdsMessage | None:
        message = decode_content(fetched.payload)
        return None if message is None or message.sender_id == self.state.name else message


def decode_content(payload: bytes) -> SdsMessage | None:
    """Return the content message in a payload; None for sync messages and anything else."""
    try:
        message = decode_message(payload)
    except MessageError:
        return None
    return message if message.kind is MessageKind.CONTENT else None
