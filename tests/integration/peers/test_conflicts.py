"""Messages with one hash: nodes keep the first, refuse the other, and confirm neither."""

from __future__ import annotations

import time
from functools import partial

from storenode.client.messages import hash_of, new_message
from storenode.client.node import connect
from storenode.client.types import PublishResult
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


async def test_a_node_rejects_the_second_message_of_a_hash_and_stores_confirm_neither(
    fleet: Fleet,
) -> None:
    assert hash_of(FIRST) == hash_of(OTHER)
    first = fleet.start(*ON)
    async with connect(first.listen) as client:
        for outcome in (PublishResult.STORED, PublishResult.DUPLICATE):
            kept, refused = await client.publish([FIRST, OTHER])
            assert kept.outcome == outcome
            assert (refused.outcome, refused.reason) == (PublishResult.REJECTED, SENTENCE)
        (answer,) = await client.publish([OTHER], min_confirms=1, confirm_timeout_s=60)
        assert (answer.outcome, answer.reason) == (PublishResult.REJECTED, SENTENCE)
    assert metric(first, f'{CONFLICTS}{{source="client"}}') == 3
    assert status(first)["conflicts"] == 3
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
