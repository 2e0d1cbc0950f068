"""Machines joined in memory: every frame and every answer of a database is one step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Concatenate, ParamSpec, TypeVar

from store.gossip.events import (
    Bodies,
    Committed,
    Confirm,
    CutOff,
    Effect,
    FrameIn,
    FrameOut,
    GossipCounter,
    GraphEvent,
    LoadBodies,
    LookUp,
    OutgoingBodies,
    PersistBatch,
    WriteFrame,
)
from store.gossip.limits import GossipLimits
from store.gossip.machine import Gossip
from store.messages.record import RecordBatch
from storenode.sds.codec import SdsMetadata

_E = TypeVar("_E", bound=Effect)
_P = ParamSpec("_P")

Request = PersistBatch | LoadBodies | LookUp
Input = Callable[[Gossip], None]
"""A method of a machine, with its arguments."""

S = 1_000_000_000
TOPIC = bytes(16)


def ids(count: int, salt: str = "") -> list[bytes]:
    """Return message hashes."""
    return [sha256(f"{salt}{number}".encode()).digest() for number in range(count)]


def records(
    digests: Iterable[bytes], parents: Mapping[bytes, Sequence[bytes]] | None = None
) -> RecordBatch:
    """Return a batch of messages with these hashes, of which some are events."""
    batch = RecordBatch()
    for index, digest in enumerate(digests):
        batch.timestamps.append(index + 1)
        batch.hashes.append(digest)
        batch.topic_keys.append(TOPIC)
        batch.content_digests.append(digest[:16])
        batch.heads.append(b"")
        batch.payloads.append(digest)
        batch.tails.append(b"")
        if parents is not None and digest in parents:
            batch.sds_index.append(index)
            history: list[tuple[bytes, bytes | None]] = [
                (b"p", parent) for parent in parents[digest]
            ]
            batch.sds.append(SdsMetadata(b"c", digest[:8], 1, b"", history))
    batch.topics = {TOPIC: ("a", "b")} if batch.hashes else {}
    return batch


def machine_of(store_id: str, max_confirms: int = 0, **limits: int) -> Gossip:
    """Return a machine with small limits."""
    return Gossip(store_id, max_confirms, GossipLimits(**limits))


def entries(holder: Single | Member, table: str) -> int:
    """Return the number of entries in a table of a machine: unread, incomplete or fetches."""
    return len(getattr(holder.machine, "unread" if table == "unread" else f"_{table}"))


class Single:
    """A machine, whose effects are kept; its clock stands still."""

    def __init__(self, **config: int) -> None:
        self.machine = machine_of("own", **config)
        self.machine._add = lambda what, number, _: self.counts.update({what: number})
        self.counts = Counter[GossipCounter]()
        self.now_ns = S

    def step(
        self, take: Callable[Concatenate[Gossip, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> list[Effect]:
        """Take an input, and check all invariants after it."""
        effects = self.machine.step(self.now_ns, take, *args, **kwargs)
        self.machine.check()
        return effects

    def join(self, peer: str) -> list[Effect]:
        """Let a peer with a store of its own join."""
        return self.step(Gossip.join, peer, f"store of {peer}")

    def receive(self, peer: str, frame: FrameIn) -> list[Effect]:
        """Take a frame of a peer."""
        return self.step(Gossip.receive, peer, frame)

    def publish(self, digests: Sequence[bytes]) -> list[Effect]:
        """Commit messages that a client has published here."""
        return self.step(Gossip.commit, Committed(digests, published=dict.fromkeys(digests, 0)))

    def is_reading(self, peer: str) -> bool:
        """Return True if a peer is joined and read from."""
        joined = self.machine._peers.get(peer)
        return joined is not None and joined.reading

    def after(self, elapsed_ns: int) -> list[Effect]:
        """Let time pass."""
        self.now_ns += elapsed_ns
        return self.step(Gossip.wait)

    def answer(self, effects: list[Effect], stored: Iterable[bytes] = ()) -> list[Effect]:
        """Take answers of the database and of streams, until nothing is asked any more.

        Returns all effects, the given ones too.
        """
        known, done = dict.fromkeys(stored), list(effects)
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            more: list[Effect] = []
            if isinstance(effect, Request):
                more = self.step(answer_of(effect, known))
            elif isinstance(effect, WriteFrame):
                more = self.step(Gossip.sent, effect.peer)
            waiting += more
            done += more
        return done


def answer_of(request: Request, stored: dict[bytes, None]) -> Input:
    """Return the answer of a database that holds these, and stores what it is given."""
    match request:
        case PersistBatch():
            new = [digest not in stored for digest in request.batch.hashes]
            stored.update(dict.fromkeys(request.batch.hashes))
            return lambda machine: machine.persisted(request.token, new)
        case LoadBodies():
            found = [each if each in stored else None for each in request.ids]
            return lambda machine: machine.loaded(request.token, found)
        case LookUp():
            is_stored = [each in stored for each in request.ids]
            return lambda machine: machine.looked_up(request.token, is_stored)


def of(kind: type[_E], effects: list[Effect]) -> list[_E]:
    """Return the effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def frames(effects: list[Effect], peer: str = "") -> list[FrameOut]:
    """Return what is sent, or what is sent to one peer."""
    return [each.frame for each in of(WriteFrame, effects) if not peer or each.peer == peer]


