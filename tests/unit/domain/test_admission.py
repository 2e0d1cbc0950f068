"""Admission: the verdict on each message, from every source, however a request is cut."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.access import Principal, Right
from store.domain.admission import Admission, Admitted, Verdict
from store.domain.ports import Source, TopicRights
from store.domain.quota import ClientLimits
from store.messages.conflicts import StoreResult
from storenode.client.messages import hash_of
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.rules import Policy, Reason
from storenode.message.topics import topic_key
from storenode.sds import codec
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import Decoding, admit, encoded
from tests.unit.builders import CONTENT, NOW_NS, PUBSUB, entries, entry

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
DRIFT_NS = 20 * SECOND_NS
CLIENT = Policy(max_drift_ns=DRIFT_NS)
WITH_HORIZON = Policy(DRIFT_NS, NOW_NS - DAY_NS)
SHARDED = Policy(DRIFT_NS, cluster=1, shards=frozenset({4, 7}))
SMALL = Policy(DRIFT_NS, max_message_bytes=100, max_meta_bytes=2, max_topic_bytes=30)
STORES = [Source.TRANSFER, Source.RESUME, Source.GOSSIP, Source.NWAKU, Source.RELAY]
ACCEPTED, REJECTED = Verdict.ACCEPTED, Verdict.REJECTED
DUPLICATE, EPHEMERAL = Verdict.DUPLICATE, Verdict.EPHEMERAL


def judge(*messages: WakuMessageAndTopic, policy: Policy = CLIENT) -> Admitted:
    admission = admit(messages, NOW_NS, policy)
    check(admission, messages)
    assert admit(messages, NOW_NS, policy, Decoding) == admission
    return admission


def check(admission: Admitted, messages: Sequence[WakuMessageAndTopic]) -> None:
    """Check that every column has an entry for each message, and positions lead to hashes."""
    assert len(admission.verdicts) == len(admission.positions) == len(messages)
    assert len(admission.hashes) == len(messages)
    admission.batch.check()
    columns = zip(admission.verdicts, admission.positions, admission.hashes, strict=True)
    for index, (verdict, position, digest) in enumerate(columns):
        assert (verdict is REJECTED) == (index in admission.refusals)
        if verdict in {ACCEPTED, DUPLICATE}:
            assert admission.batch.hashes[position] == digest
        else:
            assert position == -1
            relayed = any(one.message_hash == digest for one in admission.ephemerals)
            assert relayed or verdict is REJECTED


def label_of(admission: Admitted) -> str:
    """Return the label of the refusal of a single message, or nothing."""
    assert len(admission.batch) == (not admission.refusals)
    return admission.refusals[0].label if admission.refusals else ""


LARGEST = 150 * 1024 - (entry(bytes(150_000)).message.ByteSize() - 150_000)


@pytest.mark.parametrize(
    ("message", "policy", "reason", "words"),
    [
        (WakuMessageAndTopic(pubsub_topic=PUBSUB), CLIENT, Reason.MISSING_MESSAGE, "no message"),
        (entry(pubsub=""), CLIENT, Reason.MISSING_TOPIC, "pubsub topic is empty"),
        (entry(content=""), CLIENT, Reason.MISSING_TOPIC, "content topic is empty"),
        (entry(pubsub="/a\0b"), CLIENT, Reason.TOPIC_NUL, "pubsub topic has a NUL character at"),
        (entry(content="\0"), CLIENT, Reason.TOPIC_NUL, "topic has a NUL character at byte 0"),
        (entry(pubsub="p" * 1025), CLIENT, Reason.TOPIC_TOO_LONG, "1025 bytes: use at most 1024"),
        (entry(content="é" * 513), CLIENT, Reason.TOPIC_TOO_LONG, "1026 bytes: use at most 1024"),
        (entry(content="c" * 31), SMALL, Reason.TOPIC_TOO_LONG, "31 bytes"),
        (entry(timestamp=None), CLIENT, Reason.MISSING_TIMESTAMP, "no timestamp"),
        (entry(timestamp=0), CLIENT, Reason.BAD_TIMESTAMP, "timestamp 0 is not greater than 0"),
        (entry(timestamp=-5), CLIENT, Reason.BAD_TIMESTAMP, "timestamp -5 is not greater than 0"),
        (
            entry(timestamp=NOW_NS + 35 * SECOND_NS + SECOND_NS // 5),
            *(CLIENT, Reason.TOO_NEW),
            "35.2 s later than this node's clock, which allows 20 s",
        ),
        (
            entry(timestamp=NOW_NS - 3_600 * SECOND_NS),
            *(CLIENT, Reason.TOO_OLD),
            "3600 s earlier than this node's clock, which allows 20 s",
        ),
        (
            entry(timestamp=NOW_NS - 1),
            *(Policy(DRIFT_NS, horizon_ns=NOW_NS), Reason.BELOW_HORIZON),
            "1 ns older than the oldest message that this node keeps",
        ),
        (entry(meta=bytes(65)), CLIENT, Reason.META_TOO_LONG, "meta has 65 bytes: send at most 64"),
        (entry(meta=b"abc"), SMALL, Reason.META_TOO_LONG, "3 bytes"),
        (entry(bytes(LARGEST + 1)), CLIENT, Reason.TOO_LARGE, "153601 bytes: send at most 153600"),
        (entry(bytes(100)), SMALL, Reason.TOO_LARGE, "send at most 100"),
        (
            entry(pubsub="/waku/2/rs/1/5"),
            *(SHARDED, Reason.WRONG_SHARD),
            "is shard 5 of cluster 1: this node keeps shards 4, 7 of cluster 1",
        ),
        (entry(pubsub="/waku/2/rs/2/4"), SHARDED, Reason.WRONG_SHARD, "is shard 4 of cluster 2"),
        (entry(pubsub="/waku/2/rs/1/04"), SHARDED, Reason.WRONG_SHARD, "names no shard"),
        (entry(pubsub="/waku/2/default"), SHARDED, Reason.WRONG_SHARD, "names no shard"),
    ],
)
def test_each_fault_has_its_reason_and_sentence(
    message: WakuMessageAndTopic, policy: Policy, reason: Reason, words: str
) -> None:
    admission = judge(message, policy=policy)
    assert label_of(admission) == reason
    assert words in admission.refusals[0].sentence
    has_hash = message.HasField("message") and message.message.timestamp
    assert admission.hashes == [hash_of(message) if has_hash else b""]


def test_a_message_just_within_the_limits_is_accepted() -> None:
    for limit in ({"pubsub": "p" * 1024}, {"content": "é" * 512}, {"meta": bytes(64)}):
        assert not label_of(judge(entry(b"", **limit)))
    assert not label_of(judge(entry(bytes(LARGEST))))
    assert not label_of(judge(entry(b"x", meta=b"ab"), policy=SMALL))


@pytest.mark.parametrize(
    ("offset_ns", "client", "store", "restore"),
    [
        (0, "", "", ""),
        (DRIFT_NS, "", "", ""),
        (DRIFT_NS + 1, "too_new", "too_new", "too_new"),
        (-DRIFT_NS, "", "", ""),
        (-DRIFT_NS - 1, "too_old", "", ""),
        (-DAY_NS, "too_old", "", ""),
        (-DAY_NS - 1, "too_old", "below_horizon", ""),
        (1 - NOW_NS, "too_old", "below_horizon", ""),
        (-NOW_NS, "bad_timestamp", "bad_timestamp", "bad_timestamp"),
    ],
)
def test_who_brings_a_message_decides_how_old_it_may_be(
    offset_ns: int, client: str, store: str, restore: str
) -> None:
    def label(source: Source) -> str:
        admission = Admission(WITH_HORIZON, NOW_NS, source)
        admission.admit(encoded([entry(timestamp=NOW_NS + offset_ns)]))
        return label_of(admission.admitted)

    assert label(Source.CLIENT) == client
    assert set(map(label, STORES)) == {store}
    assert label(Source.RESTORE) == restore


@pytest.mark.parametrize(
    ("offset_ns", "policy", "label"),
    [
        (-DAY_NS, Policy(None, NOW_NS - DAY_NS), ""),
        (-DAY_NS - 1, Policy(None, NOW_NS - DAY_NS), "below_horizon"),
        (DAY_NS, Policy(max_drift_ns=None), ""),
        (DAY_NS + 1, Policy(max_drift_ns=None), "too_new"),
        (MAX_TIMESTAMP_NS - NOW_NS, Policy(max_drift_ns=2**80), ""),
    ],
)
def test_a_publisher_without_a_limit_is_bound_by_the_horizon_and_a_day(
    offset_ns: int, policy: Policy, label: str
) -> None:
    assert label_of(judge(entry(timestamp=NOW_NS + offset_ns), policy=policy)) == label


def test_unknown_fields_are_dropped_before_anything_is_measured() -> None:
    plain = entry(b"data")
    unknown = b"\x9a\x06\x80\xf1\x04" + bytes(80_000)
    body = plain.message.SerializeToString() + unknown + unknown
    stranger = WakuMessageAndTopic(pubsub_topic=PUBSUB)
    stranger.message.MergeFromString(body)
    stranger.MergeFromString(b"\x9a\x06\x01x")
    assert stranger.message.ByteSize() > 150 * 1024
    admission = judge(stranger)
    assert admission.verdicts == [ACCEPTED]
    assert admission.batch.frame(0) == judge(plain).batch.frame(0)


ONE = {"payload": b"transfer 10 to bob/al", "content": "pha/1/x/proto"}
OTHER = {"payload": b"transfer 10 to bob", "content": "/alpha/1/x/proto"}


def test_of_two_messages_with_one_hash_in_a_request_the_second_is_rejected() -> None:
    one, other = entry(**ONE), entry(**OTHER)  # type: ignore[arg-type]
    assert hash_of(one) == hash_of(other)
    admission = judge(one, other, one, other)
    assert admission.verdicts == [ACCEPTED, REJECTED, DUPLICATE, REJECTED]
    assert {tuple(each) for each in admission.refusals.values()} == {
        ("conflict", "another message has this hash; change its timestamp")
    }
    one, other = (entry(**each, ephemeral=True) for each in (ONE, OTHER))  # type: ignore[arg-type]
    relayed = judge(one, other, one).ephemerals
    assert [each.content_topic for each in relayed] == ["pha/1/x/proto", "/alpha/1/x/proto"]


def test_a_refused_copy_does_not_shadow_a_good_one() -> None:
    admission = judge(entry(b"1", proof=bytes(200_000)), entry(b"1"))
    assert admission.verdicts == [REJECTED, ACCEPTED]
    assert admission.hashes[0] == admission.hashes[1]


def test_what_the_writer_finds_in_conflict_is_rejected_wherever_it_stands() -> None:
    one, other = entry(b"1"), entry(b"2")
    admission = judge(one, other, one)
    stored = StoreResult([False, True], {0: bytes(16)})
    admission.refuse_conflicts(stored)
    assert admission.verdicts == [REJECTED, ACCEPTED, REJECTED]
    assert admission.count(stored) == (1, 0, 0, {"conflict": 2})


def test_a_publisher_s_ephemeral_message_is_relayed_once_and_no_store_s_is() -> None:
    live = entry(b"now", ephemeral=True)
    messages = [entry(b"kept"), live, live, entry(b"kept")]
    admission = judge(*messages)
    assert admission.verdicts == [ACCEPTED, EPHEMERAL, EPHEMERAL, DUPLICATE]
    assert admission.positions == [0, -1, -1, 0]
    assert admission.batch.payloads == [b"kept"]
    (relayed,) = admission.ephemerals
    assert relayed.topic_key == topic_key(PUBSUB, CONTENT)
    assert b"now" in relayed.frame
    for source in (Source.TRANSFER, Source.RESUME, Source.GOSSIP, Source.NWAKU, Source.RESTORE):
        store = Admission(CLIENT, NOW_NS, source)
        store.admit(encoded(messages[:2]))
        store.admit(encoded(messages[2:]))
        assert store.admitted.verdicts == [ACCEPTED, REJECTED, REJECTED, DUPLICATE]
        assert store.admitted.refusals[1].label == "ephemeral"
        assert store.admitted.hashes == admission.hashes
        assert not store.admitted.ephemerals


def test_topics_are_judged_by_the_policy_of_each_call() -> None:
    for _ in range(2):
        assert not label_of(judge(entry()))
        short = replace(CLIENT, max_topic_bytes=4)
        assert label_of(judge(entry(), policy=short)) == Reason.TOPIC_TOO_LONG
        sharded = replace(CLIENT, cluster=77, shards=frozenset({9}))
        assert label_of(judge(entry(), policy=sharded)) == Reason.WRONG_SHARD


def test_what_long_topics_take_is_given_back() -> None:
    size = 100 * 1024
    tracemalloc.start()
    try:
        for number in range(100):
            judge(entry(content=f"/{number}/" + "x" * size))
        stored, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stored < 20 * size


@given(st.lists(entries, max_size=6).map(lambda some: some + some[:3]))
def test_verdicts_agree_with_a_plain_reading(messages: list[WakuMessageAndTopic]) -> None:
    admission = judge(*messages)
    stored: set[bytes] = set()
    for item, verdict, digest in zip(messages, admission.verdicts, admission.hashes, strict=True):
        assert digest == hash_of(item)
        if item.message.ephemeral:
            assert verdict is EPHEMERAL
        else:
            assert verdict is (DUPLICATE if digest in stored else ACCEPTED)
            stored.add(digest)
    assert set(admission.batch.hashes) == stored


junk = st.builds(
    WakuMessageAndTopic.FromString,
    st.sampled_from(
        [b"", b"\x0a\x00", b"\x12\x00", b"\x0a\x02\x50\x01\x12\x01p", b"\x0a\x03\x12\x01\x00"]
    ),
)


@given(st.lists(junk | entries, max_size=8), st.integers(-(2**70), 2**70))
def test_no_message_and_no_clock_makes_admission_raise(
    messages: list[WakuMessageAndTopic], now_ns: int
) -> None:
    peer = Policy(max_drift_ns=DRIFT_NS, publisher=False)
    for policy in (CLIENT, peer, SHARDED, Policy(None, horizon_ns=now_ns)):
        check(admit(messages, now_ns, policy), messages)


# Clients

ANYWHERE = Principal("anybody", frozenset({Right.PUBLISH}))
INSIDE = Principal("alice", frozenset({Right.PUBLISH}), TopicRights(("/p/1",), ("/app/",)))
items = st.builds(
    entry,
    st.sampled_from([b"", b"a", b"b", codec.encode("c", "id-1"), codec.encode("c", "id-2")]),
    pubsub=st.sampled_from(["/p/1", "/p/2", ""]),
    content=st.sampled_from(["/app/chat", "/app/log", "/else"]),
    timestamp=st.sampled_from([NOW_NS, NOW_NS + 1, 5, None]),
    ephemeral=st.sampled_from([None, True]),
)


def publish(
    messages: Sequence[WakuMessageAndTopic], client: Principal = ANYWHERE, chunk: int = 500
) -> Admitted:
    admission = Admission(CLIENT, NOW_NS, Source.CLIENT, client)
    for start in range(0, len(messages), chunk):
        admission.admit(encoded(messages[start : start + chunk]))
    admission.admitted.batch.check()
    return admission.admitted


@given(st.lists(items, max_size=30), st.integers(1, 31), st.sampled_from([ANYWHERE, INSIDE]))
def test_a_request_may_be_cut_anywhere_and_each_message_is_counted_once(
    messages: list[WakuMessageAndTopic], chunk: int, client: Principal
) -> None:
    found = publish(messages, client, chunk)
    assert found == publish(messages, client)
    counted = found.count([index % 2 == 0 for index in range(len(found.batch))])
    assert counted.stored == -(-len(found.batch) // 2)
    assert counted.ephemeral == found.verdicts.count(EPHEMERAL)
    rejected = sum(counted.rejected.values())
    assert rejected == found.verdicts.count(REJECTED)
    assert len(messages) == counted.stored + counted.duplicate + counted.ephemeral + rejected


@given(st.lists(items, max_size=30), st.integers(1, 31))
def test_a_client_s_topics_only_add_refusals(
    messages: list[WakuMessageAndTopic], chunk: int
) -> None:
    free, bound = publish(messages), publish(messages, INSIDE, chunk)
    for index, message in enumerate(messages):
        names = message.pubsub_topic, message.message.content_topic
        if free.verdicts[index] is REJECTED or INSIDE.topics.allows(*names):
            assert bound.verdicts[index] is free.verdicts[index]
        else:
            assert bound.refusals[index].label == "outside_topics"
    assert bound.hashes == free.hashes
    assert all(INSIDE.topics.allows(*names) for names in bound.batch.topics.values())
    assert all(INSIDE.topics.allows(e.pubsub_topic, e.content_topic) for e in bound.ephemerals)


@pytest.mark.parametrize(("limit", "verdict"), [(100, ACCEPTED), (20, REJECTED)])
def test_a_client_may_have_a_smaller_message_limit(limit: int, verdict: Verdict) -> None:
    client = Principal("a", frozenset(Right), limits=ClientLimits(message_bytes=limit))
    assert publish([entry(b"x" * 50)], client).verdicts == [verdict]


def test_sds_messages_are_indexed_at_their_place_in_the_whole_batch() -> None:
    payloads = [b"a", codec.encode("c", "1"), b"b", codec.encode("c", "2")]
    batch = publish([entry(payload) for payload in payloads], ANYWHERE, 2).batch
    assert batch.sds_index == [1, 3]
    assert [metadata.message_id for metadata in batch.sds] == [b"1", b"2"]
