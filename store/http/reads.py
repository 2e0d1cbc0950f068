"""The reads of ``/api/v1``: pages, lines of JSON, and server-sent events.

A stream holds one page: the next is read when the caller has taken the last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from functools import lru_cache
from typing import Final

from msgspec import Struct

from store.domain.ports import FollowPage, FollowRequest, SdsPage, Services
from store.domain.query import QueryInput, causal_request, plan_query, sds_lookup
from store.http import schemas
from store.http.encode import (
    hex_of,
    of_coverage,
    of_entries,
    of_frames,
    of_missing,
    of_sds,
    of_steps,
)
from store.http.exchange import Exchange
from store.http.limits import MAX_SHARED_FRAMES_BYTES, SHARED_FRAMES
from store.http.requests import digest, history, read, read_cursor, topic_filter, write_cursor
from store.http.schemas import encode
from store.messages.cursor import ScanCursor
from store.messages.frames import digests
from store.serving import reading
from store.serving.answer_coverage import Telling, telling_all, telling_scan
from store.serving.call import Call
from store.serving.methods.coverage import CoverageService
from storenode.wire.storenode.v1.store_pb2 import ContentFilter, GetCoverageRequest

LINES: Final = b"application/x-ndjson"
EVENTS: Final = b"text/event-stream"
UNBUFFERED: Final = [(b"x-accel-buffering", b"no")]
"""Proxies that hold answers back are told not to."""

_HEARTBEAT: Final = b": still here\n\n"


class Reads:
    """The handlers."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def query(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer with one page."""
        asked = read(schemas.Query, call, exchange, body)
        wanted = QueryInput(
            include_data=asked.include_data,
            pubsub_topic=asked.pubsub_topic,
            content_topics=asked.content_topics,
            time_start=asked.time_start,
            time_end=asked.time_end,
            message_hashes=[digest(each) for each in asked.hashes],
            cursor=None if asked.cursor is None else digest(asked.cursor),
            forward=asked.forward,
            limit=asked.limit,
        )
        plan = plan_query(wanted, call.client.topics, call.node.limits)
        page, known = await reading.read_page(self._services, call, plan, coverage=asked.coverage)
        found = schemas.Page(messages=list(of_entries(page.entries)))
        if page.next_cursor is not None:
            found.cursor = hex_of(page.next_cursor)
        if known is not None:
            found.coverage = of_coverage(known)
        answer = encode(found)
        await call.outlet.answered(len(answer), refusable=True)
        await exchange.respond(answer)

    async def scan(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer with all messages of a time range, as lines."""
        asked = read(schemas.Scan, call, exchange, body)
        wanted = reading.scan_request(
            topic_filter(asked, call),
            time_start=asked.time_start,
            time_end=asked.time_end,
            cursor=read_cursor(asked.cursor),
            include_data=asked.include_data,
            page_size=asked.page_size,
        )
        told = await telling_scan(call, wanted, wanted=asked.coverage)
        if wanted.time_start_ns < wanted.time_end_ns:
            async for page in self._services.reader.scan(wanted, call.outlet):
                cursor = write_cursor(ScanCursor(*page.last).encode())
                lines = [*of_frames(page.frames), schemas.Mark(cursor=cursor)]
                await _send(call, exchange, _lines(lines), LINES)
                del page, lines  # which would be held while the next ones wait
        await _tell(call, exchange, told)
        await _finish(exchange)

    async def coverage(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer with what this store and others hold by hour or day, as lines."""
        asked = read(schemas.Steps, call, exchange, body)
        wanted = GetCoverageRequest(
            filter=ContentFilter(
                pubsub_topic=asked.pubsub_topic, content_topics=asked.content_topics
            ),
            time_start=asked.time_start,
            time_end=asked.time_end,
            step=GetCoverageRequest.Step.Value(asked.step),
            channel_id=asked.channel_id,
        )
        assert call.node.coverage is not None
        pages = CoverageService(call.node.coverage).coverage(call, wanted.SerializeToString())
        async with aclosing(pages):
            async for page in pages:
                await _send(call, exchange, _lines(of_steps(page)), LINES)
        await _finish(exchange)

    async def follow(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer with messages as they are committed, as events."""
        asked = read(schemas.Follow, call, exchange, body)
        text = exchange.headers.get("last-event-id") or asked.cursor
        wanted = FollowRequest(
            topic_filter(asked, call),
            self._services.cursors.open(read_cursor(text)) if text else None,
            asked.from_beginning,
            asked.include_data,
        )
        async with (
            exchange.kept_alive(_HEARTBEAT),
            aclosing(reading.follow(self._services, call, wanted)) as pages,
        ):
            async for page in pages:
                await self._send_page(call, exchange, page)

    async def _send_page(self, call: Call, exchange: Exchange, page: FollowPage) -> None:
        cursor = write_cursor(self._services.cursors.seal(page.cursor))
        events = _events(page, cursor)
        tracing = call.node.tracing
        if tracing is None:
            await _send(call, exchange, events, EVENTS)
            return
        with tracing.delivering(digests(page.frames), live=page.live):
            await _send(call, exchange, events, EVENTS)

    async def sds_messages(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer with SDS messages by ID, as lines."""
        asked, limits = read(schemas.SdsLookup, call, exchange, body), call.node.limits
        wanted = sds_lookup(
            asked.channel_id,
            history("entries", asked.entries, limits.sds_entries),
            topic_filter(asked, call),
            limits,
            prefer_proven=asked.prefer_proven,
        )
        told = await telling_all(call, wanted=asked.coverage)
        await _send_sds(call, exchange, self._services.sds.messages(wanted, call.outlet), told)

    async def causal_history(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer with what SDS messages depend on, as lines, every parent before its children."""
        asked, limits = read(schemas.CausalHistory, call, exchange, body), call.node.limits
        wanted = causal_request(
            asked.channel_id,
            history("heads", asked.heads, limits.causal_heads),
            known_ids=asked.known_ids,
            max_messages=asked.max_messages,
            max_depth=asked.max_depth,
            topics=topic_filter(asked, call),
            limits=limits,
            prefer_proven=asked.prefer_proven,
        )
        told = await telling_all(call, wanted=asked.coverage)
        pages = self._services.sds.causal_history(wanted, call.outlet)
        await _send_sds(call, exchange, pages, told)


async def status(call: Call, exchange: Exchange, body: bytes) -> None:
    """Answer with the state of the node; what it holds is for callers that may read all of it."""
    read(schemas.NoParameters, call, exchange, body)
    found, identity = schemas.Status(ready=call.node.readiness.unready is None), call.node.identity
    if call.client.topics.unrestricted:
        found.version, found.node_id = identity.version, identity.node_id
        found.store_id = identity.store_id
        if found.ready:
            state = await call.node.state()
            found.messages = state.messages
            found.oldest_timestamp = str(state.oldest_timestamp_ns)
            found.newest_timestamp = str(state.newest_timestamp_ns)
    await exchange.respond(encode(found))


async def _send_sds(
    call: Call, exchange: Exchange, pages: AsyncIterator[SdsPage], told: Telling | None
) -> None:
    async for page in pages:
        lines: list[Struct] = [*of_sds(page)]
        lines += [schemas.Mark(missing=each) for each in of_missing(page.missing)]
        if page.truncated:
            lines.append(schemas.Mark(truncated=True))
        await _send(call, exchange, _lines(lines), LINES)
        del page, lines  # which would be held while the next ones wait
    await _tell(call, exchange, told)
    await _finish(exchange)


async def _tell(call: Call, exchange: Exchange, told: Telling | None) -> None:
    """Send the coverage as the last line of an answer, where it was asked for."""
    known = None if told is None else await told.told()
    if known is not None:
        lines = _lines([schemas.Mark(coverage=of_coverage(known))])
        await _send(call, exchange, lines, LINES)


async def _send(call: Call, exchange: Exchange, chunk: bytes, content_type: bytes) -> None:
    """Send a page; the status goes with the first, so that what fails before has its own."""
    async with call.outlet.sending(len(chunk)):
        call.check_rights()
        if not exchange.started:
            await exchange.start(200, content_type, UNBUFFERED)
        await exchange.send(chunk)


async def _finish(exchange: Exchange) -> None:
    if not exchange.started:
        await exchange.start(200, LINES, UNBUFFERED)
    await exchange.finish()


def _lines(items: Iterable[Struct]) -> bytes:
    return b"".join([encode(each) + b"\n" for each in items])


def _events(page: FollowPage, cursor: str) -> bytes:
    is_small = len(page.frames) <= MAX_SHARED_FRAMES_BYTES
    messages = (_small_messages if is_small else _messages)(page.frames)
    end = b"event: page\nid: %b\ndata: %b\n\n" % (
        cursor.encode(),
        encode(schemas.PageEnd(page.live)),
    )
    return messages + end


def _messages(frames: bytes) -> bytes:
    return b"".join([b"data: " + encode(each) + b"\n\n" for each in of_frames(frames)])


_small_messages: Final = lru_cache(SHARED_FRAMES)(_messages)
"""A new message goes to many followers at one time."""
