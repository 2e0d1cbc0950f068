"""``Query``, ``Scan``, ``Follow``, ``GetSdsMessages`` and ``GetCausalHistory``.

Pages come from the database as spliced bytes and leave as they are. A stream holds one page: the
next one is read when the caller has taken the last.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Final

from store.domain.access import Right
from store.domain.ports import FollowRequest, PageRequest, QueryPage, SdsPage
from store.domain.query import (
    BAD_REQUEST,
    NOT_FOUND,
    OK,
    TOO_MANY_REQUESTS,
    UNAVAILABLE,
    QueryError,
    causal_request,
    plan_query,
    sds_lookup,
    time_range,
)
from store.domain.quota import CallKind
from store.messages.cursor import FollowCursor, FollowCursors, ScanCursor
from store.messages.frames import follow_page, query_failure, scan_page, sds_page
from store.serving.answers import COPIES
from store.serving.call import MAX_SMALL_REQUEST_BYTES, Call, Method, StreamMethod
from store.serving.failure import CallError, Code
from store.serving.methods.coverage import coverage, open_report, page_span
from store.serving.methods.decode import decode, decode_head, history_entries, topic_filter
from storenode.message.limits import (
    MAX_CAUSAL_HEADS,
    MAX_CAUSAL_KNOWN_IDS,
    MAX_QUERY_HASHES,
    MAX_REQUEST_BYTES,
    MAX_SDS_ENTRIES,
)
from storenode.message.varint import delimited, varint
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3 import store_pb2 as waku_store_pb2

ROUTE_BYTES: Final = 850
"""The cost of a followed topic beside its name."""

SHARED_PAGES: Final = 8
MAX_SHARED_PAGE_BYTES: Final = 64 * 1024
"""Pages of ``Follow`` that are kept as they were sent, since others are sent the same, and their
largest size."""

MAX_QUERY_REQUEST_ID_BYTES: Final = 1024
"""``StoreQueryRequest.request_id``, which is sent back as it came."""


_FIELD_1: Final = b"\x0a"
_FIELD_10_VARINT: Final = b"\x50"
_FIELD_11: Final = b"\x5a"
_FIELD_51: Final = b"\x9a\x03"
_FIELD_7420: Final = varint(7420 << 3 | 2)
_SUCCESS: Final = _FIELD_10_VARINT + varint(OK) + delimited(_FIELD_11, b"OK")

LIKELY_MESSAGE_BYTES: Final = 2 * 1024
LIKELY_PRESENCE_BYTES: Final = 64

_ALL_TIME: Final = time_range(None, None)
_TOO_MANY_FIELDS: Final = (
    "the request has too many fields: name each hash and each topic once, and leave out fields that"
    " the schema does not know"
)


def _read(
    name: str, kind: CallKind = CallKind.STREAM, size_bytes: int = MAX_SMALL_REQUEST_BYTES
) -> Method:
    return Method(name, Right.READ, kind, peers=True, timed=True, max_request_bytes=size_bytes)


QUERY: Final = _read("Query", CallKind.CALL, MAX_REQUEST_BYTES)
SCAN: Final = _read("Scan")
FOLLOW: Final = Method("Follow", Right.FOLLOW, CallKind.STREAM, peers=True, endless=True)
SDS_MESSAGES: Final = _read("GetSdsMessages", size_bytes=MAX_REQUEST_BYTES)
CAUSAL_HISTORY: Final = _read("GetCausalHistory", size_bytes=MAX_REQUEST_BYTES)
COVERAGE: Final = _read("GetCoverage")


async def query(call: Call, request: bytes) -> bytes:
    """Serve ``Query``; errors of the protocol are status codes inside the response."""
    asked, whole = decode_head(waku_store_pb2.StoreQueryRequest, request, MAX_QUERY_HASHES)
    try:
        if not whole:
            raise QueryError(BAD_REQUEST, _TOO_MANY_FIELDS)
        return await answer_query(call, asked)
    except QueryError as error:
        return query_failure(_cut(asked.request_id), error.status, error.sentence)


async def answer_query(call: Call, asked: waku_store_pb2.StoreQueryRequest) -> bytes:
    """Return the response to a query.

    Raises:
        QueryError: it cannot be served.
    """
    if (size := len(asked.request_id.encode())) > MAX_QUERY_REQUEST_ID_BYTES:
        raise QueryError(
            BAD_REQUEST, f"request_id has {size} bytes: at most {MAX_QUERY_REQUEST_ID_BYTES}"
        )
    has = asked.HasField
    wanted = plan_query(
        call.client.topics,
        include_data=asked.include_data,
        pubsub_topic=asked.pubsub_topic if has("pubsub_topic") else None,
        content_topics=asked.content_topics,
        time_start=asked.time_start if has("time_start") else None,
        time_end=asked.time_end if has("time_end") else None,
        message_hashes=asked.message_hashes,
        cursor=asked.pagination_cursor if has("pagination_cursor") else None,
        forward=asked.pagination_forward,
        limit=asked.pagination_limit,
        nwaku_rules=asked.nwaku_rules,
    )
    page, known = await _read_page(call, asked, wanted)
    return b"".join(
        (
            delimited(_FIELD_1, asked.request_id.encode()),
            _SUCCESS,
            page.entries,
            b"" if page.next_cursor is None else delimited(_FIELD_51, page.next_cursor),
            b"" if known is None else delimited(_FIELD_7420, known.SerializeToString()),
        )
    )


async def _read_page(
    call: Call, asked: waku_store_pb2.StoreQueryRequest, wanted: PageRequest
) -> tuple[QueryPage, AnswerCoverage | None]:
    """Read a page, and where it is wanted how complete it is.

    Its likely size is taken from the budget of unsent answers first.

    Raises:
        QueryError: the cursor is not known.
        CallError: there is no room.
    """
    reader = call.node.reader
    # Counted exactly when it is there.
    messages = wanted.limit if wanted.hashes is None else min(wanted.limit, len(wanted.hashes))
    each = LIKELY_MESSAGE_BYTES if wanted.include_data else LIKELY_PRESENCE_BYTES
    await call.sender.take(COPIES * each * messages)
    if asked.HasField("pagination_cursor"):
        position = await reader.position(asked.pagination_cursor, call.client.topics)
        if position is None:
            raise QueryError(
                BAD_REQUEST if asked.nwaku_rules else NOT_FOUND,
                "the cursor is not known to this node: begin again without one",
            )
        wanted = replace(wanted, after=position)
    if wanted.time_start_ns >= wanted.time_end_ns:
        return QueryPage(b"", 0, None), None
    report = None
    if asked.coverage:
        span = wanted.time_start_ns, wanted.time_end_ns
        report = await open_report(call, *span, all_kept=wanted.hashes is not None)
    page = await reader.query(wanted)
    if report is None:
        return page, None
    return page, await report.finish(page_span(wanted, page))


async def scan(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
    """Serve ``Scan``."""
    asked = decode(store_pb2.ScanRequest, request)
    topics = topic_filter(asked.filter, call.client.topics)
    after = ScanCursor.decode(asked.cursor) if asked.cursor else None
    start_ns, end_ns = time_range(
        asked.time_start if asked.HasField("time_start") else None,
        asked.time_end if asked.HasField("time_end") else None,
    )
    if start_ns >= end_ns:
        return
    at = None if after is None else (after.timestamp, after.hash)
    most, with_data = asked.page_size, asked.include_data
    wanted = PageRequest(
        topics, None, start_ns, end_ns, at, forward=True, limit=most, include_data=with_data
    )
    with_timestamps = asked.include_timestamps and not with_data
    report = None
    if asked.coverage:
        begin_ns = start_ns if after is None else max(start_ns, after.timestamp)
        report = await open_report(call, begin_ns, end_ns)
    async for page in call.node.reader.scan(wanted, call.sender):
        timestamps = page.timestamps if with_timestamps else ()
        yield scan_page(page.frames, ScanCursor(*page.last).encode(), timestamps)
        del page  # which would be held while the next one waits
    if report is not None:
        yield store_pb2.ScanPage(coverage=await report.finish()).SerializeToString()


async def follow(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
    """Serve ``Follow``; the topics are counted as long as the call follows."""
    asked = decode(store_pb2.FollowRequest, request)
    node = call.node
    wanted = FollowRequest(
        topic_filter(asked.filter, call.client.topics),
        node.cursors.open(asked.cursor) if asked.cursor else None,
        asked.from_beginning,
        asked.include_data,
    )
    size = sum(ROUTE_BYTES + len(name) for name in wanted.filter.content_topics)
    call.at_end.append(node.followed.take(call.client.name, size))
    with node.metrics.followers.track_inprogress():
        last = None
        async for page in node.feed.follow(wanted, call.sender):
            # Pages without messages are not shared: equal bytes of two cursors would show a reader
            # without rights that nothing was stored between them.
            is_commit = page.live and page.cursor != last
            is_shared = is_commit and 0 < len(page.frames) <= MAX_SHARED_PAGE_BYTES
            encode = _shared_page if is_shared else _follow_page
            last = page.cursor
            yield encode(node.cursors, last, page.frames, live=page.live)


def _follow_page(
    cursors: FollowCursors, cursor: FollowCursor, frames: bytes, *, live: bool
) -> bytes:
    return follow_page(frames, cursors.seal(cursor), live=live)


_shared_page: Final = lru_cache(SHARED_PAGES)(_follow_page)
"""The page of a commit, which goes to many followers at the same time."""


async def sds_messages(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
    """Serve ``GetSdsMessages``."""
    # An entry has three fields at most, itself included, and one that is unknown.
    lookup = decode(store_pb2.GetSdsMessagesRequest, request, 4 * MAX_SDS_ENTRIES)
    wanted = sds_lookup(
        lookup.channel_id,
        history_entries("entries", lookup.entries, MAX_SDS_ENTRIES),
        topic_filter(lookup.filter, call.client.topics),
        prefer_proven=lookup.prefer_proven,
    )
    report = await open_report(call, *_ALL_TIME, all_kept=True) if lookup.coverage else None
    async for page in call.node.sds.messages(wanted, call.sender):
        yield sds_response(page)
    if report is not None:
        yield store_pb2.SdsMessagesPage(coverage=await report.finish()).SerializeToString()


async def causal_history(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
    """Serve ``GetCausalHistory``."""
    walk = decode(store_pb2.GetCausalHistoryRequest, request, MAX_CAUSAL_KNOWN_IDS)
    wanted = causal_request(
        walk.channel_id,
        history_entries("heads", walk.heads, MAX_CAUSAL_HEADS),
        known_ids=walk.known_ids,
        max_messages=walk.max_messages,
        max_depth=walk.max_depth,
        topics=topic_filter(walk.filter, call.client.topics),
        prefer_proven=walk.prefer_proven,
    )
    report = await open_report(call, *_ALL_TIME, all_kept=True) if walk.coverage else None
    async for page in call.node.sds.causal_history(wanted, call.sender):
        yield sds_response(page)
    if report is not None:
        yield store_pb2.CausalHistoryPage(coverage=await report.finish()).SerializeToString()


STREAMS: Final[Mapping[Method, StreamMethod]] = {
    SCAN: scan,
    FOLLOW: follow,
    SDS_MESSAGES: sds_messages,
    CAUSAL_HISTORY: causal_history,
    COVERAGE: coverage,
}
"""The reads that are answered by a stream, and their handlers."""


def refuse_query(request: bytes, failure: CallError) -> bytes:
    """Return the response for what may be retried later: 429, or 503 when not ready."""
    request_id = ""
    # The node turns the call away whether or not it could have read it.
    with suppress(CallError):
        query, _ = decode_head(waku_store_pb2.StoreQueryRequest, request, 0)
        request_id = _cut(query.request_id)
    is_busy = failure.code is Code.RESOURCE_EXHAUSTED
    status = TOO_MANY_REQUESTS if is_busy else UNAVAILABLE
    return query_failure(request_id, status, failure.sentence)


def _cut(request_id: str) -> str:
    return request_id.encode()[:MAX_QUERY_REQUEST_ID_BYTES].decode(errors="ignore")


def sds_response(page: SdsPage) -> bytes:
    """Encode an ``SdsMessagesPage`` or ``CausalHistoryPage`` around the spliced entries."""
    missing = [(entry.message_id, entry.retrieval_hint) for entry in page.missing]
    return sds_page(page.messages, missing, truncated=page.truncated)
