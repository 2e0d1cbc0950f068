"""A machine, its frames and the answers of its database: each is one step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Concatenate, ParamSpec, TypeVar

from store.gossip.events import (
    Bodies,
    Committed,
    Effect,
    FrameIn,
    GossipCounter,
    LoadBodies,
    LookUp,
    PersistBatch,
    WriteFrame,
    frame_of,
)
from store.gossip.limits import GossipLimits
from store.gossip.machine import Gossip
from store.messages.record import RecordBatch
from storenode.sds.codec import SdsMetadata
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawEvents, RawGossipFrame

_E = TypeVar("_E", bound=Effect)
_P = ParamSpec("_P")

Request = PersistBatch | LoadBodies | LookUp
Input = Callable[[Gossip], None]
"""A method of a machine, with its arguments."""

S = 1_000_000_000
TOPIC = bytes(16)


def ids(count: int, salt: str = "") -> list[bytes]:
    return [sha256(f"{salt}{number}".encode()).digest() for number in range(count)]


def records(
    digests: Iterable[bytes], parents: Mapping[bytes, Sequence[bytes]] | None = None
) -> RecordBatch:
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


def inv(digests: Iterable[bytes], contents: Iterable[bytes] = ()) -> RawGossipFrame:
    return frame_of("inv", digests, contents)


def get_events(digests: Iterable[bytes]) -> RawGossipFrame:
    return frame_of("get_events", digests)


def sync_leaves(
    digests: Iterable[bytes], contents: Iterable[bytes] = (), rest_count: int = 0
) -> RawGossipFrame:
    frame = frame_of("sync_leaves", digests, contents)
    frame.sync_leaves.rest_count = rest_count
    return frame


def sent_bodies(messages: Iterable[bytes]) -> RawGossipFrame:
    return RawGossipFrame(events=RawEvents(messages=messages))


def bodies(
    digests: Sequence[bytes], parents: Mapping[bytes, Sequence[bytes]] | None = None
) -> Bodies:
    return Bodies(records(digests, parents), (), 100 * len(digests))


class Single:
    """A machine, whose effects are kept; its clock stands still."""

    def __init__(self, max_confirms: int = 0, **limits: int) -> None:
        self.counts = Counter[GossipCounter]()
        self.machine = Gossip(
            "own",
            max_confirms,
            GossipLimits(**limits),
            lambda what, number, _: self.counts.update({what: number}),
        )
        self.now_ns = S

    def step(
        self, take: Callable[Concatenate[Gossip, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> list[Effect]:
        effects = self.machine.step(self.now_ns, take, *args, **kwargs)
        self.machine.check()
        return effects

    def join(self, peer: str) -> list[Effect]:
        return self.step(Gossip.join, peer, f"store of {peer}")

    def receive(self, peer: str, frame: FrameIn) -> list[Effect]:
        return self.step(Gossip.receive, peer, frame)

    def publish(self, digests: Sequence[bytes], min_confirms: int = 0) -> list[Effect]:
        published = dict.fromkeys(digests, min_confirms)
        return self.answer(
            self.step(Gossip.commit, Committed(digests, published=published)), digests
        )

    def entries(self, table: str) -> int:
        machine = self.machine
        return len(machine.unread._events if table == "unread" else machine._fetches._wants)

    def is_reading(self, peer: str) -> bool:
        joined = self.machine._peers.get(peer)
        return joined is not None and joined.reading

    def after(self, elapsed_ns: int) -> list[Effect]:
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
    return [effect for effect in effects if isinstance(effect, kind)]


def frames(effects: list[Effect], peer: str = "") -> list[RawGossipFrame]:
    return [each.frame for each in of(WriteFrame, effects) if not peer or each.peer == peer]
