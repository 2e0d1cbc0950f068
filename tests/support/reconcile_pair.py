"""Pairs of sessions joined in memory, of both modes, and sets of IDs to try them on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from reconcile.compact.session import CompactInitiator, CompactResponder, CompactStep, Outcome
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.session import PayloadFrame, Result, Role, SessionConfig, SessionStep
from reconcile.session import ReconcileSession as Session
from reconcile.view import Loaded, Loading, Needs, View
from tests.support.naive_view import NaiveView, run

EVERYTHING = (LOWEST, (2**63 - 1, bytes(32)))
CLUSTER, SHARDS = 1, (0, 3)


@dataclass
class Node:
    """A session with the view that it reads; ``checks`` is off where time is measured."""

    session: Session
    view: View
    checks: bool = True
    load: Callable[[Needs], Loaded] | None = None
    results: list[Result] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def begin(self) -> PayloadFrame | None:
        """Return the initiator's first frame."""
        return self._take(self.session.begin(self.view))

    def give(self, frame: PayloadFrame) -> PayloadFrame | None:
        """Take a frame, and return what is to be sent."""
        return self._take(self.session.receive(frame, self.view))

    def _take(self, work: Loading[SessionStep]) -> PayloadFrame | None:
        found = run(work, self.load)
        if self.checks:
            self.session.check()
        if found.frame is not None:
            self.payloads.append(found.frame.payload)
        if found.result is not None:
            self.results.append(found.result)
        assert self.session.ended == bool(self.results)
        return found.frame

    @property
    def result(self) -> Result:
        (result,) = self.results
        return result


def memory_view(ids: Iterable[SyncId]) -> MemoryView:
    """Return a view of an index in memory."""
    return MemoryView(IndexView.of(SyncIds.of(ids)))


def initiator(
    view: View,
    *,
    window: tuple[SyncId, SyncId] = EVERYTHING,
    **config: Any,  # noqa: ANN401 - as of `SessionConfig`
) -> Node:
    """Return a session that begins."""
    return _node(Role.INITIATOR, view, {"window": window, **config})


def responder(view: View, **config: Any) -> Node:  # noqa: ANN401 - as of `SessionConfig`
    """Return a session that answers."""
    return _node(Role.RESPONDER, view, config)


def _node(role: Role, view: View, config: dict[str, Any]) -> Node:
    given = {"cluster": CLUSTER, "shards": SHARDS, **config}
    return Node(Session(role, SessionConfig(**given)), view)


def join(first: Node, second: Node) -> tuple[Result, Result]:
    """Pass frames between the sides until both have ended."""
    frame = first.begin()
    receiver, sender = second, first
    while frame is not None:
        if receiver.session.ended:
            assert not frame.payload
            break
        frame = receiver.give(frame)
        receiver, sender = sender, receiver
    return first.result, second.result


def reconcile(
    ours: Iterable[SyncId],
    theirs: Iterable[SyncId],
    view: Callable[[list[SyncId]], View] = NaiveView,
) -> tuple[Result, Result]:
    """Reconcile two sets completely."""
    return join(initiator(view(list(ours))), responder(view(list(theirs))))


def assert_exact(
    results: tuple[Result, Result], ours: Iterable[SyncId], theirs: Iterable[SyncId]
) -> None:
    """Check that both sides know exactly what each lacks."""
    mine, yours = set(ours), set(theirs)
    first, second = results
    assert first.to_send.pairs() == sorted(mine - yours)
    assert first.to_receive.pairs() == sorted(yours - mine)
    assert second.to_send.pairs() == sorted(yours - mine)
    assert second.to_receive.pairs() == sorted(mine - yours)
    assert first.rounds == second.rounds


def some_ids(
    rng: random.Random, count: int, moments: int, start: int = 1_700_000_000_000_000_000
) -> list[SyncId]:
    """Return IDs at some different times; few times make many ties, and very many hardly any."""
    hour = range(start, start + 3_600_000_000_000)
    times = hour if moments > 64 * count else [rng.choice(hour) for _ in range(moments)]
    return [(rng.choice(times), rng.randbytes(32)) for _ in range(count)]


def two_sets(
    rng: random.Random, shared: list[SyncId], ours: list[SyncId], theirs: list[SyncId]
) -> tuple[list[SyncId], list[SyncId]]:
    """Return two shuffled sets."""
    first, second = shared + ours, shared + theirs
    rng.shuffle(first)
    rng.shuffle(second)
    return first, second


# The compact mode

NONCES = (b"initiator nonce.", b"responder nonce.")


@dataclass
class Joined:
    """A pair of sides and what they sent.

    Attributes:
        sides: the initiator and the responder.
        frames: what each sent.
        outcomes: the last outcome of each.
    """

    sides: tuple[CompactInitiator, CompactResponder]
    frames: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    outcomes: list[Outcome | None] = field(default_factory=lambda: [None, None])

    def run(self, *, offered: bool = True) -> None:
        """Pass frames between the sides until none is left; without offer, the responder begins."""
        if offered:
            step, receiver = CompactStep(self.sides[0].begin()), 1
        else:
            self.sides[0].await_slices()
            step, receiver = CompactStep(self.sides[1].begin()), 0
        while step.frame is not None:
            self.frames[1 - receiver].append(step.frame)
            step = self.sides[receiver].receive(step.frame)
            if step.outcome is not None:
                self.outcomes[receiver] = step.outcome
            receiver = 1 - receiver


def compact_pair(
    ours: IndexView,
    theirs: IndexView,
    window: tuple[SyncId, SyncId] = EVERYTHING,
    nonces: tuple[bytes, bytes] = NONCES,
) -> Joined:
    """Return two sides of a session, before the first frame."""
    first = CompactInitiator(ours, window, nonces[0])
    first.agree(nonces[1])
    return Joined((first, CompactResponder(theirs, window, nonces, first.claim)))


def reconcile_compactly(ours: list[SyncId], theirs: list[SyncId]) -> Joined:
    """Reconcile two sets."""
    joined = compact_pair(IndexView.of(SyncIds.of(ours)), IndexView.of(SyncIds.of(theirs)))
    joined.run()
    return joined
