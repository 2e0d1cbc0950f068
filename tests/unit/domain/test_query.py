from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.ports import CausalRequest, HistoryEntry, SdsLookup, TopicFilter, TopicRights
from store.domain.query import (
    DEFAULT_PAGE_BYTES,
    LimitError,
    QueryError,
    RequestError,
    causal_request,
    filter_by,
    plan_query,
    sds_lookup,
    time_range,
)
from storenode.message import limits
from storenode.message.limits import MAX_PAGE_MESSAGES, MAX_TIMESTAMP_NS

EVERYTHING = TopicRights()
DIGEST = bytes(range(32))
Fields = dict[str, Any]
BY_TOPIC: Fields = {"pubsub_topic": "/p", "content_topics": ["/c"]}
BY_HASH: Fields = {"message_hashes": [DIGEST]}


def test_the_limits_are_those_of_the_contract() -> None:
    names = {
        "MAX_BATCH_MESSAGES": 5_000,
        "MAX_RESPONSE_BYTES": 4 * 1024 * 1024,
        "DEFAULT_PAGE_MESSAGES": 100,
        "MAX_PAGE_MESSAGES": 1_000,
        "MAX_QUERY_HASHES": 1_000,
        "MAX_QUERY_CONTENT_TOPICS": 100,
        "MAX_SDS_ENTRIES": 1_000,
        "MAX_SDS_CLAIMANTS": 16,
        "MAX_CAUSAL_HEADS": 100,
        "MAX_CAUSAL_KNOWN_IDS": 10_000,
        "MAX_CAUSAL_MESSAGES": 100_000,
    }
    assert {name: getattr(limits, name) for name in names} == names


def hashes(count: int) -> list[bytes]:
    return [number.to_bytes(32) for number in range(count)]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        *(({"cursor": each}, f"{len(each)} bytes") for each in (b"", b"s", DIGEST + b"x")),
        (BY_TOPIC | {"pubsub_topic": ""}, "pubsub_topic holds an empty topic"),
        (BY_TOPIC | {"content_topics": ["/c", ""]}, "content_topics holds an empty topic"),
        (BY_TOPIC | {"content_topics": ["/c\0"]}, "NUL"),
        (BY_TOPIC | {"pubsub_topic": "/p\0"}, "NUL"),
        ({"content_topics": ["/c"] * 101}, "content_topics holds 101 topics: at most 100"),
        (BY_HASH | {"time_start": 0}, "time_start"),
        (BY_HASH | {"time_end": 0}, "time_end"),
        (BY_HASH | {"time_start": 1, "time_end": 2}, "time_start"),
        ({"message_hashes": hashes(1_001)}, "message_hashes holds 1001 hashes: at most 1000"),
        *(
            ({"message_hashes": [DIGEST, each]}, f"{len(each)} bytes")
            for each in (b"", b"\1" * 31, b"\1" * 33)
        ),
    ],
)
def test_a_query_that_breaks_a_rule_is_refused(query: Fields, named: str) -> None:
    with pytest.raises(QueryError) as caught:
        plan_query(EVERYTHING, **query)
    assert caught.value.status == 400
    assert named in caught.value.sentence


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {"hashes": None, "after": None, "forward": False, "include_data": False}),
        ({}, {"limit": 100, "filter": TopicFilter(), "time_start_ns": 0}),
        ({}, {"time_end_ns": MAX_TIMESTAMP_NS}),
        ({"limit": 0, "cursor": DIGEST}, {"limit": 100}),
        ({"limit": 1_000}, {"limit": 1_000}),
        ({"limit": 1_001, "cursor": DIGEST}, {"limit": 1_000}),
        ({"limit": 2**64 - 1}, {"limit": 1_000}),
        ({"message_hashes": hashes(1_000) * 2}, {"hashes": tuple(hashes(1_000))}),
        (BY_HASH | {"pubsub_topic": "/p"}, {"filter": TopicFilter("/p"), "hashes": (DIGEST,)}),
        (BY_HASH | {"content_topics": ["/c"]}, {"filter": TopicFilter(None, ("/c",))}),
        ({"content_topics": ["/c", "/d", "/c"]}, {"filter": TopicFilter(None, ("/c", "/d"))}),
        (BY_TOPIC, {"filter": TopicFilter("/p", ("/c",)), "hashes": None}),
        ({"nwaku_rules": True}, {"limit": 20}),
        (BY_HASH | {"time_end": 7, "nwaku_rules": True}, {"hashes": (DIGEST,), "time_end_ns": 7}),
        (
            {"content_topics": ["", "/c"], "nwaku_rules": True},
            {"filter": TopicFilter(None, ("/c",))},
        ),
    ],
)
def test_a_query_is_read_by_the_standard_or_as_nwaku_reads_it(
    query: Fields, expected: Fields
) -> None:
    request = plan_query(EVERYTHING, **query)
    assert {name: getattr(request, name) for name in expected} == expected
    assert request.time_start_ns < request.time_end_ns


