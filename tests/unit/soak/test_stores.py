"""The soak's checker bites: a history in which one thing is wrong breaks just one rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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

    def hold(self, number: int, *names: str) -> None:
        for name in names:
            self.held[name].append(served(number))
            self.by_hash[name].add(digest_of(number))
            self.followed[name].append(digest_of(number))

    def lose(self, number: int, *names: str) -> None:
        for name in names:
            self.held[name] = [
                each for each in self.held[name] if each.claimed != digest_of(number)
            ]
            self.by_hash[name].discard(digest_of(number))
            self.followed[name].remove(digest_of(number))

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


def confirmed(world: World) -> None:
    world.acknowledge(3, confirms=1)


def acknowledged_elsewhere(world: World) -> None:
    world.history.acknowledge([digest_of(3)], Ack("b#1", 10.0, 0))


def seen_everywhere(world: World, seen_s: float = 10.9) -> None:
    world.history.synced.append(Synced(upto_s=10.5, seen_s=seen_s))


@pytest.mark.parametrize(
    ("happened", "lost_at", "found"),
    [
        (lambda _: None, NODES, []),
        (confirmed, NODES, ["lost"]),
        (acknowledged_elsewhere, NODES, ["lost"]),
        (seen_everywhere, NODES, ["lost"]),
        # What was seen later proves nothing.
        (partial(seen_everywhere, seen_s=11.1), NODES, []),
        # What somebody has is owed to the new store.
        (lambda _: None, ("a",), ["lost"]),
    ],
)
def test_what_only_a_store_that_was_thrown_away_promised_may_be_lost(
    world: World, happened: Callable[[World], None], lost_at: Sequence[str], found: list[str]
) -> None:
    happened(world)
    world.lose(3, *lost_at)
    world.history.replaced.append(Replaced("a#1", 11.0))
    assert list(world.broken()) == found


@pytest.mark.parametrize(
    ("number", "node", "found"),
    [
        (3, "b", []),
        # It is younger than what was dropped.
        (4, "b", ["lost"]),
        # Another store has dropped nothing.
        (3, "c", ["lost"]),
    ],
)
def test_what_an_operator_had_dropped_at_one_store_is_kept_by_the_others(
    world: World, number: int, node: str, found: list[str]
) -> None:
    world.lose(number, node)
    world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=0))
    assert list(world.broken()) == found


def test_what_should_have_been_dropped_is_not_served(world: World) -> None:
    world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=1_004))
    assert world.broken()["kept"].startswith("4 messages that b serves")


@pytest.mark.parametrize(
    ("happens", "rule", "words"),
    [
        (lambda world: world.lose(3, *NODES), "lost", f"nobody has: {digest_of(3).hex()}"),
        (lambda world: world.lose(3, "b"), "lost", f"b lacks, others have: {digest_of(3).hex()}"),
        (lambda world: world.hold(COUNT, *NODES), "unknown", ""),
        (lambda world: world.held["a"].append(served(COUNT - 1)), "twice", ""),
        (lambda world: world.held["b"].reverse(), "order", ""),
        (lambda world: world.by_hash["c"].discard(digest_of(0)), "by hash", ""),
        (lambda world: world.followed["a"].remove(digest_of(2)), "follow", "never came"),
        (lambda world: world.followed["a"].append(digest_of(2)), "follow", "more than once"),
        (lambda world: world.acknowledge(0, confirms=3), "confirms", ""),
    ],
)
def test_one_thing_that_is_wrong_breaks_one_rule(
    world: World, happens: Callable[[World], object], rule: str, words: str
) -> None:
    happens(world)
    broken = world.broken()
    assert list(broken) == [rule]
    assert words in broken[rule]


def test_many_cases_of_one_kind_are_one_violation(world: World) -> None:
    for number in range(COUNT):
        world.lose(number, "c")
    assert world.broken()["lost"].startswith("10 acknowledged messages c lacks")
    assert world.broken()["lost"].endswith(", …")


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


def test_what_was_not_acknowledged_may_be_anywhere_or_nowhere_but_is_the_same(world: World) -> None:
    world.publish(COUNT)
    assert world.broken() == {}
    world.hold(COUNT, "a")
    assert list(world.broken()) == ["unequal"]


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: str(case["name"]))
def test_the_hash_is_that_of_the_specification(case: dict[str, Any]) -> None:
    made = WakuMessage(
        payload=bytes.fromhex(case["payload"]),
        content_topic=case["content_topic"],
        timestamp=int(case["timestamp"]),
        meta=None if case["meta"] is None else bytes.fromhex(case["meta"]),
    )
    assert message_hash(made, case["pubsub_topic"]).hex() == case["hash"]
