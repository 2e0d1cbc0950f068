from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message.hashing import message_hash
from message.validate import Policy, Verdict, admit
from sds import codec
from store.domain.access import Client, PublishDoor, Published, Right
from store.domain.ports import TopicRights
from store.domain.quota import ClientLimits
from wire.waku.message.v1.message_pb2 import WakuMessage
from wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

NOW_NS = 1_763_625_600_000_000_000
POLICY = Policy(max_drift_ns=20 * 10**9)
ANYWHERE = Client("anybody", frozenset({Right.PUBLISH}))
INSIDE = Client("alice", frozenset({Right.PUBLISH}), TopicRights(("/p/1",), ("/app/",)))


def item(
    payload: bytes = b"x",
    pubsub: str = "/p/1",
    content: str = "/app/chat",
    timestamp: int | None = NOW_NS,
    ephemeral: bool | None = None,
) -> WakuMessageAndTopic:
    message = WakuMessage(
        payload=payload, content_topic=content, timestamp=timestamp, ephemeral=ephemeral
    )
    return WakuMessageAndTopic(message=message, pubsub_topic=pubsub)


def publish(
    messages: Sequence[WakuMessageAndTopic], client: Client = ANYWHERE, chunk: int = 500
) -> Published:
    door = PublishDoor(POLICY, NOW_NS, client)
    for start in range(0, len(messages), chunk):
        door.admit(messages[start : start + chunk])
    door.published.batch.check()
    return door.published


payloads = st.sampled_from(
    [b"", b"a", b"b", codec.encode("channel", "id-1"), codec.encode("channel", "id-2")]
)
items = st.builds(
    item,
    payloads,
    pubsub=st.sampled_from(["/p/1", "/p/2", ""]),
    content=st.sampled_from(["/app/chat", "/app/log", "/else"]),
    timestamp=st.sampled_from([NOW_NS, NOW_NS + 1, 5, None]),
    ephemeral=st.sampled_from([None, True]),
)


@given(st.lists(items, max_size=30), st.integers(1, 31), st.sampled_from([ANYWHERE, INSIDE]))
def test_the_result_does_not_depend_on_where_a_request_is_cut(
    messages: list[WakuMessageAndTopic], chunk: int, client: Client
) -> None:
    assert publish(messages, client, chunk) == publish(messages, client)


@given(st.lists(items, max_size=30), st.integers(1, 31))
def test_without_restrictions_it_is_what_admission_says(
    messages: list[WakuMessageAndTopic], chunk: int
) -> None:
    whole = admit(messages, NOW_NS, POLICY)
    codec.index_batch(whole.batch)
    found = publish(messages, ANYWHERE, chunk)
    assert found.batch == whole.batch
    assert found.verdicts == whole.verdicts
    assert found.hashes == whole.hashes
    assert [one.message_hash for one in found.ephemerals] == [one.hash for one in whole.ephemerals]
    assert {index: why.sentence for index, why in found.refusals.items()} == {
        index: why.sentence for index, why in whole.rejections.items()
    }


@given(st.lists(items, max_size=30), st.integers(1, 31))
def test_a_client_s_topics_only_add_refusals(
    messages: list[WakuMessageAndTopic], chunk: int
) -> None:
    free, bound = publish(messages), publish(messages, INSIDE, chunk)
    for index, message in enumerate(messages):
        names = message.pubsub_topic, message.message.content_topic
        if free.verdicts[index] is Verdict.REJECTED or INSIDE.topics.allows(*names):
            assert bound.verdicts[index] is free.verdicts[index]
        else:
            assert bound.refusals[index].label == "outside_topics"
    assert bound.refusals.keys() == {
        index for index, verdict in enumerate(bound.verdicts) if verdict is Verdict.REJECTED
    }
    assert bound.hashes == free.hashes
    assert all(INSIDE.topics.allows(*names) for names in bound.batch.topics.values())
    assert all(INSIDE.topics.allows(e.pubsub_topic, e.content_topic) for e in bound.ephemerals)


def test_accepted_positions_name_the_record_in_the_batch() -> None:
    messages = [item(b"a"), item(b"b", content="/else"), item(b"c"), item(b"a")]
    found = publish(messages, INSIDE, 2)
    assert found.verdicts == [
        Verdict.ACCEPTED,
        Verdict.REJECTED,
        Verdict.ACCEPTED,
        Verdict.DUPLICATE,
    ]
    assert [found.positions[index] for index in (0, 2, 3)] == [0, 1, 0]
    assert found.batch.payloads == [b"a", b"c"]


def test_a_refusal_by_topic_names_the_client_and_keeps_the_hash() -> None:
    found = publish([item(content="/else")], INSIDE)
    assert "client alice" in found.refusals[0].sentence
    assert found.hashes == [message_hash("/p/1", b"x", "/else", None, NOW_NS)]


def test_ephemeral_messages_carry_their_topics() -> None:
    found = publish([item(ephemeral=True), item(ephemeral=True)], INSIDE, 1)
    assert found.verdicts == [Verdict.EPHEMERAL, Verdict.EPHEMERAL]
    (relayed,) = found.ephemerals
    assert (relayed.pubsub_topic, relayed.content_topic) == ("/p/1", "/app/chat")
    assert relayed.message_hash == found.hashes[0]
    assert not found.batch.hashes


@pytest.mark.parametrize(("limit", "verdict"), [(100, Verdict.ACCEPTED), (20, Verdict.REJECTED)])
def test_a_client_may_have_a_smaller_message_limit(limit: int, verdict: Verdict) -> None:
    client = Client("a", frozenset(Right), limits=ClientLimits(message_bytes=limit))
    assert publish([item(b"x" * 50)], client).verdicts == [verdict]


def test_a_client_s_message_limit_does_not_lift_the_node_s() -> None:
    client = Client("a", frozenset(Right), limits=ClientLimits(message_bytes=100))
    door = PublishDoor(Policy(None, max_message_bytes=20), NOW_NS, client)
    door.admit([item(b"x" * 50)])
    assert door.published.verdicts == [Verdict.REJECTED]


def test_sds_messages_are_indexed_at_their_place_in_the_whole_batch() -> None:
    messages = [item(b"a"), item(codec.encode("c", "1")), item(b"b"), item(codec.encode("c", "2"))]
    batch = publish(messages, ANYWHERE, 2).batch
    assert batch.sds_index == [1, 3]
    assert [metadata.message_id for metadata in batch.sds] == [b"1", b"2"]
