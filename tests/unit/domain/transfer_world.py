"""Stores in memory that transfer to each other on virtual time.

Frames go through their encoding and messages through admission, as between nodes. A store is a
dictionary; a stream, a database and the frames of a peer take times that are drawn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from reconcile.ids import SyncIds
from reconcile.session import Role
from store.domain.environment import Environment, EventLog
from store.domain.ports import Source, Writer
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from store.sync.limits import TransferLimits
from store.sync.session.registry import PeerSession
from store.sync.session.report import SessionReport
from store.sync.transfer.policy_memory import PolicyMemory
from store.sync.transfer.transfer import Transfer, TransferReads, TransferWork
from storenode.message.rules import Policy
from storenode.wire.storenode.internal.v1.transfer_raw_pb2 import RawTransferFrame
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame, TransferRefusal
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
NS_PER_S = 10**9
NONE = SyncIds.empty()


@dataclass
class Store:
    """The messages of a node: hash -> (timestamp, stored frame), and hash -> content digest."""

    frames: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    contents: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, batch: RecordBatch) -> StoreResult:
        """Store a batch; True per new message."""
        batch.check()
        contents = self.contents
        conflicts = {
            at: contents[digest]
            for at, digest in enumerate(batch.hashes)
            if contents.get(digest, batch.content_digests[at]) != batch.content_digests[at]
        }
        new = [digest not in self.frames for digest in batch.hashes]
        for at, (timestamp, digest) in enumerate(zip(batch.timestamps, batch.hashes, strict=True)):
            self.frames.setdefault(digest, (timestamp, batch.frame(at)))
            contents.setdefault(digest, batch.content_digests[at])
        return StoreResult(new, conflicts)

    def lacks(self, other: Store) -> SyncIds:
        """Return what only the other one holds."""
        return ids_of(other, other.frames.keys() - self.frames.keys())

    @property
    def ids(self) -> SyncIds:
        """The IDs of all messages."""
        return ids_of(self, self.frames)


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


def raw(
    *,
    session_id: str = SESSION,
    items: Iterable[bytes] = (),
    stored: Iterable[bytes] = (),
    refused: Iterable[tuple[bytes, str]] = (),
    done: bool = False,
) -> bytes:
    """Return a frame such as a peer may send, whatever is in it."""
    return RawTransferFrame(
        session_id=session_id,
        messages=items,
        stored=stored,
        refused=[TransferRefusal(message_hash=digest, reason=why) for digest, why in refused],
        done=done,
    ).SerializeToString()


def sent_form(store: Store, hashes: Iterable[bytes]) -> list[bytes]:
    """Encode messages of a store for a transfer."""
    return [transferred(store.frames[digest][1]) for digest in hashes]


class Side:
    """A side: its transfer, stream, store and metrics. It begins at once.

    ``stores`` and ``takes`` are cleared while the database stores nothing, or the peer takes no
    frame. ``clock_ns``: what the clock shows at the beginning.
    """

    def __init__(
        self,
        store: Store,
        to_send: SyncIds = NONE,
        to_receive: SyncIds = NONE,
        *,
        seed: int = 0,
        peer: str = "peer",
        limits: TransferLimits = SMALL,
        policy: Policy = POLICY,
        memory: PolicyMemory | None = None,
        partial: bool = False,
        clock_ns: int = NOW_NS,
        role: Role = Role.INITIATOR,
    ) -> None:
        self.contents = store
        self.limits = limits
        self.memory = PolicyMemory() if memory is None else memory
        self.sent: list[TransferFrame] = []
        self.reads = self.writes = self.unsent_bytes = 0
        self.inbox: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.peer: Side | None = None
        self.stores, self.takes = asyncio.Event(), asyncio.Event()
        self.stores.set()
        self.takes.set()
        self._rng = random.Random(seed)
        self._time = asyncio.get_running_loop().time
        self._began_s = self._time()
        environment = Environment(
            lambda: clock_ns + self.passed_ns,
            lambda: 5 * NS_PER_S + self.passed_ns,
            self._rng,
            cast("EventLog", None),
            cast("Any", None),
        )
        self.report = SessionReport(role, 0, peer, left_over=partial)
        writer = cast("Writer", self)
        observer = cast("Any", SimpleNamespace(session_progressed=lambda _: None))
        reads = cast("TransferReads", SimpleNamespace(load=self.load, are_stored=self.find))
        session = PeerSession(self.report, "", 0, SESSION)
        session.to_send, session.to_receive = to_send, to_receive
        work = TransferWork(reads, writer, lambda: policy, observer, environment, limits)
        self.transfer = Transfer(session, work, self.memory)
        go_on = self.transfer._go_on

        def checked() -> None:
            go_on()
            self.transfer.check()

        self.transfer._go_on = checked  # type: ignore[method-assign]
        self.task = asyncio.create_task(self.transfer.run(self))

    @property
    def passed_ns(self) -> int:
        """The time since the beginning."""
        return round((self._time() - self._began_s) * NS_PER_S)

    @property
    def has_ended(self) -> bool:
        """True after the end."""
        return self.task.done()

    async def ended(self) -> SessionReport:
        """Return the report at the end."""
        await self.task
        return self.report

    async def receive(self, *frames: bytes) -> None:
        """Receive frames, and do all that is possible without more of them."""
        for frame in frames:
            self.inbox.put_nowait(frame)
        await asyncio.sleep(1)

    def refusals(self) -> list[tuple[bytes, str]]:
        """Return what this side has refused, in frames that it has sent."""
        return [(each.message_hash, each.reason) for frame in self.sent for each in frame.refused]

    def labels(self) -> dict[bytes, str]:
        """Return what this side has refused by name, and the label of the reason."""
        return {digest: reason.partition(":")[0] for digest, reason in self.refusals()}

    def stored(self) -> list[bytes]:
        """Return what this side has answered as stored, in frames that it has sent."""
        return [digest for frame in self.sent for digest in frame.stored]

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.random() / 100)

    # The stream

    async def read(self) -> bytes | None:
        """Return the next frame."""
        frame = await self.inbox.get()
        if isinstance(frame, Exception):
            raise frame
        self.reads += 1
        return frame

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        sent = TransferFrame.FromString(frame)
        assert len(sent.messages) <= self.limits.frame_messages
        assert len(sent.stored) + len(sent.refused) <= self.limits.frame_answers
        assert len(frame) <= 4 * 1024 * 1024
        self.sent.append(sent)
        self.unsent_bytes -= sum(each.ByteSize() for each in sent.messages)
        if self.peer is not None:
            self.peer.inbox.put_nowait(frame)
        await self.takes.wait()
        await self._pause()

    async def half_close(self) -> None:
        """End this direction."""
        if self.peer is not None:
            self.peer.inbox.put_nowait(None)

    # The database

    async def store(self, batch: RecordBatch, source: Source) -> StoreResult:
        """Store a batch."""
        assert source is Source.TRANSFER
        self.writes += 1
        await self.stores.wait()
        await self._pause()
        return self.contents.add(batch)

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return encoded messages of the first IDs."""
        await self._pause()
        found: list[bytes | None] = []
        for _, digest in ids.pairs():
            stored = self.contents.frames.get(digest)
            message = None if stored is None else transferred(stored[1])
            max_bytes -= len(message or b"")
            if max_bytes < 0 and found:
                break
            found.append(message)
        sizes = [len(message or b"") for message in found]
        self.unsent_bytes += sum(sizes)
        return found

    async def find(self, ids: SyncIds) -> list[bool]:
        """Return for each ID whether it is stored."""
        await self._pause()
        return [digest in self.contents.frames for _, digest in ids.pairs()]


def join(one: Side, other: Side) -> tuple[Side, Side]:
    """Connect two sides."""
    one.peer, other.peer = other, one
    return one, other


def pair(
    left: Store,
    right: Store,
    *,
    memories: tuple[PolicyMemory, PolicyMemory] | None = None,
    policies: tuple[Policy, Policy] = (POLICY, POLICY),
    seed: int = 0,
    **more: Any,  # noqa: ANN401 - as of `Side`
) -> tuple[Side, Side]:
    """Return the two sides of a session over what two stores hold."""
    one, other = memories or (PolicyMemory(), PolicyMemory())
    there, here = right.lacks(left), left.lacks(right)
    callee = {"role": Role.RESPONDER, **more}
    return join(
        Side(left, there, here, peer="b", memory=one, policy=policies[0], seed=seed, **more),
        Side(right, here, there, peer="a", memory=other, policy=policies[1], seed=~seed, **callee),
    )


async def finish(*sides: Side) -> list[SessionReport]:
    """Return the reports of sides at their ends."""
    return [await side.ended() for side in sides]
