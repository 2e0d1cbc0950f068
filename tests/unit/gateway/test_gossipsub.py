"""The gossipsub router: recorded RPCs of nwaku, networks of routers, and peers that lie."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.gateway import gossipsub, limits
from store.gateway.gossipsub import (
    BACKOFF_S,
    MAX_MESH_PEERS,
    QUIET_S,
    Arrived,
    Disconnect,
    GossipMessage,
    Router,
    RouterEffect,
    SendRpc,
    encode_control,
    encode_message,
    encode_subscriptions,
    ids_of,
    messages_of,
    parse_rpc,
)
from store.gateway.limits import MAX_RPC_BYTES, MAX_RPC_ENTRIES, MAX_RPC_IDS
from storenode.wire.storenode.internal.v1 import libp2p_pb2 as wire

VECTORS: Final = json.loads(
    gzip.decompress((Path(__file__).parents[2] / "vectors" / "waku_relay.json.gz").read_bytes())
)
TOPICS: Final = ("/waku/2/rs/7/0", "/waku/2/rs/7/1")
ONE: Final = TOPICS[0]


def router(seed: int = 1, **more: bool) -> Router:
    return Router(TOPICS, random.Random(seed), **more)


def with_peers(
    *keys: str, is_outbound: bool = False, topics: Sequence[str] = (ONE,), **more: bool
) -> Router:
    """Return a router whose peers have subscribed to topics."""
    subject = router(**more)
    for key in keys:
        subject.join(0, key, is_outbound=is_outbound)
        subject.receive(0, key, encode_subscriptions(topics))
    return subject


def sent(effects: list[RouterEffect]) -> list[tuple[str, bytes]]:
    return [(each.peer, each.rpc) for each in effects if isinstance(each, SendRpc)]


@pytest.mark.parametrize("rpc", VECTORS["rpcs"])
def test_recorded_rpcs_are_read_and_written_alike(rpc: str) -> None:
    data = bytes.fromhex(rpc)
    parsed = parse_rpc(data)
    control = parsed.control
    again = [wire.GossipsubRpc(subscriptions=parsed.subscriptions).SerializeToString()]
    again += [encode_message(each.topic, each.data) for each in messages_of(parsed)]
    again += [
        encode_control("ihave", each.topic, message_ids=ids_of(each)) for each in control.ihave
    ]
    for kind in ("iwant", "idontwant"):
        again += [encode_control(kind, message_ids=ids_of(each)) for each in getattr(control, kind)]
    again += [encode_control("graft", each.topic) for each in control.graft]
    again += [
        encode_control("prune", each.topic, backoff_s=each.backoff_s) for each in control.prune
    ]
    parsed.DiscardUnknownFields()
    assert parse_rpc(b"".join(again)) == parsed != wire.GossipsubRpc()


def test_message_ids_are_those_of_nwaku() -> None:
    for each in VECTORS["messages"]:
        message = GossipMessage(each["pubsub_topic"], bytes.fromhex(each["bytes"]))
        assert message.message_id.hex() == each["gossip_id"]


@given(st.binary(max_size=300))
def test_any_bytes_are_an_rpc_or_a_value_error(data: bytes) -> None:
    subject = router()
    subject.join(0, "a", is_outbound=False)
    subject.receive(0, "a", data)
    subject.check()


@pytest.mark.parametrize(
    "data",
    [
        encode_subscriptions(["t"] * (MAX_RPC_ENTRIES + 1)),
        b"\x0a\x00" * 70_000,
        encode_control("ihave", ONE, message_ids=[bytes(32)] * (MAX_RPC_IDS + 1)),
        encode_control("iwant", message_ids=[b""] * (MAX_RPC_IDS + 1)),
        b"".join([encode_control("graft", "t")] * (MAX_RPC_ENTRIES + 1)),
        b"".join([encode_control("idontwant", message_ids=[bytes(32)])] * (MAX_RPC_ENTRIES + 1)),
        wire.GossipsubRpc(messages=[wire.GossipsubMessage(data=b"no topic")]).SerializeToString(),
        wire.GossipsubRpc(
            control=wire.GossipsubControl(ihave=[wire.GossipsubIds()])
        ).SerializeToString(),
        b"\x12\x03\x22\x01\xff",
    ],
)
def test_rpcs_that_no_honest_peer_sends_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"RPC has more|are no GossipsubRpc|field topic"):
        parse_rpc(data)


def test_ids_of_other_sizes_and_unknown_fields_are_dropped() -> None:
    ids = [b"", bytes(31), bytes(32), bytes(33)]
    control = parse_rpc(
        encode_control("ihave", ONE, message_ids=ids)
        + encode_control("iwant", message_ids=ids)
        + b"\x0dsize" * 9
    ).control
    assert ids_of(*control.ihave) == ids_of(*control.iwant) == [bytes(32)]


def test_a_graft_within_the_backoff_is_pruned_and_repeated_ones_cut_the_peer_off() -> None:
    subject = router()
    for number in range(MAX_MESH_PEERS + 1):
        subject.join(0, str(number), is_outbound=False)
        # Of other topics nothing is remembered: `check` below.
        subject.receive(0, str(number), encode_subscriptions([ONE, "x" * 10**5]))
        effects = subject.receive(1, str(number), encode_control("graft", ONE))
    last = str(MAX_MESH_PEERS)
    assert sent(effects) == [(last, encode_control("prune", ONE, backoff_s=BACKOFF_S))]
    assert len(subject._mesh[ONE]) == MAX_MESH_PEERS
    reasons = []
    for _ in range(200):
        effects = subject.receive(2, last, encode_control("graft", ONE))
        reasons += [each.reason for each in effects if isinstance(each, Disconnect)]
    assert reasons == ["it asks for a place in the mesh too often"]
    assert len(subject._peers) == MAX_MESH_PEERS
    assert isinstance(subject.join(3, last, is_outbound=False)[0], Disconnect)
    for now in range(4, 60):
        subject.heartbeat(now)
    assert not isinstance(subject.join(60, last, is_outbound=False)[0], Disconnect)
    subject.check()


def test_a_message_goes_once_to_peers_of_the_mesh_and_new_ones_that_do_not_refuse_it() -> None:
    subject, message = with_peers(*"abc"), GossipMessage(ONE, b"x")
    subject.receive(1, "b", encode_control("idontwant", message_ids=[message.message_id]))
    assert subject.receive(1, "c", encode_message(ONE, b"x")) == [Arrived("c", message)]
    assert sent(subject.accept("c", message)) == [("a", encode_message(ONE, b"x"))]
    assert subject.publish(1, message) == []


def test_the_largest_announcement_is_within_the_limits_of_nwaku() -> None:
    ids = [number.to_bytes(32, "big") for number in range(gossipsub.IHAVE_IDS)]
    rpc = encode_control("ihave", ONE, message_ids=ids)
    assert len(rpc) <= MAX_RPC_BYTES
    (announced,) = parse_rpc(rpc).control.ihave
    assert (announced.topic, ids_of(announced)) == (ONE, ids)


def test_backoffs_are_bounded_and_outlive_a_new_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BACKOFFS", 20)
    subject = router()
    for number in range(30):
        subject.join(0, f"stranger {number}", is_outbound=False)
        subject.receive(0, f"stranger {number}", encode_control("prune", ONE, backoff_s=2**40))
        subject.leave(f"stranger {number}")
        subject.check()
    subject.join(1, "stranger 29", is_outbound=True)
    subject.receive(1, "stranger 29", encode_subscriptions([ONE]))
    assert not any(sent(subject.heartbeat(now)) for now in range(2, 3_590, 10)), "no GRAFT"


def test_strangers_do_not_keep_the_peers_of_this_router_out_of_its_mesh() -> None:
    strangers = [f"stranger {number}" for number in range(MAX_MESH_PEERS)]
    subject = with_peers(*strangers)
    for key in strangers:
        subject.receive(0, key, encode_control("graft", ONE))
    subject.join(0, "own", is_outbound=True)
    subject.receive(0, "own", encode_subscriptions([ONE]))
    subject.receive(QUIET_S + 0.5, strangers[0], encode_message(ONE, b"early"))
    early = GossipMessage(ONE, b"early")
    assert "own" in dict(sent(subject.accept(strangers[0], early))), "not in the mesh yet"
    assert ("own", encode_control("graft", ONE)) in sent(subject.heartbeat(QUIET_S + 1))
