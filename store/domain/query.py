"""The rules of read requests, checked before the database is asked.

``Query`` (13/WAKU2-STORE v3): `plan_query` checks the request and gives a `PageRequest`, or raises
`QueryError`. The position of a cursor is the database's to know.

Rules, beside those of the standard: a field that is set counts although it is empty; limit 0 is
unset; repeated hashes count once; hashes exclude times, while topics select among the messages that
hashes name; pubsub topic and content topics may be set one without the other, as deployed clients
do; ``time_start`` at or past ``time_end`` matches nothing. All limits
(`storenode.message.limits`) are the same on every page. Clients that move here from nwaku, over
libp2p or REST, keep nwaku's rules (``nwaku_rules``).

The other reads (`filter_by`, `time_range`, `sds_lookup`, `causal_request`) raise `RequestError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from store.domain.ports import (
    CausalRequest,
    HistoryEntry,
    PageRequest,
    SdsLookup,
    TopicFilter,
    TopicRights,
)
from storenode.message.limits import (
    DEFAULT_PAGE_MESSAGES,
    HASH_BYTES,
    MAX_CAUSAL_KNOWN_IDS,
    MAX_CAUSAL_MESSAGES,
    MAX_PAGE_MESSAGES,
    MAX_QUERY_CONTENT_TOPICS,
    MAX_QUERY_HASHES,
    MAX_RESPONSE_BYTES,
    MAX_TIMESTAMP_NS,
)
from storenode.sds.limits import MAX_ID_BYTES

OK: Final = 200
BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
TOO_MANY_REQUESTS: Final = 429
UNAVAILABLE: Final = 503

NWAKU_PAGE_MESSAGES: Final = 20
"""Messages of a page of nwaku where the request does not say how many."""

RESPONSE_RESERVE_BYTES: Final = 64 * 1024
"""The bytes of a response that a page leaves free for the fields that are not entries."""

DEFAULT_PAGE_BYTES: Final = MAX_RESPONSE_BYTES - RESPONSE_RESERVE_BYTES
"""Entries of one page, in bytes; an entry that is larger has a page of its own."""


class QueryError(Exception):
    """A refusal inside a ``StoreQueryResponse``: status code and description."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class RequestError(ValueError):
    """A request that can never be served; the text says what to change."""


class LimitError(RequestError):
    """A request with more entries than a limit allows; the text names the limit."""


def plan_query(
    rights: TopicRights,
    *,
    include_data: bool = False,
    pubsub_topic: str | None = None,
    content_topics: Sequence[str] = (),
    time_start: int | None = None,
    time_end: int | None = None,
    message_hashes: Sequence[bytes] = (),
    cursor: bytes | None = None,
    forward: bool = False,
    limit: int | None = None,
    nwaku_rules: bool = False,
) -> PageRequest:
    """Check a ``Query`` request, all but the position of its cursor; ``rights`` are the caller's.

    The other arguments are the fields of a ``StoreQueryRequest``; None is "not set".
    ``nwaku_rules``: times select among ``message_hashes``, a topic that no message can have matches
    none, and the default limit is `NWAKU_PAGE_MESSAGES`.

    Raises:
        QueryError: 400, and what to change.
    """
    matches_nothing = False
    if nwaku_rules:
        possible = [topic for topic in content_topics if _can_exist(topic)]
        matches_nothing = bool(content_topics) and not possible
        if pubsub_topic is not None and not _can_exist(pubsub_topic):
            pubsub_topic, matches_nothing = None, True
        content_topics, limit = possible, limit or NWAKU_PAGE_MESSAGES
    elif message_hashes and (time_start is not None or time_end is not None):
        name = "time_end" if time_start is None else "time_start"
        raise QueryError(
            BAD_REQUEST, f"{name} is set beside message_hashes: ask for one of the two"
        )
    if cursor is not None:
        _check_hash("pagination_cursor", cursor)
    try:
        topics = filter_by(pubsub_topic, content_topics, rights)
    except RequestError as error:
        raise QueryError(BAD_REQUEST, str(error)) from None
    hashes = _checked_hashes(message_hashes)
    start_ns, end_ns = time_range(time_start, time_end)
    if matches_nothing:
        end_ns = start_ns
    limit = min(limit or DEFAULT_PAGE_MESSAGES, MAX_PAGE_MESSAGES)
    return PageRequest(topics, hashes, start_ns, end_ns, None, forward, limit, include_data)


def time_range(time_start: int | None, time_end: int | None) -> tuple[int, int]:
    """Return bounds in nanoseconds (inclusive, exclusive) within the legal timestamps.

    Unset means unbounded. The range is empty when the first is not smaller than the second.
    """
    start_ns = 0 if time_start is None else max(0, time_start)
    end_ns = MAX_TIMESTAMP_NS if time_end is None else max(0, time_end)
    return start_ns, end_ns


