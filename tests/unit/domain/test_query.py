from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.ports import CausalRequest, HistoryEntry, TopicFilter, TopicRights
from store.domain.query import (
    RESPONSE_RESERVE_BYTES,
    LimitError,
    QueryError,
    RequestError,
    RequestLimits,
    causal_request,
    filter_by,
    plan_query,
    sds_lookup,
    time_range,
)
from storenode.message.limits import MAX_PAGE_MESSAGES, MAX_TIMESTAMP_NS

EVERYTHING = TopicRights()
LIMITS = RequestLimits()
DIGEST = bytes(range(32))
Fields = dict[str, Any]
BY_TOPIC: Fields = {"pubsub_topic": "/p", "content_topics": ["/c"]}
BY_HASH: Fields = {"message_hashes": [DIGEST]}


def test_nothing_set_asks_for_the_newest_hundred() -> None:
    request = plan_query(EVERYTHING, LIMITS)
    assert (request.hashes, request.after, request.forward) == (None, None, False)
    assert (request.time_start_ns, request.time_end_ns) == (0, MAX_TIMESTAMP_NS)
    assert request.limit == 100
    assert not request.include_data
    assert request.filter == TopicFilter()
    assert request.time_start_ns < request.time_end_ns


@pytest.mark.parametrize(
    ("query", "named"),
    [
        *(({"cursor": each}, f"{len(each)} bytes") for each in (b"", b"s", DIGEST + b"x")),
        (BY_TOPIC | {"pubsub_topic": ""}, "pubsub_topic holds an empty topic"),
        (BY_TOPIC | {"content_topics": ["/c", ""]}, "content_topics holds an empty topic"),
        (BY_TOPIC | {"content_topics": ["/c\0"]}, "NUL"),
        (BY_TOPIC | {"pubsub_topic": "/p\0"}, "NUL"),
        (BY_HASH | {"time_start": 0}, "time_start"),
        (BY_HASH | {"time_end": 0}, "time_end"),
        (BY_HASH | {"time_start": 1, "time_end": 2}, "time_start"),
        *(
            ({"message_hashes": [DIGEST, each]}, f"{len(each)} bytes")
            for each in (b"", b"\1" * 31, b"\1" * 33)
        ),
    ],
)
def test_a_query_that_breaks_a_rule_is_refused(query: Fields, named: str) -> None:
    with pytest.raises(QueryError) as caught:
        plan_query(EVERYTHING, LIMITS, **query)
    assert caught.value.status == 400
    assert named in caught.value.sentence


@pytest.mark.parametrize(
    ("query", "differs"),
    [
        ({}, {"limit": 20}),
        (BY_HASH | {"time_end": 7}, {"hashes": (DIGEST,), "time_end_ns": 7}),
        ({"content_topics": ["", "/c"]}, {"filter": TopicFilter(None, ("/c",))}),
        ({"content_topics": ["", ""]}, None),
        ({"content_topics": ["\0"], "cursor": DIGEST}, None),
        ({"pubsub_topic": ""}, None),
        ({"time_start": 6, "time_end": 5}, None),
    ],
)
def test_what_the_standard_leaves_open_is_read_as_nwaku_reads_it(
    query: Fields, differs: Fields | None
) -> None:
    request = plan_query(EVERYTHING, LIMITS, **query, nwaku_rules=True)
    assert (request.time_start_ns >= request.time_end_ns) is (differs is None)
    for name, value in (differs or {}).items():
        assert getattr(request, name) == value


@pytest.mark.parametrize(
    ("start", "end", "expected", "empty"),
    [
        (5, 9, (5, 9), False),
        (9, 5, (9, 5), True),
        (-(2**63), None, (0, MAX_TIMESTAMP_NS), False),
        (None, -1, (0, 0), True),
    ],
)
def test_times(start: int | None, end: int | None, expected: tuple[int, int], empty: bool) -> None:
    assert time_range(start, end) == expected
    request = plan_query(EVERYTHING, LIMITS, time_start=start, time_end=end)
    assert (request.time_start_ns >= request.time_end_ns) is empty


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
        request = plan_query(EVERYTHING, LIMITS, **query)
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