@pytest.mark.parametrize(
    "query",
    [
        {"content_topics": ["", ""], "nwaku_rules": True},
        {"content_topics": ["\0"], "cursor": DIGEST, "nwaku_rules": True},
        {"pubsub_topic": "", "nwaku_rules": True},
        {"time_start": 6, "time_end": 5, "nwaku_rules": True},
        {"time_start": 9, "time_end": 5},
        {"time_end": -1},
    ],
)
def test_a_query_may_match_nothing(query: Fields) -> None:
    request = plan_query(EVERYTHING, **query)
    assert request.time_start_ns >= request.time_end_ns


def test_times_are_bounded_by_the_legal_ones() -> None:
    assert time_range(5, 9) == (5, 9)
    assert time_range(-(2**63), None) == (0, MAX_TIMESTAMP_NS)
    assert time_range(None, -1) == (0, 0)


topics = st.sampled_from(["", "/p", "/c", "/q\0", "x" * 2000])
inputs = st.fixed_dictionaries(
    {},
    optional={
        "include_data": st.booleans(),
        "pubsub_topic": topics,
        "content_topics": st.lists(topics, max_size=3),
        "time_start": st.integers(-(2**63), 2**63 - 1),
        "time_end": st.integers(-(2**63), 2**63 - 1),
        "message_hashes": st.lists(st.binary(max_size=40) | st.just(DIGEST), max_size=3),
        "cursor": st.binary(max_size=40) | st.just(DIGEST),
        "forward": st.booleans(),
        "limit": st.integers(0, 2**64 - 1),
    },
)


@given(inputs)
def test_every_request_is_planned_within_the_limits_or_refused(query: Fields) -> None:
    try:
        request = plan_query(EVERYTHING, **query)
    except QueryError as error:
        assert (error.status, len(error.sentence) < 200) == (400, True)  # noqa: PT017 - either way
        return
    assert 1 <= request.limit <= MAX_PAGE_MESSAGES
    assert 0 <= request.time_start_ns <= MAX_TIMESTAMP_NS
    assert 0 <= request.time_end_ns <= MAX_TIMESTAMP_NS
    by_time = "time_start" in query or "time_end" in query
    assert request.hashes is None or not by_time


def entries(count: int) -> list[HistoryEntry]:
    return [HistoryEntry(str(n).encode()) for n in range(count)]


LARGEST = HistoryEntry(b"i" * 60, bytes(DEFAULT_PAGE_BYTES - 60))
TOO_LARGE = HistoryEntry(b"i" * 61, bytes(DEFAULT_PAGE_BYTES - 60))


def look_up(asked: list[HistoryEntry], channel: str = "c") -> SdsLookup:
    return sds_lookup(channel, asked, TopicFilter())


def walk(
    heads: list[HistoryEntry], channel: str = "c", known_ids: Sequence[str] = (), most: int = 0
) -> CausalRequest:
    limits: dict[str, Any] = {"known_ids": known_ids, "max_messages": most, "max_depth": 3}
    return causal_request(channel, heads, topics=TopicFilter(), **limits)


@pytest.mark.parametrize("ask", [look_up, walk])
@pytest.mark.parametrize(
    ("channel", "asked", "named"),
    [
        ("", entries(1), "channel_id is empty"),
        ("c" * 257, entries(1), "257 bytes: at most 256"),
        ("c", [HistoryEntry(b"")], "without message_id"),
        # A response could not repeat it.
        ("c", [TOO_LARGE], "holds an entry of 4128769 bytes: at most 4128768"),
    ],
)
def test_requests_for_sds_messages_that_are_refused(
    ask: Callable[..., object], channel: str, asked: list[HistoryEntry], named: str
) -> None:
    with pytest.raises(RequestError, match=named):
        ask(asked, channel)
    ask(entries(1))


def test_a_look_up_asks_once_for_each_entry() -> None:
    wanted = look_up([LARGEST, LARGEST, *entries(1)])
    assert (wanted.entries, wanted.claimants) == ((LARGEST, *entries(1)), 16)


@pytest.mark.parametrize(("asked", "most"), [(0, 100_000), (5, 5), (2**32 - 1, 100_000)])
def test_a_walk_is_as_it_was_asked_for(asked: int, most: int) -> None:
    wanted = walk([LARGEST], known_ids=["a", "b", "a"], most=asked)
    assert wanted.known_ids == {b"a", b"b"}
    assert (wanted.max_depth, wanted.claimants, wanted.max_messages) == (3, 16, most)
    with pytest.raises(LimitError, match="known_ids holds 10001 entries: at most 10000"):
        walk(entries(1), known_ids=["x"] * 10_001)


def test_the_caller_s_rights_are_part_of_every_filter() -> None:
    rights = TopicRights(("/p",), ("/c",))
    assert plan_query(rights, **BY_HASH).filter.rights == rights
    assert plan_query(rights, **BY_TOPIC).filter.rights == rights
    assert filter_by(None, [], rights).rights == rights
