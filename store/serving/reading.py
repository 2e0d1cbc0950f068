"""Reads of clients, whatever protocol they came by: what each asks of the ports."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from store.domain.coverage import AnswerCoverage
from store.domain.ports import (
    FollowPage,
    FollowRequest,
    PageRequest,
    QueryPage,
    ScanRequest,
    Services,
    TopicFilter,
)
from store.domain.query import QueryPlan, time_range
from store.messages.cursor import ScanCursor
from store.serving.answer_coverage import open_report, page_span
from store.serving.call import Call
from store.serving.limits import MAX_SCAN_PAGE_MESSAGES
from store.serving.unsent import COPIES

LIKELY_MESSAGE_BYTES: Final = 2 * 1024
LIKELY_PRESENCE_BYTES: Final = 64

NOTHING: Final = QueryPage(b"", 0, None)


async def read_page(
    services: Services, call: Call, plan: QueryPlan, *, coverage: bool = False
) -> tuple[QueryPage, AnswerCoverage | None]:
    """One page of a query, and where ``coverage`` is wanted how complete it is.

    Its likely size is taken from the budget of unsent answers first.

    Raises:
        QueryError: the cursor is not known.
        CallFailure: there is no room.
    """
    await call.outlet.take(_likely_bytes(plan.request))
    wanted = plan.request
    if plan.cursor is not None:
        wanted = plan.page(await services.reader.position(plan.cursor, call.client.topics))
    if plan.empty:
        return NOTHING, None
    report = None
    if coverage:
        range_ns = wanted.time_start_ns, wanted.time_end_ns
        report = await open_report(call, *range_ns, all_kept=wanted.hashes is not None)
    page = await services.reader.query(wanted)
    return page, None if report is None else await report.finish(page_span(wanted, page))


def scan_request(
    topics: TopicFilter,
    *,
    time_start: int | None,
    time_end: int | None,
    cursor: bytes,
    include_data: bool,
    page_size: int,
) -> ScanRequest:
    """Check a scan; an empty ``cursor`` begins at the start.

    Raises:
        CursorError: the cursor cannot be read.
    """
    after = ScanCursor.decode(cursor) if cursor else None
    start_ns, end_ns = time_range(time_start, time_end)
    return ScanRequest(
        topics,
        start_ns,
        end_ns,
        None if after is None else (after.timestamp, after.hash),
        include_data,
        min(page_size, MAX_SCAN_PAGE_MESSAGES),
    )


async def follow(
    services: Services, call: Call, wanted: FollowRequest
) -> AsyncGenerator[FollowPage, None]:
    """The pages of a follower, which is counted as long as it follows.

    Raises:
        CallFailure: too many topics are followed.
        CursorOutOfRange: the cursor is not one of this database.
    """
    node = call.node
    with (
        node.followed.topics(call.client.name, wanted.filter.content_topics),
        node.metrics.followers.track_inprogress(),
    ):
        async for page in services.feed.follow(wanted, call.outlet):
            yield page


def _likely_bytes(request: PageRequest) -> int:
    """About what the answer takes in memory; it is counted exactly when it is there."""
    messages = request.limit if request.hashes is None else len(request.hashes)
    each = LIKELY_MESSAGE_BYTES if request.include_data else LIKELY_PRESENCE_BYTES
    return COPIES * each * min(messages, request.limit)
