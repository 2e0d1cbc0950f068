"""``Query``, ``Scan``, ``Follow``, ``GetSdsMessages`` and ``GetCausalHistory``.

Pages come from the database as spliced bytes and leave as they are. A stream holds one page: the
next one is read when the caller has taken the last.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import Final

from store.domain.ports import FollowRequest, Services
from store.domain.query import (
    BAD_REQUEST,
    TOO_MANY_REQUESTS,
    UNAVAILABLE,
    QueryError,
    causal_request,
    plan_query,
    sds_lookup,
)
from store.messages.cursor import ScanCursor
from store.messages.frames import digests, follow_page, query_response, scan_page
from store.serving import reading
from store.serving.answer_coverage import open_full_report, open_scan_report
from store.serving.call import Call
from store.serving.failure import CallFailure
from store.serving.limits import (
    COUNTED_REQUEST_BYTES,
    MAX_LARGE_READ_BYTES,
    MAX_QUERY_REQUEST_ID_BYTES,
)
from store.serving.methods.decode import (
    decode,
    decode_head,
    decode_read,
    history_entries,
    query_input,
    topic_filter,
)
from store.serving.methods.encode import coverage_message, query_page, sds_response
from store.serving.window import Budget
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3 import store_pb2 as waku_store_pb2

_TOO_MANY_FIELDS: Final = (
    "the request has too many fields: name each hash and each topic once, and leave out fields that"
    " the schema does not know"
)


class LargeReads:
    """Room for large requests of reads, which are held as long as the reads take."""

    def __init__(self) -> None:
        self._budget = Budget(MAX_LARGE_READ_BYTES, "large requests")

    def room(self, size_bytes: int) -> AbstractContextManager[None]:
        """Around a read whose request has this size.

        Raises:
            CallFailure: on entry, there is no room.
        """
        return (
            self._budget.room(size_bytes) if size_bytes > COUNTED_REQUEST_BYTES else nullcontext()
        )


class Reads:
    """The handlers of the reads."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def query(self, call: Call, request: bytes) -> bytes:
        """Answer ``Query``; errors of the protocol are status codes inside the response."""
        limits = call.node.limits
        kind = waku_store_pb2.StoreQueryRequest
        query, whole = decode_head(kind, request, limits.query_hashes)
        try:
            if (size := len(query.request_id.encode())) > MAX_QUERY_REQUEST_ID_BYTES:
                raise QueryError(
                    BAD_REQUEST,
                    f"request_id has {size} bytes: at most {MAX_QUERY_REQUEST_ID_BYTES}",
                )
            plan = plan_query(query_input(query), call.client.topics, limits)
            if not whole:
                raise QueryError(BAD_REQUEST, _TOO_MANY_FIELDS)
            page, known = await reading.read_page(
                self._services, call, plan, coverage=query.coverage
            )
            return query_page(query.request_id, page, known)
        except QueryError as error:
            return query_response(_cut(query.request_id), error.status, error.sentence)

    async def scan(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        """Answer ``Scan``."""
        scan = decode(store_pb2.ScanRequest, request)
        wanted = reading.scan_request(
            topic_filter(scan.filter, call.client.topics, call.node.limits),
            time_start=scan.time_start if scan.HasField("time_start") else None,
            time_end=scan.time_end if scan.HasField("time_end") else None,
            cursor=scan.cursor,
            include_data=scan.include_data,
            page_size=scan.page_size,
        )
        if wanted.time_start_ns >= wanted.time_end_ns:
            return
        report = await open_scan_report(call, wanted, wanted=scan.coverage)
        async for page in self._services.reader.scan(wanted, call.outlet):
            yield scan_page(page.frames, ScanCursor(*page.last).encode())
            del page  # which would be held while the next one waits
        if report is not None:
            said = coverage_message(await report.finish())
            yield store_pb2.ScanPage(coverage=said).SerializeToString()

    async def follow(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        """Answer ``Follow``."""
        follow = decode(store_pb2.FollowRequest, request)
        cursors = self._services.cursors
        wanted = FollowRequest(
            topic_filter(follow.filter, call.client.topics, call.node.limits),
            cursors.open(follow.cursor) if follow.cursor else None,
            follow.from_beginning,
            follow.include_data,
        )
        tracing = call.node.tracing
        async with aclosing(reading.follow(self._services, call, wanted)) as pages:
            async for page in pages:
                response = follow_page(page.frames, cursors.seal(page.cursor), live=page.live)
                if tracing is None:
                    yield response
                    continue
                with tracing.delivering(digests(page.frames), live=page.live):
                    yield response

    async def sds_messages(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        """Answer ``GetSdsMessages``."""
        limits = call.node.limits
        # An entry has three fields at most, itself included, and one that nobody knows.
        lookup = decode_read(store_pb2.GetSdsMessagesRequest, request, 4 * limits.sds_entries)
        wanted = sds_lookup(
            lookup.channel_id,
            history_entries("entries", lookup.entries, limits.sds_entries),
            topic_filter(lookup.filter, call.client.topics, limits),
            limits,
            prefer_proven=lookup.prefer_proven,
        )
        report = await open_full_report(call, wanted=lookup.coverage)
        async for page in self._services.sds.messages(wanted, call.outlet):
            yield sds_response(page)
        if report is not None:
            said = coverage_message(await report.finish())
            yield store_pb2.SdsMessagesPage(coverage=said).SerializeToString()

    async def causal_history(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        """Answer ``GetCausalHistory``."""
        limits = call.node.limits
        walk = decode_read(store_pb2.GetCausalHistoryRequest, request, limits.causal_known_ids)
        wanted = causal_request(
            walk.channel_id,
            history_entries("heads", walk.heads, limits.causal_heads),
            known_ids=walk.known_ids,
            max_messages=walk.max_messages,
            max_depth=walk.max_depth,
            topics=topic_filter(walk.filter, call.client.topics, limits),
            limits=limits,
            prefer_proven=walk.prefer_proven,
        )
        report = await open_full_report(call, wanted=walk.coverage)
        async for page in self._services.sds.causal_history(wanted, call.outlet):
            yield sds_response(page)
        if report is not None:
            said = coverage_message(await report.finish())
            yield store_pb2.CausalHistoryPage(coverage=said).SerializeToString()


def refuse_query(request: bytes, sentence: str, *, busy: bool) -> bytes:
    """The ``StoreQueryResponse`` for what may be retried later: 429, or 503 when not ready."""
    request_id = ""
    # The node turns the call away whether or not it could have read it.
    with suppress(CallFailure):
        query, _ = decode_head(waku_store_pb2.StoreQueryRequest, request, 0)
        request_id = _cut(query.request_id)
    return query_response(request_id, TOO_MANY_REQUESTS if busy else UNAVAILABLE, sentence)


def _cut(request_id: str) -> str:
    return request_id.encode()[:MAX_QUERY_REQUEST_ID_BYTES].decode(errors="ignore")
