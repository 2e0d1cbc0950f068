"""Invariants and bounds of gossip, whatever peers, databases and clients do."""

import random
from collections.abc import Callable

import pytest

from store.domain.unread import UnreadEvent
from store.gossip.events import (
    Bodies,
    Committed,
    Effect,
    LoadBodies,
    LookUp,
    PersistBatch,
    WriteFrame,
)
from store.gossip.graph import graph_events
from store.gossip.limits import GossipLimits
from store.gossip.machine import Gossip
from tests.unit.gossip.gossip_world import (
    Input,
    Request,
    S,
    get_events,
    ids,
    inv,
    records,
    sync_leaves,
)

PEERS = "vwxyz"
NAMES = ids(60)
STEPS = 400

SMALL = GossipLimits(
    seen_ids=20,
    max_unread=8,
    graph_events=10,
    queued_ids=12,
    pushed_ids=3,
    asked_ids=10,
    announced_ids=12,
    unstored_bytes=500,
    frame_ids=5,
    round_ids=4,
    leaf_ids=3,
    catch_up_ids=10,
    unread_age_ns=30 * S,
)


class Anything:
    """A machine, and the inputs that are allowed now."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Gossip("own", 1, SMALL)
        self.now_ns = S
        self._asked: list[Request] = []
        self._writing: set[str] = set()

    def step(self) -> None:
        rng = self.rng
        self.now_ns += rng.choice((0, 0, S // 100, S, 8 * S))
        kinds: list[Callable[[], Input]] = [self._frame] * 6 + [self._sent, self._answer] * 3
        given = rng.choice([*kinds, self._joined, self._from_inside, self._left])()
        for effect in self.machine.step(self.now_ns, given):
            self._note(effect)
        self.machine.check()
        wake_ns = self.machine.next_wake_ns
        assert wake_ns is None or wake_ns > 0

    def _note(self, effect: Effect) -> None:
        match effect:
            case WriteFrame():
                assert effect.peer not in self._writing
                self._writing.add(effect.peer)
            case PersistBatch() | LoadBodies() | LookUp():
                self._asked.append(effect)

    def _some(self, most: int = 12) -> list[bytes]:
        return self.rng.choices(NAMES, k=self.rng.randint(0, most))

    def _joined(self) -> Input:
        peer = self.rng.choice(PEERS)
        self._writing.discard(peer)
        store_id = self.rng.choice(("own", "s1", "s2", f"store of {peer}"))
        return lambda machine: machine.join(peer, store_id)

    def _left(self) -> Input:
        peer = self.rng.choice(PEERS)
        self._writing.discard(peer)
        return lambda machine: machine.leave(peer)

    def _frame(self) -> Input:
        some = self._some()
        parents = {each: self._some(3) for each in self._some()}
        refused = [(each, self.rng.choice(("too_new", "x"))) for each in self._some(3)]
        frame = self.rng.choice(
            (
                inv(some),
                get_events(some),
                sync_leaves(some, rest_count=self.rng.randint(0, 3)),
                Bodies(records(some, parents), refused, self.rng.randint(0, 300)),
            )
        )
        peer = self.rng.choice(PEERS)
        return lambda machine: machine.receive(peer, frame)

    def _sent(self) -> Input:
        if not self._writing:
            return Gossip.wait
        peer = self.rng.choice(sorted(self._writing))
        self._writing.discard(peer)
        return lambda machine: machine.sent(peer)

    def _answer(self) -> Input:
        if not self._asked:
            return Gossip.wait
        effect = self._asked.pop(self.rng.randrange(len(self._asked)))
        if self.rng.random() < 0.2:
            return lambda machine: machine.failed(effect.token)
        maybe = self.rng.random
        match effect:
            case PersistBatch():
                new = [maybe() < 0.5 for _ in effect.batch.hashes]
                return lambda machine: machine.persisted(effect.token, new)
            case LoadBodies():
                count = self.rng.randint(1, len(effect.ids))
                bodies = [b"body" if maybe() < 0.7 else None] * count
                return lambda machine: machine.loaded(effect.token, bodies)
            case LookUp():
                is_stored = [maybe() < 0.5 for _ in effect.ids]
                return lambda machine: machine.looked_up(effect.token, is_stored)

    def _from_inside(self) -> Input:
        some, rng = self._some(), self.rng
        parents = {each: self._some(3) for each in some}
        unread = [UnreadEvent(each, b"", rng.randint(1, 3), ("s1",), S) for each in some]
        committed = Committed(
            some,
            graph_events(records(some, parents)),
            rng.random() < 0.7,
            published=dict.fromkeys(self._some(), rng.randint(0, 2)),
        )
        min_confirms = rng.randint(0, 3)
        inputs: list[Input] = [
            lambda machine: machine.commit(committed),
            lambda machine: machine.want(some, min_confirms),
            lambda machine: machine.restore(unread),
            lambda machine: machine.settle(some),
        ]
        return rng.choice(inputs)


@pytest.mark.parametrize("seed", range(16))
def test_nothing_that_happens_breaks_it(seed: int) -> None:
    anything = Anything(seed)
    for _ in range(STEPS):
        anything.step()
