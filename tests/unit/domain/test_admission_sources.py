from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.access import Principal, Right
from store.domain.admission import Admission, Admitted, Verdict
from store.domain.ports import Source, TopicRights
from store.domain.quota import ClientLimits
from storenode.message.hashing import message_hash
from storenode.message.rules import Policy
from storenode.sds import codec
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import encoded
from tests.unit.builders import NOW_NS, entry

POLICY = Policy(max_drift_ns=20 * 10**9)
ANYWHERE = Principal("anybody", frozenset({Right.PUBLISH}))
INSIDE = Principal("alice", frozenset({Right.PUBLISH}), TopicRights(("/p/1",), ("/app/",)))


def item(payload: bytes = b"x", content: str = "/app/chat", **more: Any) -> WakuMessageAndTopic:  # noqa: ANN401
    return entry(payload, **{"pubsub": "/p/1", "content": content, **more})


def publish(
    messages: Sequence[WakuMessageAndTopic], client: Principal = ANYWHERE, chunk: int = 500
) -> Admitted:
    admission = Admission(POLICY, NOW_NS, Source.CLIENT, client)
    for start in range(0, len(messages), chunk):
        admission.admit(encoded(messages[start : start + chunk]))
    admission.admitted.batch.check()
    return admission.admitted


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
    messages: list[WakuMessageAndTopic], chunk: int, client: Principal
) -> None:
    assert publish(messages, client, chunk) == publish(messages, client)


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


@pytest.mark.parametrize(("limit", "verdict"), [(100, Verdict.ACCEPTED), (20, Verdict.REJECTED)])
def test_a_client_may_have_a_smaller_message_limit(limit: int, verdict: Verdict) -> None:
    client = Principal("a", frozenset(Right), limits=ClientLimits(message_bytes=limit))
    assert publish([item(b"x" * 50)], client).verdicts == [verdict]


def test_sds_messages_are_indexed_at_their_place_in_the_whole_batch() -> None:
    messages = [item(b"a"), item(codec.encode("c", "1")), item(b"b"), item(codec.encode("c", "2"))]
    batch = publish(messages, ANYWHERE, 2).batch
    assert batch.sds_index == [1, 3]
    assert [metadata.message_id for metadata in batch.sds] == [b"1", b"2"]


HORIZON_NS = NOW_NS - 24 * 3600 * 10**9
STORES = [Source.TRANSFER, Source.RESUME, Source.GOSSIP, Source.NWAKU, Source.RELAY]


def judge(source: Source, message: WakuMessageAndTopic) -> str:
    """Return the verdict of a node with a horizon on one message: a label, or nothing."""
    admission = Admission(Policy(20 * 10**9, HORIZON_NS), NOW_NS, source)
    admission.admit(encoded([message]))
    assert len(admission.admitted.batch) == (not admission.admitted.refusals)
    return admission.admitted.refusals[0].label if admission.admitted.refusals else ""


@pytest.mark.parametrize(
    ("age_s", "client", "store", "restore"),
    [
        (0, "", "", ""),
        (21, "too_old", "", ""),
        (25 * 3600, "too_old", "below_horizon", ""),
        (-19, "", "", ""),
        (-21, "too_new", "too_new", "too_new"),
    ],
)
def test_who_brings_a_message_decides_how_old_it_may_be(
    age_s: int, client: str, store: str, restore: str
) -> None:
    timestamp = NOW_NS - age_s * 10**9
    assert judge(Source.CLIENT, item(timestamp=timestamp)) == client
    assert {judge(source, item(timestamp=timestamp)) for source in STORES} == {store}
    assert judge(Source.RESTORE, item(timestamp=timestamp)) == restore


def test_no_store_brings_ephemeral_messages() -> None:
    assert judge(Source.TRANSFER, item(ephemeral=True)) == "ephemeral"
    admission = Admission(POLICY, NOW_NS, Source.GOSSIP)
    admission.admit(encoded([item(b"a"), item(b"b", ephemeral=True)]))
    admission.admit(encoded([item(b"c", ephemeral=True), item(b"a")]))
    found = admission.admitted
    rejected = [Verdict.REJECTED] * 2
    assert found.verdicts == [Verdict.ACCEPTED, *rejected, Verdict.DUPLICATE]
    assert found.positions == [0, -1, -1, 0]
    assert found.hashes[1] == message_hash("/p/1", b"b", "/app/chat", None, NOW_NS)
    assert not found.ephemerals


@given(st.lists(items, max_size=30), st.integers(1, 31))
def test_every_message_of_a_request_is_counted_once(
    messages: list[WakuMessageAndTopic], chunk: int
) -> None:
    found = publish(messages, INSIDE, chunk)
    stored = [index % 2 == 0 for index in range(len(found.batch))]
    counted = found.count(stored)
    assert counted.stored == sum(stored)
    assert counted.ephemeral == found.verdicts.count(Verdict.EPHEMERAL)
    assert sum(counted.rejected.values()) == found.verdicts.count(Verdict.REJECTED)
    assert len(messages) == (
        counted.stored + counted.duplicate + counted.ephemeral + sum(counted.rejected.values())
    )
