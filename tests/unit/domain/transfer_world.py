"""Stores in memory that transfer to each other, one event at a time in any order.

Frames go through their encoding and messages through admission, as between nodes. A store is a
plain dictionary; what a stream, a database and a driver would do are events that may come late.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from reconcile.ids import SyncIds
from store.domain.admission import Admission, Admitted
from store.domain.ports import ContentConflict, Source
from store.messages.record import RecordBatch
from store.messages.transfer import transfer_frame, transferred
from store.sync.limits import SILENCE_NS, TransferLimits
from store.sync.transfer.core import Transfer
from store.sync.transfer.events import (
    Begin,
    Counted,
    Find,
    Found,
    Frame,
    Input,
    Load,
    Loaded,
    Persist,
    Persisted,
    Report,
    SendFrame,
    SendReady,
    StreamLost,
    Ticked,
    TransferEnded,
    TransferFault,
    TransferReceived,
)
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entry

POLICY = Policy(max_drift_ns=20 * 10**9)
SESSION = "0123456789abcdef" * 2
SMALL = TransferLimits(
    frame_messages=3,
    frame_bytes=400,
    frame_answers=4,
    unsent_bytes=600,
    unstored_bytes=300,
    load_ids=4,
    find_ids=3,
    unsolicited_messages=10,
)


@dataclass
class Store:
    """The messages of a node: hash -> (timestamp, stored frame), and hash -> content digest."""

    frames: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    contents: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, batch: RecordBatch) -> list[bool]:
        """Store a batch; True per new message."""
        new = [digest not in self.frames for digest in batch.hashes]
        for index, (timestamp, digest) in enumerate(
            zip(batch.timestamps, batch.hashes, strict=True)
        ):
            self.frames.setdefault(digest, (timestamp, batch.frame(index)))
            self.contents.setdefault(digest, batch.content_digests[index])
        return new

    def lacks(self, other: Store) -> SyncIds:
        """Return what only the other one holds."""
        return ids_of(other, other.frames.keys() - self.frames.keys())


def ids_of(store: Store, hashes: Iterable[bytes]) -> SyncIds:
    """Return IDs of some messages, in their order."""
    return SyncIds.of(sorted((store.frames[digest][0], digest) for digest in hashes))


def messages(count: int, first: int = 0, size: int = 20) -> RecordBatch:
    """Return distinct messages of about ``size`` bytes, several of them in each nanosecond."""
    items = [
        entry(b"%08d" % number + bytes(size), timestamp=NOW_NS - 10**12 + number // 3)
        for number in range(first, first + count)
    ]
    return admit(items, NOW_NS, replace(POLICY, publisher=False)).batch


def store_of(*batches: RecordBatch) -> Store:
    """Return a store that holds these."""
    store = Store()
    for batch in batches:
        store.add(batch)
    return store


def judged(frame: TransferFrame, policy: Policy = POLICY, now_ns: int = NOW_NS) -> Admitted:
    """Return what admission says of the messages of a frame."""
    admission = Admission(policy, now_ns, Source.TRANSFER)
    admission.admit([each.SerializeToString() for each in frame.messages])
    return admission.admitted


class Node:
    """A side: a machine, and what a driver would do for it, as events."""

    def __init__(
        self,
        store: Store,
        to_send: SyncIds,
        to_receive: SyncIds,
        *,
        peer: str = "peer",
        limits: TransferLimits = SMALL,
        policy: Policy = POLICY,
        memory: PolicyMemory | None = None,
        partial: bool = False,
    ) -> None:
        self.store = store
        self.policy = policy
        self.memory = PolicyMemory() if memory is None else memory
        self.machine = Transfer(
            SESSION,
            to_send,
            to_receive,
            memory=self.memory,
            peer=peer,
            limits=limits,
            partial=partial,
        )
        self.inbox: deque[bytes] = deque()
        self.sent: list[Frame] = []
        self.work: list[Callable[[], Input]] = []
        self.writes: list[Persist] = []
        self.counted: list[Counted] = []
        self.report: Report | None = None
        self.deliver: Callable[[bytes], None] = lambda _: None
        self.now_ns = NOW_NS
        self.limits = limits
        self.unsent_bytes = 0

    def give(self, given: Input) -> None:
        """Let the machine take an input, and note what it wants done."""
        effects = self.machine.step(self.now_ns, given)
        self.machine.check()
        for effect in effects:
            self._note(effect)

    def _note(self, effect: object) -> None:
        match effect:
            case Counted():
                self.counted.append(effect)
            case TransferEnded(report):
                assert self.report is None
                self.report = report
            case SendFrame(frame):
                assert SendReady not in self.work, "two frames are under way"
                self.sent.append(frame)
                self.unsent_bytes -= sum(map(len, frame.messages))
                assert len(frame.messages) <= self.limits.frame_messages
                assert len(frame.stored) + len(frame.refused) <= self.limits.frame_answers
                self.deliver(encoded(frame))
                self.work.append(SendReady)
            case Load():
                self.work.append(lambda: self._load(effect))
            case Find():
                self.work.append(
                    lambda: Found([digest in self.store.frames for _, digest in effect.ids.pairs()])
                )
            case Persist():
                effect.batch.check()
                self.writes.append(effect)
                self.work.append(lambda: self._persist(effect))
            case _:
                raise AssertionError(effect)

    def _load(self, load: Load) -> Loaded:
        found: list[bytes | None] = []
        left = load.max_bytes
        for _, digest in load.ids.pairs():
            stored = self.store.frames.get(digest)
            message = None if stored is None else transferred(stored[1])
            left -= len(message or b"")
            if left < 0 and found:
                break
            found.append(message)
        self.unsent_bytes += sum(len(message or b"") for message in found)
        largest = max((len(message or b"") for message in found), default=0)
        assert self.unsent_bytes <= self.limits.unsent_bytes + largest
        return Loaded(found)

    def refusals(self) -> list[tuple[bytes, str]]:
        """Return what this side has refused, in frames that it has sent."""
        return [answer for frame in self.sent for answer in frame.refused]

    def stored(self) -> list[bytes]:
        """Return what this side has answered as stored, in frames that it has sent."""
        return [digest for frame in self.sent for digest in frame.stored]

    def _persist(self, effect: Persist) -> Persisted:
        self.writes.remove(effect)
        batch, contents = effect.batch, self.store.contents
        conflicts = {
            at: ContentConflict(
                batch.timestamps[at], digest, contents[digest], batch.content_digests[at]
            )
            for at, digest in enumerate(batch.hashes)
            if contents.get(digest, batch.content_digests[at]) != batch.content_digests[at]
        }
        return Persisted(effect.token, self.store.add(batch), conflicts)

    def receive(self, data: bytes) -> None:
        """Judge a frame as the driver would, and let the machine take it."""
        frame = TransferFrame.FromString(data)
        assert len(data) <= 4 * 1024 * 1024
        published = judged(frame, self.policy, self.now_ns)
        refused = [(answer.message_hash, answer.reason) for answer in frame.refused]
        self.give(
            TransferReceived(
                frame.session_id, published, len(data), list(frame.stored), refused, frame.done
            )
        )

    def events(self) -> list[Callable[[], None]]:
        """Return everything that may happen on this side now."""
        if self.report is not None:
            return []
        possible: list[Callable[[], None]] = []
        possible += [partial(self._work, index) for index in range(len(self.work))]
        if self.inbox and self.machine.reading:
            possible.append(lambda: self.receive(self.inbox.popleft()))
        return possible

    def _work(self, index: int) -> None:
        self.give(self.work.pop(index)())

    def lose(self, rng: random.Random) -> None:
        """Break the connection; some of what was being stored is stored all the same."""
        for write in self.writes:
            if rng.random() < 0.5:
                self.store.add(write.batch)
        self.inbox.clear()
        if self.report is None:
            self.give(StreamLost("the connection broke"))


def began(
    store: Store,
    to_send: SyncIds | None = None,
    to_receive: SyncIds | None = None,
    **more: Any,  # noqa: ANN401 - as of `Node`
) -> Node:
    """Return a side whose transfer has begun, of some IDs or none."""
    none = SyncIds.empty()
    node = Node(store, to_send or none, to_receive or none, **more)
    node.give(Begin(node.now_ns))
    return node


def ended(node: Node) -> Report:
    """Return the report of a side that has ended."""
    assert node.report is not None
    return node.report


def require_silence(node: Node) -> Report:
    """Let the node wait as long as it may, and no longer; return its report."""
    node.now_ns += SILENCE_NS - 1
    node.give(Ticked())
    assert node.report is None
    node.now_ns += 1
    node.give(Ticked())
    assert ended(node).fault is TransferFault.SILENCE
    return ended(node)


def encoded(frame: Frame) -> bytes:
    """Encode a frame."""
    return transfer_frame(
        frame.session_id, frame.messages, frame.stored, frame.refused, done=frame.done
    )


def raw(
    *,
    session_id: str = SESSION,
    items: Iterable[bytes] = (),
    stored: Iterable[bytes] = (),
    refused: Iterable[tuple[bytes, str]] = (),
    done: bool = False,
) -> bytes:
    """Return a frame such as a peer may send, whatever is in it."""
    return transfer_frame(session_id, items, stored, refused, done=done)


def sent_form(store: Store, hashes: Iterable[bytes]) -> list[bytes]:
    """Encode messages of a store for a transfer."""
    return [transferred(store.frames[digest][1]) for digest in hashes]


def join(left: Node, right: Node) -> None:
    """Connect two sides and begin."""
    left.deliver, right.deliver = right.inbox.append, left.inbox.append
    left.give(Begin(left.now_ns))
    right.give(Begin(right.now_ns))


def pair(
    left: Store,
    right: Store,
    *,
    limits: TransferLimits = SMALL,
    memories: tuple[PolicyMemory, PolicyMemory] | None = None,
    policies: tuple[Policy, Policy] = (POLICY, POLICY),
    now_ns: int = NOW_NS,
) -> tuple[Node, Node]:
    """Return the two sides of a session over what two stores hold."""
    one, other = memories or (PolicyMemory(), PolicyMemory())
    there, here = right.lacks(left), left.lacks(right)
    sides = (
        Node(left, there, here, peer="b", limits=limits, memory=one, policy=policies[0]),
        Node(right, here, there, peer="a", limits=limits, memory=other, policy=policies[1]),
    )
    for side in sides:
        side.now_ns = now_ns
    join(*sides)
    return sides


def run(rng: random.Random, *nodes: Node, steps: int = 10**6) -> int:
    """Let things happen in any order until nothing is left to do, or so many have."""
    for step in range(steps):
        events = [event for node in nodes for event in node.events()]
        if not events:
            return step
        rng.choice(events)()
    return steps
