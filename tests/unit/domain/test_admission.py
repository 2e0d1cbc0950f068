import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.admission import Admitted, Verdict
from store.messages.conflicts import StoreResult
from storenode.client.messages import hash_of
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.rules import Policy, Reason, Refusal
from storenode.message.topics import topic_key
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import Decoding, admit
from tests.unit.builders import CONTENT, NOW_NS, PUBSUB, entries, entry

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
DRIFT_NS = 20 * SECOND_NS
CLIENT = Policy(max_drift_ns=DRIFT_NS)
PEER = Policy(max_drift_ns=DRIFT_NS, publisher=False)
RESTORE = Policy(DRIFT_NS, NOW_NS - DAY_NS, publisher=False, below_horizon=True)


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
        assert (verdict is Verdict.REJECTED) == (index in admission.refusals)
        if verdict in {Verdict.ACCEPTED, Verdict.DUPLICATE}:
            assert admission.batch.hashes[position] == digest
        else:
            assert position == -1
            relayed = any(one.message_hash == digest for one in admission.ephemerals)
            assert relayed or verdict is Verdict.REJECTED


def refusal(message: WakuMessageAndTopic, policy: Policy = CLIENT) -> Refusal:
    admission = judge(message, policy=policy)
    assert admission.verdicts == [Verdict.REJECTED]
    assert admission.positions == [-1]
    assert len(admission.batch) == 0
    return admission.refusals[0]


def accepts(message: WakuMessageAndTopic, policy: Policy) -> bool:
    return judge(message, policy=policy).verdicts == [Verdict.ACCEPTED]


def test_a_refused_copy_does_not_shadow_a_good_one() -> None:
    admission = judge(entry(b"1", proof=bytes(200_000)), entry(b"1"))
    assert admission.verdicts == [Verdict.REJECTED, Verdict.ACCEPTED]
    assert admission.hashes[0] == admission.hashes[1]


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        (WakuMessageAndTopic(pubsub_topic=PUBSUB), Reason.MISSING_MESSAGE, "no message"),
        (entry(pubsub=""), Reason.MISSING_TOPIC, "pubsub topic is empty"),
        (entry(content=""), Reason.MISSING_TOPIC, "content topic is empty"),
        (entry(pubsub="/a\0b"), Reason.TOPIC_NUL, "pubsub topic has a NUL character at byte 2"),
        (entry(content="\0"), Reason.TOPIC_NUL, "content topic has a NUL character at byte 0"),
        (entry(pubsub="p" * 1025), Reason.TOPIC_TOO_LONG, "1025 bytes: use at most 1024"),
        (entry(content="é" * 513), Reason.TOPIC_TOO_LONG, "1026 bytes: use at most 1024"),
        (entry(timestamp=None), Reason.MISSING_TIMESTAMP, "no timestamp"),
        (entry(timestamp=0), Reason.BAD_TIMESTAMP, "timestamp 0 is not greater than 0"),
        (entry(timestamp=-5), Reason.BAD_TIMESTAMP, "timestamp -5 is not greater than 0"),
        (entry(meta=bytes(65)), Reason.META_TOO_LONG, "meta has 65 bytes: send at most 64"),
    ],
)
def test_each_fault_has_its_reason_and_sentence(
    message: WakuMessageAndTopic, reason: Reason, words: str
) -> None:
    found = refusal(message)
    assert found.label is reason
    assert words in found.sentence


def test_a_message_just_within_the_limits_is_accepted() -> None:
    for limit in ({"pubsub": "p" * 1024}, {"content": "é" * 512}, {"meta": bytes(64)}):
        assert accepts(entry(b"", **limit), CLIENT)


def test_the_size_limit_is_that_of_the_encoded_message() -> None:
    overhead = entry(bytes(150_000)).message.ByteSize() - 150_000
    largest = 150 * 1024 - overhead
    assert accepts(entry(bytes(largest)), CLIENT)
    found = refusal(entry(bytes(largest + 1)))
    assert found.label is Reason.TOO_LARGE
    assert "153601 bytes: send at most 153600" in found.sentence


