"""The soak's checker bites: a history in which one thing is wrong breaks just one rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.soak.checker.hashing import fingerprint, message_hash
from bench.soak.checker.history import Ack, History, Pruned, Published, Replaced, Synced
from bench.soak.checker.stores import Holding, Served, check_stores
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/message_hash.json").read_text())
LEGAL = [case for case in VECTORS["cases"] if 0 < int(case["timestamp"] or 0) < 2**63]
"""Those that a node may store."""

PUBSUB = "/waku/2/rs/1/0"
NODES = ("a", "b", "c")
COUNT = 10


def message(number: int) -> WakuMessage:
    return WakuMessage(
        payload=b"%d" % number, content_topic="/soak/1/test/proto", timestamp=1_000 + number
    )


def served(number: int) -> Served:
    """How a node serves a message."""
    made = message(number)
    digest = message_hash(made, PUBSUB)
    return Served(digest, digest, fingerprint(made, PUBSUB), made.timestamp)


def digest_of(number: int) -> bytes:
    return served(number).claimed


class World:
    """Ten messages, acknowledged at second 10 by node a, and held by everybody."""

    def __init__(self) -> None:
        self.history = History()
        self.held = {name: [served(number) for number in range(COUNT)] for name in NODES}
        self.by_hash = {name: {digest_of(number) for number in range(COUNT)} for name in NODES}
        self.followed = {name: [digest_of(number) for number in range(COUNT)] for name in NODES}
        for number in range(COUNT):
            self.publish(number)
            self.acknowledge(number)

    def publish(self, number: int) -> None:
        made = message(number)
        self.history.publish(
            [(digest_of(number), Published(fingerprint(made, PUBSUB), made.timestamp, "somebody"))]
        )

    def acknowledge(self, number: int, at_s: float = 10.0, confirms: int = 0) -> None:
        self.history.acknowledge([digest_of(number)], Ack("a#1", at_s, confirms))

    def lose(self, number: int, *names: str) -> None:
        for name in names:
            self.held[name] = [
                each for each in self.held[name] if each.claimed != digest_of(number)
            ]
            self.by_hash[name].discard(digest_of(number))
            self.followed[name].remove(digest_of(number))

    def throw_a_away(self, at_s: float) -> None:
        self.history.replaced.append(Replaced("a#1", at_s))

    def broken(self) -> dict[str, str]:
        holdings = [
            Holding(
                name,
                "a#2" if name == "a" and self.history.replaced else f"{name}#1",
                self.held[name],
                self.by_hash[name],
                self.followed[name],
            )
            for name in NODES
        ]
        return {each.rule: each.sentence for each in check_stores(self.history, holdings)}


@pytest.fixture
def world() -> World:
    return World()


def test_a_good_run_has_no_violation(world: World) -> None:
    assert world.broken() == {}


def test_an_acknowledged_message_that_nobody_has_is_lost(world: World) -> None:
    world.lose(3, *NODES)
    broken = world.broken()
    assert list(broken) == ["lost"]
    assert "nobody has" in broken["lost"]
    assert digest_of(3).hex() in broken["lost"]


def test_an_acknowledged_message_that_one_node_lacks_is_lost_there(world: World) -> None:
    world.lose(3, "b")
    assert world.broken() == {
        "lost": f"1 acknowledged messages b lacks, others have: {digest_of(3).hex()}"
    }


def test_many_cases_of_one_kind_are_one_violation(world: World) -> None:
    for number in range(COUNT):
        world.lose(number, "c")
    assert world.broken()["lost"].startswith("10 acknowledged messages c lacks")
    assert world.broken()["lost"].endswith(", …")


def test_a_message_that_nobody_published_is_unknown(world: World) -> None:
    for name in NODES:
        world.held[name].append(served(COUNT))
        world.by_hash[name].add(digest_of(COUNT))
        world.followed[name].append(digest_of(COUNT))
    assert list(world.broken()) == ["unknown"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.MergeFrom(WakuMessage(payload=b"another")),
        lambda made: made.MergeFrom(WakuMessage(version=0)),
        lambda made: made.MergeFrom(WakuMessage(meta=b"")),
        lambda made: made.MergeFrom(WakuMessage(rate_limit_proof=b"x")),
        lambda made: made.MergeFrom(WakuMessage(ephemeral=False)),
    ],
)
def test_a_changed_byte_and_a_field_that_appears_are_found(
    world: World, spoil: Callable[[WakuMessage], None]
) -> None:
    made = message(4)
    spoil(made)
    world.held["b"][4] = replace(
        served(4), computed=message_hash(made, PUBSUB), fingerprint=fingerprint(made, PUBSUB)
    )
    assert list(world.broken()) == ["altered"]


def test_a_message_under_the_hash_of_another_is_altered(world: World) -> None:
    world.held["b"][4] = replace(served(4), computed=digest_of(5))
    assert list(world.broken()) == ["altered"]


def test_a_message_that_is_scanned_twice_or_out_of_order_is_found(world: World) -> None:
    world.held["a"].append(served(COUNT - 1))
    assert list(world.broken()) == ["twice"]
    world.held["a"].pop()
    world.held["b"][0], world.held["b"][1] = world.held["b"][1], world.held["b"][0]
    assert list(world.broken()) == ["order"]


def test_a_look_up_that_differs_from_the_scan_is_found(world: World) -> None:
    world.by_hash["c"].discard(digest_of(0))
    assert list(world.broken()) == ["by hash"]


def test_a_follower_that_missed_something_or_got_it_twice_is_found(world: World) -> None:
    world.followed["a"].remove(digest_of(2))
    assert "never came" in world.broken()["follow"]
    world.followed["a"] += [digest_of(2)] * 2
    assert "more than once" in world.broken()["follow"]


def test_what_was_not_acknowledged_may_be_anywhere_or_nowhere_but_is_the_same(world: World) -> None:
    world.publish(COUNT)
    assert world.broken() == {}
    world.held["a"].append(served(COUNT))
    world.by_hash["a"].add(digest_of(COUNT))
    world.followed["a"].append(digest_of(COUNT))
    assert list(world.broken()) == ["unequal"]


def test_more_confirmations_than_other_stores_are_found(world: World) -> None:
    world.acknowledge(0, confirms=3)
    assert list(world.broken()) == ["confirms"]


class TestReplaced:
    """What only a store that was thrown away had promised to hold may be lost."""

    def test_an_unconfirmed_message_may_be_lost_with_its_store(self, world: World) -> None:
        world.lose(3, *NODES)
        world.throw_a_away(at_s=11.0)
        assert world.broken() == {}

    def test_not_when_another_store_had_confirmed_it(self, world: World) -> None:
        world.acknowledge(3, confirms=1)
        world.lose(3, *NODES)
        world.throw_a_away(at_s=11.0)
        assert list(world.broken()) == ["lost"]

    def test_not_when_another_store_had_acknowledged_it_too(self, world: World) -> None:
        world.history.acknowledge([digest_of(3)], Ack("b#1", 10.0, 0))
        world.lose(3, *NODES)
        world.throw_a_away(at_s=11.0)
        assert list(world.broken()) == ["lost"]

    def test_not_when_all_had_been_seen_to_hold_it(self, world: World) -> None:
        world.lose(3, *NODES)
        world.history.synced.append(Synced(upto_s=10.5, seen_s=10.9))
        world.throw_a_away(at_s=11.0)
        assert list(world.broken()) == ["lost"]

    def test_what_was_seen_later_proves_nothing(self, world: World) -> None:
        world.lose(3, *NODES)
        world.history.synced.append(Synced(upto_s=10.5, seen_s=11.1))
        world.throw_a_away(at_s=11.0)
        assert world.broken() == {}

    def test_what_somebody_has_is_owed_to_the_new_store(self, world: World) -> None:
        world.lose(3, "a")
        world.throw_a_away(at_s=11.0)
        assert list(world.broken()) == ["lost"]


class TestRetention:
    """What an operator had dropped at one store is gone from that one, and kept by the others."""

    def test_what_is_old_enough_may_be_missing(self, world: World) -> None:
        world.lose(3, "b")
        world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=0))
        assert world.broken() == {}

    def test_what_is_younger_may_not(self, world: World) -> None:
        world.lose(4, "b")
        world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=0))
        assert list(world.broken()) == ["lost"]

    def test_nor_may_it_be_missing_elsewhere(self, world: World) -> None:
        world.lose(3, "c")
        world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=0))
        assert list(world.broken()) == ["lost"]

    def test_what_should_have_been_dropped_is_not_served(self, world: World) -> None:
        world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=1_004))
        assert world.broken()["kept"].startswith("4 messages that b serves")


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: str(case["name"]))
def test_the_hash_is_that_of_the_specification(case: dict[str, Any]) -> None:
    made = WakuMessage(
        payload=bytes.fromhex(case["payload"]),
        content_topic=case["content_topic"],
        timestamp=int(case["timestamp"]),
        meta=None if case["meta"] is None else bytes.fromhex(case["meta"]),
    )
    assert message_hash(made, case["pubsub_topic"]).hex() == case["hash"]
