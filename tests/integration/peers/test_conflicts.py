"""Messages with one hash: nodes keep the first, refuse the other, and confirm neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from storenode.client.messages import hash_of, new_message
from storenode.client.node import connect
from storenode.client.types import PublishResult, WakuMessageAndTopic
from tests.integration.peers.test_gossip import ON, metric
from tests.support.fleet import (
    NS_PER_S,
    PUBSUB,
    Fleet,
    exchanging,
    finished_resume,
    pretend_last_online,
    publish,
    status,
)
from tests.support.node import NodeProcess
from tests.support.polling import eventually

NOW = time.time_ns() - 60 * NS_PER_S
FIRST = new_message(b"transfer 10 to bob/al", "pha/1/x/proto", PUBSUB, NOW)
OTHER = new_message(b"transfer 10 to bob", "/alpha/1/x/proto", PUBSUB, NOW)
SENTENCE = "another message has this hash; change its timestamp"
CONFLICTS = "storenode_conflicts_total"


def _has_gossip_conflict(node: NodeProcess) -> bool:
    return metric(node, f'{CONFLICTS}{{source="gossip"}}') == 1


def _payload(message: WakuMessageAndTopic) -> bytes:
    return message.message.payload


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[Fleet]:
    nodes = Fleet(tmp_path_factory.mktemp("conflicts"), new_database=new_store)
    try:
        yield nodes
    finally:
        nodes.close()


async def test_a_node_rejects_a_message_whose_hash_another_one_has(fleet: Fleet) -> None:
    assert hash_of(FIRST) == hash_of(OTHER)
    node = fleet.start()
    async with connect(node.listen) as client:
        for messages in ([FIRST, OTHER], [FIRST, OTHER]):
            answers = dict(
                zip(map(_payload, messages), await client.publish(messages), strict=True)
            )
            refused, kept = answers[_payload(OTHER)], answers[_payload(FIRST)]
            assert (refused.outcome, refused.reason) == (PublishResult.REJECTED, SENTENCE)
            assert kept.outcome in (PublishResult.STORED, PublishResult.DUPLICATE)
        (answer,) = await client.publish([OTHER], min_confirms=1, confirm_timeout_s=60)
        assert (answer.outcome, answer.reason) == (PublishResult.REJECTED, SENTENCE)
    assert metric(node, f'{CONFLICTS}{{source="client"}}') == 3
    assert status(node)["conflicts"] == 3


async def test_stores_that_hold_different_messages_do_not_confirm_them(fleet: Fleet) -> None:
    first = fleet.start(*ON)
    await publish(first, [FIRST])
    first.kill()
    other = fleet.start(*ON, peers=[first])
    await publish(other, [OTHER])
    first.start()
    exchanging(other, 1)
    for node in (first, other):
        assert eventually(partial(_has_gossip_conflict, node))
    for node, message in ((first, FIRST), (other, OTHER)):
        async with connect(node.listen) as client:
            (answer,) = await client.publish([message], min_confirms=1, confirm_timeout_s=1)
            assert answer.outcome == PublishResult.UNCONFIRMED
            fresh = new_message(b"fresh", "/alpha/1/x/proto", PUBSUB, time.time_ns())
            (answer,) = await client.publish([fresh], min_confirms=1, confirm_timeout_s=60)
            assert answer.outcome == PublishResult.STORED


async def test_a_resume_keeps_the_own_message(fleet: Fleet) -> None:
    peer = fleet.start()
    await publish(peer, [OTHER])
    node = fleet.start(peers=[peer])
    await publish(node, [FIRST])
    node.kill()
    pretend_last_online(node, NOW - 600 * NS_PER_S)
    node.start()
    assert eventually(lambda: finished_resume(node) is not None)
    assert metric(node, f'{CONFLICTS}{{source="resume"}}') == 1
    async with connect(node.listen) as client:
        (answer,) = await client.publish([FIRST])
        assert answer.outcome == PublishResult.DUPLICATE