def test_unknown_fields_are_dropped_before_anything_is_measured() -> None:
    plain = entry(b"data")
    unknown = b"\x9a\x06\x80\xf1\x04" + bytes(80_000)
    body = plain.message.SerializeToString() + unknown + unknown
    stranger = WakuMessageAndTopic(pubsub_topic=PUBSUB)
    stranger.message.MergeFromString(body)
    stranger.MergeFromString(b"\x9a\x06\x01x")
    assert stranger.message.ByteSize() > 150 * 1024
    admission = judge(stranger)
    assert admission.verdicts == [Verdict.ACCEPTED]
    assert admission.batch.frame(0) == judge(plain).batch.frame(0)


@pytest.mark.parametrize(
    ("offset_ns", "policy", "accepted"),
    [
        (DRIFT_NS, CLIENT, True),
        (DRIFT_NS + 1, CLIENT, False),
        (-DAY_NS, Policy(None, NOW_NS - DAY_NS), True),
        (-DAY_NS - 1, Policy(None, NOW_NS - DAY_NS), False),
        (-DAY_NS - 1, Policy(2 * DAY_NS, NOW_NS - DAY_NS, publisher=False), False),
        (1 - NOW_NS, RESTORE, True),
        (-NOW_NS, RESTORE, False),
        (-DRIFT_NS, CLIENT, True),
        (-DRIFT_NS - 1, CLIENT, False),
        (1 - NOW_NS, PEER, True),
        (DAY_NS, Policy(max_drift_ns=None), True),
        (DAY_NS + 1, Policy(max_drift_ns=None), False),
        (MAX_TIMESTAMP_NS - NOW_NS, Policy(max_drift_ns=2**80), True),
    ],
)
def test_a_timestamp_is_bound_by_the_clock(offset_ns: int, policy: Policy, accepted: bool) -> None:
    assert accepts(entry(timestamp=NOW_NS + offset_ns), policy) is accepted


def test_the_refusals_of_a_timestamp_tell_the_numbers() -> None:
    late = refusal(entry(timestamp=NOW_NS + 35 * SECOND_NS + SECOND_NS // 5))
    assert late.label is Reason.TOO_NEW
    assert "35.2 s later than this node's clock, which allows 20 s" in late.sentence
    early = refusal(entry(timestamp=NOW_NS - 3_600 * SECOND_NS))
    assert early.label is Reason.TOO_OLD
    assert "3600 s earlier than this node's clock, which allows 20 s" in early.sentence
    pruned = refusal(entry(timestamp=NOW_NS - 1), Policy(DRIFT_NS, horizon_ns=NOW_NS))
    assert pruned.label is Reason.BELOW_HORIZON
    assert "1 ns older than the oldest message that this node keeps" in pruned.sentence


SHARDED = Policy(DRIFT_NS, cluster=1, shards=frozenset({4, 7}))


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("/waku/2/rs/1/5", "is shard 5 of cluster 1: this node keeps shards 4, 7 of cluster 1"),
        ("/waku/2/rs/2/4", "is shard 4 of cluster 2"),
        ("/waku/2/default-waku/proto", "names no shard"),
        ("/waku/2/rs/1/04", "names no shard"),
    ],
)
def test_other_shards_and_named_topics_are_refused(topic: str, words: str) -> None:
    found = refusal(entry(pubsub=topic), SHARDED)
    assert found.label is Reason.WRONG_SHARD
    assert words in found.sentence


