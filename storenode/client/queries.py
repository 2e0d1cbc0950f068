"""Requests of ``Query``, from plain values."""

from __future__ import annotations

from collections.abc import Sequence

from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest


def query_request(
    *,
    pubsub_topic: str | None = None,
    content_topics: Sequence[str] = (),
    time_start: int | None = None,
    time_end: int | None = None,
    message_hashes: Sequence[bytes] = (),
    forward: bool = False,
    cursor: bytes | None = None,
    limit: int | None = None,
    include_data: bool = True,
    request_id: str = "",
) -> StoreQueryRequest:
    """Build a request; what is not given stays unset, and the node judges the combination.

    Times in Unix nanoseconds, the end exclusive; ``cursor`` is a message hash. Source:
    13/WAKU2-STORE.
    """
    return StoreQueryRequest(
        request_id=request_id,
        include_data=include_data,
        pubsub_topic=pubsub_topic,
        content_topics=content_topics,
        time_start=time_start,
        time_end=time_end,
        message_hashes=message_hashes,
        pagination_cursor=cursor,
        pagination_forward=forward,
        pagination_limit=limit,
    )