class Member:
    """A machine among others, with what its store holds."""

    def __init__(self, fleet: Fleet, name: str, **config: int) -> None:
        self.name = name
        self.machine = machine_of(f"store of {name}", **config)
        self.stored: dict[bytes, None] = {}
        self.confirms: dict[bytes, int] = {}
        self.cut: list[CutOff] = []
        self.fails: Callable[[], bool] = lambda: False
        self._fleet = fleet

    def step(
        self, take: Callable[Concatenate[Gossip, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Take an input, and carry out what follows."""
        for effect in self.machine.step(self._fleet.now_ns, take, *args, **kwargs):
            self._do(effect)

    def publish(self, digests: Sequence[bytes], min_confirms: int = 0) -> None:
        """Publish messages as a client here."""
        self.stored.update(dict.fromkeys(digests))
        published = dict.fromkeys(digests, min_confirms)
        self.step(
            Gossip.commit, Committed(digests, self._fleet.events(digests), published=published)
        )

    def _do(self, effect: Effect) -> None:
        fleet = self._fleet
        match effect:
            case WriteFrame():
                fleet.send(self.name, effect)
            case PersistBatch() | LoadBodies() | LookUp():
                fleet.later(lambda: self._answer(effect))
            case Confirm():
                self.confirms.update(zip(effect.ids, effect.counts, strict=True))
            case CutOff():
                self.cut.append(effect)

    def _answer(self, request: Request) -> None:
        if self.fails():
            self.step(Gossip.failed, request.token)
        else:
            self.step(answer_of(request, self.stored))


class Fleet:
    """Members and the streams between them; what is to happen does so in an order of its own.

    ``choose``: which of so many things happens next.
    """

    def __init__(
        self, names: str, choose: Callable[[int], int] = lambda _: 0, **config: int
    ) -> None:
        self.now_ns = S
        self.parents: dict[bytes, Sequence[bytes]] = {}
        self.sent: list[tuple[str, str, FrameOut]] = []
        self.members = {name: Member(self, name, **config) for name in names}
        self._choose = choose
        self._streams: dict[tuple[str, str], deque[FrameOut]] = {}
        self._actions: list[Callable[[], None]] = []

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def events(self, digests: Iterable[bytes]) -> list[GraphEvent]:
        """Return those of some messages that are events."""
        return [
            GraphEvent(each, 1, tuple(self.parents[each]))
            for each in digests
            if each in self.parents
        ]

    def connect(self, one: str, other: str) -> None:
        """Let two members have a stream."""
        for name, peer in ((one, other), (other, one)):
            self._streams[name, peer] = deque()
            self[name].step(Gossip.join, peer, f"store of {peer}")

    def disconnect(self, one: str, other: str) -> None:
        """Break a stream; what is on its way is lost."""
        for name, peer in ((one, other), (other, one)):
            self._streams.pop((name, peer), None)
            self[name].step(Gossip.leave, peer)

    def send(self, sender: str, effect: WriteFrame) -> None:
        """Put a frame on its way."""
        stream = self._streams.get((sender, effect.peer))
        if stream is not None:
            stream.append(effect.frame)
            self.sent.append((sender, effect.peer, effect.frame))
            self.later(lambda: self._deliver(sender, effect.peer, stream))

    def later(self, action: Callable[[], None]) -> None:
        """Let something happen some time."""
        self._actions.append(action)

    def run(self) -> None:
        """Run until nothing is left to happen."""
        while self._actions:
            self._actions.pop(self._choose(len(self._actions)))()

    def pass_time(self, elapsed_ns: int) -> None:
        """Let time pass, and all that follows."""
        self.now_ns += elapsed_ns
        for member in self.members.values():
            member.step(Gossip.wait)
        self.run()

    def check(self) -> None:
        """Verify all machines."""
        for member in self.members.values():
            member.machine.check()

    def bodies(self) -> int:
        """Return how many bodies were sent."""
        return sum(
            len(frame.messages) for *_, frame in self.sent if isinstance(frame, OutgoingBodies)
        )

    def _deliver(self, sender: str, receiver: str, stream: deque[FrameOut]) -> None:
        if self._streams.get((sender, receiver)) is not stream:
            return
        frame = stream.popleft()
        self[sender].step(Gossip.sent, receiver)
        if isinstance(frame, OutgoingBodies):
            batch = records(frame.messages, self.parents)
            self[receiver].step(Gossip.receive, sender, Bodies(batch, (), 100))
        else:
            self[receiver].step(Gossip.receive, sender, frame)