@pytest.mark.parametrize(
    ("channel", "asked", "named"),
    [
        ("", entries(1), "channel_id is empty"),
        ("c" * 257, entries(1), "257 bytes: at most 256"),
        ("c", [HistoryEntry(b"")], "without message_id"),
    ],
)
def test_sds_look_ups_that_are_refused(channel: str, asked: list[HistoryEntry], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        sds_lookup(channel, asked, TopicFilter(), LIMITS)


def walk(limits: RequestLimits = LIMITS, **asked: Any) -> CausalRequest:  # noqa: ANN401
    usual = {"heads": entries(1), "known_ids": (), "max_messages": 0, "max_depth": 0}
    return causal_request("c", **{**usual, **asked}, topics=TopicFilter(), limits=limits)


def test_a_walk_is_as_it_was_asked_for() -> None:
    assert walk(known_ids=["a", "b", "a"]).known_ids == {b"a", b"b"}
    assert walk(max_depth=3).max_depth == 3
    with pytest.raises(RequestError, match="without message_id"):
        walk(heads=[HistoryEntry(b"")])


OTHERS = RequestLimits(
    response_bytes=RESPONSE_RESERVE_BYTES + 100,
    default_page_messages=5,
    page_messages=7,
    query_hashes=2,
    query_topics=3,
    sds_entries=4,
    sds_claimants=6,
    causal_heads=8,
    causal_known_ids=9,
    causal_messages=10,
)


def test_the_limits_of_the_contract_are_the_defaults() -> None:
    assert asdict(LIMITS) == {
        "batch_messages": 5_000,
        "response_bytes": 4 * 1024 * 1024,
        "default_page_messages": 100,
        "page_messages": 1_000,
        "query_hashes": 1_000,
        "query_topics": 100,
        "sds_entries": 1_000,
        "sds_claimants": 16,
        "causal_heads": 100,
        "causal_known_ids": 10_000,
        "causal_messages": 100_000,
    }


@pytest.mark.parametrize(
    ("asked", "given_out"), [(None, 5), (0, 5), (6, 6), (7, 7), (8, 7), (2**64 - 1, 7)]
)
@pytest.mark.parametrize("cursor", [None, DIGEST])
def test_other_limits_of_a_page(asked: int | None, given_out: int, cursor: bytes | None) -> None:
    assert plan_query(EVERYTHING, OTHERS, limit=asked, cursor=cursor).limit == given_out


def test_other_limits_of_a_query() -> None:
    hashes = [bytes([n]) * 32 for n in range(3)]
    plan_query(EVERYTHING, OTHERS, message_hashes=hashes[:2] * 9)
    with pytest.raises(QueryError, match="message_hashes holds 3 hashes: at most 2"):
        plan_query(EVERYTHING, OTHERS, message_hashes=hashes)
    topics = ["/a", "/b", "/c", "/d"]
    plan_query(EVERYTHING, OTHERS, content_topics=topics[:3])
    with pytest.raises(QueryError, match="content_topics holds 4 topics: at most 3"):
        plan_query(EVERYTHING, OTHERS, content_topics=topics)
    filter_by(None, topics[:3], EVERYTHING, OTHERS)
    with pytest.raises(LimitError, match="content_topics holds 4 topics: at most 3"):
        filter_by(None, topics, EVERYTHING, OTHERS)


def test_other_limits_of_an_sds_look_up() -> None:
    assert sds_lookup("c", entries(4), TopicFilter(), OTHERS).claimants == 6
    with pytest.raises(LimitError, match="entries holds 5 entries: at most 4"):
        sds_lookup("c", entries(5), TopicFilter(), OTHERS)


@pytest.mark.parametrize(("asked", "given"), [(0, 10), (5, 5), (10, 10), (2**32 - 1, 10)])
def test_other_limits_of_a_walk(asked: int, given: int) -> None:
    wanted = walk(OTHERS, heads=entries(8), known_ids=["x"] * 9, max_messages=asked)
    assert (wanted.max_messages, wanted.claimants) == (given, 6)
    with pytest.raises(LimitError, match="heads holds 9 entries: at most 8"):
        walk(OTHERS, heads=entries(9))
    with pytest.raises(LimitError, match="known_ids holds 10 entries: at most 9"):
        walk(OTHERS, known_ids=["x"] * 10)


def test_an_entry_that_no_response_could_repeat_is_refused() -> None:
    largest = HistoryEntry(b"i" * 60, b"h" * 40)
    assert sds_lookup("c", [largest], TopicFilter(), OTHERS).entries == (largest,)
    for entry in (HistoryEntry(b"i" * 61, b"h" * 40), HistoryEntry(b"i" * 101)):
        with pytest.raises(LimitError, match="entries holds an entry of 101 bytes: at most 100"):
            sds_lookup("c", [entry], TopicFilter(), OTHERS)
        with pytest.raises(LimitError, match="heads holds an entry of 101 bytes: at most 100"):
            walk(OTHERS, heads=[entry])


def test_the_caller_s_rights_are_part_of_every_filter() -> None:
    rights = TopicRights(("/p",), ("/c",))
    assert plan_query(rights, LIMITS, **BY_HASH).filter.rights == rights
    assert plan_query(rights, LIMITS, **BY_TOPIC).filter.rights == rights
    assert filter_by(None, [], rights, LIMITS).rights == rights


@pytest.mark.parametrize(
    ("pubsub", "contents"), [("/p", ()), (None, ("/c",)), ("/p", ("/c", "/d"))]
)
def test_either_topic_filters_alone_and_beside_hashes(
    pubsub: str | None, contents: tuple[str, ...]
) -> None:
    for hashes in ((), (DIGEST,)):
        request = plan_query(
            EVERYTHING,
            LIMITS,
            pubsub_topic=pubsub,
            content_topics=contents,
            message_hashes=hashes,
        )
        assert request.filter == TopicFilter(pubsub, contents)
        assert request.hashes == (hashes or None)
