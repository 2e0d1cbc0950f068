"""Rules of the fault world: for stores and logs, for growth, for its plan and its waits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checker.clients import Endpoint, Follower
from chaos.checker.history import Ack, History, Pruned, Published, Synced, fingerprint, message_hash
from chaos.checker.logs import Entry, Log, check_logs
from chaos.checker.stores import Holding, Served, check_stores
from chaos.soak.growth import BYTES_PER_MESSAGE, EVERY_S, MIB, Sample, check_growth
from chaos.soak.nemesis import FAULTS, plan
from chaos.tasks import OutOfTimeError, StuckError, Waiter
from storenode.wire.storenode.v1.store_pb2 import FollowPage, FollowRequest
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

# Rules for stores

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/message_hash.json").read_text())
LEGAL = [case for case in VECTORS["cases"] if 0 < int(case["timestamp"] or 0) < 2**63]
"""The vectors that a node may store."""

PUBSUB = "/waku/2/rs/1/0"
NODES = ("a", "b", "c")
COUNT = 10


def message(number: int) -> WakuMessage:
    return WakuMessage(
        payload=b"%d" % number, content_topic="/soak/1/test/proto", timestamp=1_000 + number
    )


def served(number: int) -> Served:
    made = message(number)
    digest = message_hash(made, PUBSUB)
    return Served(digest, digest, fingerprint(made, PUBSUB), made.timestamp)


def digest_of(number: int) -> bytes:
    return served(number).claimed


class World:
    """A run with ten messages, acknowledged at second 10 by node a and stored by all nodes."""

    def __init__(self) -> None:
        self.history = History()
        self.stored = {name: [served(number) for number in range(COUNT)] for name in NODES}
        self.by_hash = {name: list(self.stored[name]) for name in NODES}
        self.followed = {name: list(self.stored[name]) for name in NODES}
        for number in range(COUNT):
            self.publish(number)
            self.acknowledge(number)

    def publish(self, number: int) -> None:
        made = message(number)
        self.history.publish(
            [(digest_of(number), Published(fingerprint(made, PUBSUB), made.timestamp, "publisher"))]
        )

    def acknowledge(self, number: int, at_s: float = 10.0, confirms: int = 0) -> None:
        self.history.acknowledge([digest_of(number)], Ack("a#1", at_s, confirms))

    def store(self, number: int, *names: str) -> None:
        for name in names:
            for messages in (self.stored, self.by_hash, self.followed):
                messages[name].append(served(number))

    def lose(self, number: int, *names: str) -> None:
        for name in names:
            for messages in (self.stored, self.by_hash, self.followed):
                messages[name].remove(served(number))

    def violations(self) -> dict[str, str]:
        holdings = [
            Holding(
                name,
                "a#2" if name == "a" and self.history.replaced else f"{name}#1",
                self.stored[name],
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
    world.acknowledge(0, confirms=len(NODES) - 1)
    assert world.violations() == {}


def test_ephemeral_messages_may_reach_followers_again_and_are_never_kept(world: World) -> None:
    passing = replace(world.history.published[digest_of(3)], ephemeral=True)
    world.history.published[digest_of(3)] = passing
    del world.history.acks[digest_of(3)]
    assert world.violations().keys() == {"ephemeral"}
    world.lose(3, *NODES)
    world.followed["a"] += [served(3), served(3)]
    assert world.violations() == {}


def confirm(world: World) -> None:
    world.acknowledge(3, confirms=1)


def acknowledge_elsewhere(world: World) -> None:
    world.history.acknowledge([digest_of(3)], Ack("b#1", 10.0, 0))


def see_everywhere(world: World, seen_s: float = 10.9) -> None:
    world.history.synced.append(Synced(upto_s=10.5, seen_s=seen_s))


@pytest.mark.parametrize(
    ("before", "lost_at", "found"),
    [
        (lambda _: None, NODES, []),
        (confirm, NODES, ["lost"]),
        (acknowledge_elsewhere, NODES, ["lost"]),
        (see_everywhere, NODES, ["lost"]),
        # Seen too late.
        (partial(see_everywhere, seen_s=11.1), NODES, []),
        # The new store must receive all messages of the others.
        (lambda _: None, ("a",), ["lost"]),
    ],
)
def test_messages_acknowledged_only_by_a_replaced_store_may_be_lost(
    world: World, before: Callable[[World], None], lost_at: Sequence[str], found: list[str]
) -> None:
    before(world)
    world.lose(3, *lost_at)
    world.history.replaced["a#1"] = 11.0
    assert list(world.violations()) == found


@pytest.mark.parametrize(
    ("number", "node", "found"),
    [
        (3, "b", []),
        # It is younger than the pruned ones.
        (4, "b", ["lost"]),
        # Nothing was pruned at another store.
        (3, "c", ["lost"]),
    ],
)
def test_messages_pruned_at_one_store_stay_at_the_others(
    world: World, number: int, node: str, found: list[str]
) -> None:
    world.lose(number, node)
    world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=0))
    assert list(world.violations()) == found


def test_pruned_messages_are_not_served(world: World) -> None:
    world.history.pruned.append(Pruned("b#1", may_go_ns=1_004, must_go_ns=1_004))
    assert world.violations()["kept"].startswith("4 messages that b serves")


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (
            lambda world: world.lose(3, *NODES),
            "lost",
            f"at no node, nor at c: {digest_of(3).hex()}",
        ),
        (lambda world: world.lose(3, "b"), "lost", f"missing at b: {digest_of(3).hex()}"),
        (lambda world: world.store(COUNT, *NODES), "unknown", ""),
        (lambda world: world.followed["a"].append(served(COUNT)), "unknown", "follower of a"),
        (lambda world: world.stored["a"].append(served(COUNT - 1)), "twice", "scan of a"),
        (lambda world: world.by_hash["a"].append(served(1)), "twice", "look-up of a"),
        (lambda world: world.followed["a"].append(served(2)), "twice", "follower of a"),
        (lambda world: world.stored["b"].reverse(), "order", ""),
        (lambda world: world.by_hash["c"].remove(served(0)), "by hash", ""),
        (lambda world: world.followed["a"].remove(served(2)), "follow", "did not reach"),
        (lambda world: world.acknowledge(0, confirms=3), "confirms", ""),
    ],
)
def test_one_difference_breaks_one_rule(
    world: World, change: Callable[[World], object], rule: str, words: str
) -> None:
    change(world)
    found = world.violations()
    assert list(found) == [rule]
    assert words in found[rule]


@pytest.mark.parametrize("reader", ["stored", "by_hash", "followed"])
@pytest.mark.parametrize(
    "field",
    [
        {"payload": b"another"},
        {"version": 0},
        {"meta": b""},
        {"rate_limit_proof": b"x"},
        {"ephemeral": False},
        {},
    ],
)
def test_changed_and_added_fields_are_found(
    world: World, reader: str, field: dict[str, Any]
) -> None:
    made = message(4)
    made.MergeFrom(WakuMessage(**field))
    altered = replace(
        served(4),
        computed=message_hash(made, PUBSUB) if field else digest_of(5),
        fingerprint=fingerprint(made, PUBSUB),
    )
    getattr(world, reader)["b"][4] = altered
    assert list(world.violations()) == ["altered"]


def test_unacknowledged_messages_are_at_all_nodes_or_none(world: World) -> None:
    world.publish(COUNT)
    assert world.violations() == {}
    world.store(COUNT, "a")
    assert list(world.violations()) == ["unequal"]
    for node, may_go_ns in (("b", 1_000 + COUNT), ("c", 1_001 + COUNT)):
        world.history.pruned.append(Pruned(f"{node}#1", may_go_ns, must_go_ns=0))
    assert "missing at b" in world.violations()["unequal"]


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: str(case["name"]))
def test_the_hash_is_that_of_the_specification(case: dict[str, Any]) -> None:
    made = WakuMessage(
        payload=bytes.fromhex(case["payload"]),
        content_topic=case["content_topic"],
        timestamp=int(case["timestamp"]),
        meta=None if case["meta"] is None else bytes.fromhex(case["meta"]),
    )
    assert message_hash(made, case["pubsub_topic"]).hex() == case["hash"]


async def test_a_follower_counts_what_is_stored_and_resumes_at_its_cursor() -> None:
    asked: list[FollowRequest] = []

    async def follow(request: FollowRequest) -> AsyncIterator[FollowPage]:
        asked.append(request)
        if not request.cursor:
            ephemeral = WakuMessageKeyValue(message_hash=b"b", message=WakuMessage(ephemeral=True))
            yield FollowPage(
                messages=[WakuMessageKeyValue(message_hash=b"a"), ephemeral], cursor=b"1"
            )

    follower = Follower("n1", Endpoint("127.0.0.1:1"))
    for _ in range(2):
        await follower._follow(SimpleNamespace(Follow=follow))  # type: ignore[arg-type]
    assert [each.claimed for each in follower.received] == [b"a", b"b"]
    assert follower.stored == {b"a"}
    assert [(each.cursor, each.include_data) for each in asked] == [(b"", True), (b"1", True)]


# Rules for logs of participants

ENTRIES = [
    Entry(1, "alice-1", "alice", "hello"),
    Entry(2, "bob-1", "bob", "hi"),
    Entry(2, "bob-2", "bob", "there"),
]
SENT = {"alice": {"alice-1": "hello"}, "bob": {"bob-1": "hi", "bob-2": "there"}}
LOGS = [Log(name, "kitchen", SENT[name], ENTRIES) for name in ("alice", "bob")]


def rules(*logs: Log) -> list[str]:
    return [each.rule for each in check_logs(logs)]


def test_equal_logs_have_no_violation() -> None:
    assert rules(*LOGS) == []


ALICE_1, BOB_1, BOB_2 = ENTRIES


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([BOB_1, BOB_2], ["unnamed loss"]),
        ([*ENTRIES, Entry(3, "carol-1", "carol", "boo")], ["unknown entry"]),
        ([ALICE_1, replace(BOB_1, content="ho"), BOB_2], ["unknown entry", "unequal logs"]),
        ([ALICE_1, replace(BOB_1, sender="alice"), BOB_2], ["unknown entry", "unequal logs"]),
        ([BOB_1, BOB_2, replace(ALICE_1, lamport=3)], ["unequal logs"]),
        (ENTRIES[::-1], ["unequal logs"]),
        ([*ENTRIES, BOB_2], ["unequal logs"]),
    ],
)
def test_another_log_is_a_violation(entries: list[Entry], found: list[str]) -> None:
    assert rules(LOGS[0], replace(LOGS[1], entries=entries)) == found


def test_a_loss_may_be_reported_but_not_by_the_sender() -> None:
    reported = replace(LOGS[1], entries=ENTRIES[1:], lost=frozenset({"alice-1"}))
    assert rules(LOGS[0], reported) == []
    assert rules(replace(LOGS[0], entries=ENTRIES[1:]), LOGS[1]) == ["unnamed loss"]


def test_channels_are_compared_separately() -> None:
    elsewhere = Log("carol", "garden", {"carol-1": "x"}, [Entry(1, "carol-1", "carol", "x")])
    assert rules(*LOGS, elsewhere) == []


# The rule of growth


def samples(
    value: Callable[[int], float], seconds: int = 600, messages_per_s: int = 0
) -> list[Sample]:
    """Return the samples of a life."""
    times = range(0, seconds, int(EVERY_S))
    return [Sample(float(at), value(at), at * messages_per_s) for at in times]


NOISE = Random(1)


def filling(at: int) -> float:
    """Return the memory of a node that keeps something of 100 messages a second."""
    return 150 * MIB + at * 100 * BYTES_PER_MESSAGE


def short_work(at: int) -> float:
    return (900 if 500 < at < 540 else 150) * MIB


FLAT = {
    "noise": samples(lambda _: (150 + NOISE.random() * 20) * MIB),
    "falling": samples(lambda at: (300 - at * 0.1) * MIB),
    "a start": samples(lambda at: (50 if at < 60 else 170) * MIB),
    "short work": samples(short_work),
    "a node that keeps something of messages": samples(filling, 1_200, 100),
    "too short to judge": samples(lambda at: at * MIB, seconds=150),
}
GROWING = {
    "memory without messages": samples(filling, 1_200),
    "memory beyond the bound of messages": samples(filling, 3_600, 100),
}


@pytest.mark.parametrize("name", [*FLAT, *GROWING])
def test_only_memory_that_grows_is_found(name: str) -> None:
    found = check_growth("node a", "memory", (FLAT | GROWING)[name])
    assert [each.rule for each in found] == ["not flat"] * (name in GROWING)


@pytest.mark.parametrize("measure", ["database connections", "sockets", "files", "threads"])
def test_counts_that_grow_are_found(measure: str) -> None:
    for messages_per_s in (0, 100):
        growing = samples(lambda at: 20 + at // 10, messages_per_s=messages_per_s)
        assert check_growth("node a", measure, growing)
    assert check_growth("node a", measure, samples(lambda at: 20 + at % 5)) == []


# The schedule of faults


def test_a_seed_repeats_its_plan_and_another_gives_another() -> None:
    plans = [list(plan(seed, list(FAULTS), 20, 120)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_every_kind_comes_before_any_comes_again_and_in_time() -> None:
    for seed in range(20):
        planned = list(plan(seed, list(FAULTS), 20, 120))
        assert len(planned) == 10
        assert {each.name for each in planned[: len(FAULTS)]} == FAULTS.keys()
        assert all(each.victim in FAULTS[each.name].victims for each in planned)
        assert all(
            earlier.at_s + earlier.length_s < later.at_s for earlier, later in pairwise(planned)
        )
        assert planned[-1].at_s + planned[-1].length_s < 20 * 60


def test_a_short_run_has_one_fault_within_it_if_any_is_possible() -> None:
    (planned,) = plan(1, list(FAULTS), 1, 120)
    assert planned.at_s + planned.length_s < 60
    assert list(plan(1, [], 20, 120)) == []


# Waits


async def test_a_wait_goes_on_for_as_long_as_its_count_changes() -> None:
    waiter, left = Waiter(patience_s=0.5, limit_s=60.0), iter(range(12, -1, -1))
    # Each look comes 0.1 s after the one before: together they take more than the patience.
    await waiter.until_none("lines", lambda: next(left))


async def test_a_wait_without_change_is_given_up() -> None:
    with pytest.raises(StuckError, match="lines: 3 left, and no change for 0 s"):
        await Waiter(patience_s=0.0).until_none("lines", lambda: 3)


async def test_the_limit_ends_every_wait() -> None:
    waiter, counts = Waiter(patience_s=60.0, limit_s=0.0), iter(range(9, 0, -1))
    with pytest.raises(OutOfTimeError, match="lines: 9 left when the time limit was reached"):
        await waiter.until_none("lines", lambda: next(counts))