def test_limits_of_the_policy_are_obeyed() -> None:
    policy = Policy(DRIFT_NS, max_message_bytes=100, max_meta_bytes=2, max_topic_bytes=30)
    assert accepts(entry(b"x", meta=b"ab"), policy)
    assert refusal(entry(bytes(100)), policy).label is Reason.TOO_LARGE
    assert refusal(entry(meta=b"abc"), policy).label is Reason.META_TOO_LONG
    assert refusal(entry(content="c" * 31), policy).label is Reason.TOPIC_TOO_LONG


def test_an_ephemeral_message_is_relayed_once_and_not_stored() -> None:
    live = entry(b"now", ephemeral=True)
    admission = judge(entry(b"kept"), live, live)
    assert admission.verdicts == [Verdict.ACCEPTED, Verdict.EPHEMERAL, Verdict.EPHEMERAL]
    assert admission.positions == [0, -1, -1]
    assert admission.batch.payloads == [b"kept"]
    (relayed,) = admission.ephemerals
    assert relayed.topic_key == topic_key(PUBSUB, CONTENT)
    assert b"now" in relayed.frame


@pytest.mark.parametrize(
    ("message", "has_hash"),
    [
        (WakuMessageAndTopic(pubsub_topic=PUBSUB), False),
        (entry(timestamp=0), False),
        (entry(timestamp=-1), True),
        (entry(bytes(160_000)), True),
    ],
)
def test_a_refused_message_has_a_hash_when_one_can_be_computed(
    message: WakuMessageAndTopic, has_hash: bool
) -> None:
    assert judge(message).hashes == [hash_of(message) if has_hash else b""]


def test_of_two_messages_with_one_hash_in_a_request_the_second_is_rejected() -> None:
    one = entry(b"transfer 10 to bob/al", content="pha/1/x/proto")
    other = entry(b"transfer 10 to bob", content="/alpha/1/x/proto")
    assert hash_of(one) == hash_of(other)
    admission = judge(one, other, one, other)
    assert admission.verdicts == [
        Verdict.ACCEPTED,
        Verdict.REJECTED,
        Verdict.DUPLICATE,
        Verdict.REJECTED,
    ]
    assert {tuple(each) for each in admission.refusals.values()} == {
        ("conflict", "another message has this hash; change its timestamp")
    }


def test_of_two_ephemeral_messages_with_one_hash_both_are_relayed() -> None:
    one = entry(b"transfer 10 to bob/al", content="pha/1/x/proto", ephemeral=True)
    other = entry(b"transfer 10 to bob", content="/alpha/1/x/proto", ephemeral=True)
    relayed = judge(one, other, one).ephemerals
    assert [each.content_topic for each in relayed] == ["pha/1/x/proto", "/alpha/1/x/proto"]


def test_what_the_writer_finds_in_conflict_is_rejected_wherever_it_stands() -> None:
    one, other = entry(b"1"), entry(b"2")
    admission = judge(one, other, one)
    stored = StoreResult([False, True], {0: bytes(16)})
    admission.refuse_conflicts(stored)
    assert admission.verdicts == [Verdict.REJECTED, Verdict.ACCEPTED, Verdict.REJECTED]
    assert admission.count(stored) == (1, 0, 0, {"conflict": 2})


def test_topics_are_judged_by_the_policy_of_each_call() -> None:
    message = entry()
    for _ in range(2):
        assert accepts(message, CLIENT)
        short = refusal(message, replace(CLIENT, max_topic_bytes=4))
        assert short.label is Reason.TOPIC_TOO_LONG
        sharded = refusal(message, replace(CLIENT, cluster=77, shards=frozenset({9})))
        assert sharded.label is Reason.WRONG_SHARD


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
        message = item.message
        assert digest == hash_of(item)
        if message.ephemeral:
            assert verdict is Verdict.EPHEMERAL
        else:
            assert verdict is (Verdict.DUPLICATE if digest in stored else Verdict.ACCEPTED)
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
    for policy in (CLIENT, PEER, SHARDED, Policy(None, horizon_ns=now_ns)):
        check(admit(messages, now_ns, policy), messages)