def filter_by(
    pubsub_topic: str | None, content_topics: Sequence[str], rights: TopicRights
) -> TopicFilter:
    """Check a ``ContentFilter``, whose fields may be set one without the other.

    Raises:
        RequestError: a topic that no message can have, or too many.
    """
    if pubsub_topic is not None:
        _check_topic("pubsub_topic", pubsub_topic)
    most = MAX_QUERY_CONTENT_TOPICS
    if len(content_topics) > most:
        raise LimitError(f"content_topics holds {len(content_topics)} topics: at most {most}")
    for topic in content_topics:
        _check_topic("content_topics", topic)
    return TopicFilter(pubsub_topic, tuple(dict.fromkeys(content_topics)), rights)


def sds_lookup(
    channel_id: str,
    entries: Sequence[HistoryEntry],
    topics: TopicFilter,
    *,
    prefer_proven: bool = False,
) -> SdsLookup:
    """Check a ``GetSdsMessages`` request; repeated entries count once.

    Raises:
        RequestError: no channel, or an empty or too large entry.
    """
    distinct = _entries("entries", entries)
    return SdsLookup(channel_of(channel_id), distinct, topics, prefer_proven=prefer_proven)


def causal_request(
    channel_id: str,
    heads: Sequence[HistoryEntry],
    *,
    known_ids: Sequence[str],
    max_messages: int,
    max_depth: int,
    topics: TopicFilter,
    prefer_proven: bool = False,
) -> CausalRequest:
    """Check a ``GetCausalHistory`` request; a larger ``max_messages`` is clamped.

    Raises:
        RequestError: no channel, an empty or too large head, or too many known IDs.
    """
    check_count("known_ids", len(known_ids), MAX_CAUSAL_KNOWN_IDS)
    return CausalRequest(
        channel_of(channel_id),
        _entries("heads", heads),
        topics,
        prefer_proven=prefer_proven,
        known_ids=frozenset(known.encode() for known in known_ids),
        max_messages=min(max_messages or MAX_CAUSAL_MESSAGES, MAX_CAUSAL_MESSAGES),
        max_depth=max_depth,
    )


def check_count(name: str, count: int, limit: int) -> None:
    """Refuse a list that is too long, before anything is made of its entries.

    Raises:
        LimitError: ``count`` is above ``limit``.
    """
    if count > limit:
        raise LimitError(f"{name} holds {count} entries: at most {limit}")


def _checked_hashes(given: Sequence[bytes]) -> tuple[bytes, ...] | None:
    if not given:
        return None
    hashes = tuple(dict.fromkeys(given))
    if set(map(len, hashes)) != {HASH_BYTES}:
        for digest in hashes:
            _check_hash("message_hashes", digest)
    if len(hashes) > MAX_QUERY_HASHES:
        raise QueryError(
            BAD_REQUEST,
            f"message_hashes holds {len(hashes)} hashes: at most {MAX_QUERY_HASHES}",
        )
    return hashes


def _check_hash(name: str, digest: bytes) -> None:
    if len(digest) != HASH_BYTES:
        raise QueryError(
            BAD_REQUEST, f"{name} has {len(digest)} bytes: a message hash has {HASH_BYTES}"
        )


def _can_exist(topic: str) -> bool:
    return bool(topic) and "\0" not in topic


def _check_topic(name: str, topic: str) -> None:
    if not topic:
        raise RequestError(f"{name} holds an empty topic, which no message has: leave it out")
    if "\0" in topic:
        raise RequestError(f"{name} holds a topic with a NUL character, which no message has")


def channel_of(channel_id: str) -> bytes:
    """Check the name of a channel; raises `RequestError`."""
    channel = channel_id.encode()
    if not channel:
        raise RequestError("channel_id is empty: name the channel to look in")
    if len(channel) > MAX_ID_BYTES:
        raise RequestError(f"channel_id has {len(channel)} bytes: at most {MAX_ID_BYTES}")
    return channel


def _entries(name: str, entries: Iterable[HistoryEntry]) -> tuple[HistoryEntry, ...]:
    kept = tuple(dict.fromkeys(entries))
    if not all(entry.message_id for entry in kept):
        raise RequestError(f"{name} holds an entry without message_id: set it")
    # An entry that is missing is sent back as it came.
    largest = max(
        (len(entry.message_id) + len(entry.retrieval_hint or b"") for entry in kept), default=0
    )
    if largest > DEFAULT_PAGE_BYTES:
        raise LimitError(f"{name} holds an entry of {largest} bytes: at most {DEFAULT_PAGE_BYTES}")
    return kept
