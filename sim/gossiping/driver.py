"""The gossip of one process: its machine, its streams, its database.

What the edge does around `store.gossip.machine.Gossip`, as generators on virtual time: see
`store.gossip.events` for what that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reconcile.ids import SyncId
from sim.calls import Closed, End, Ended, Status
from sim.database import Unavailable
from sim.dice import happens
from sim.gossiping.stream import Stream
from sim.limits import NS_PER_MS, NS_PER_S
from sim.process import Handler, Process
from sim.tasks import Promise, Steps, Task
from sim.timeline import Timer
from store.domain.admission import Admission
from store.domain.ports import PeerAddress, Source
from store.gossip import events as ge
from store.gossip.machine import Gossip
from store.messages.transfer import transferred

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

GOSSIP: Final = "Gossip"

_REDIAL_NS: Final = NS_PER_S
_RETRY_NS: Final = NS_PER_S
_REFRESH_NS: Final = 30 * NS_PER_S
_CHECK_EVERY_STEPS: Final = 17

Durable = ge.Confirm | ge.Read | ge.Expire | ge.Waiting


class Gossiping:
    """One life; a `sim.process.Service`.

    Attributes:
        machine: None until the database has said what is unread.
        streams: by node ID.
    """

    def __init__(self, process: Process, world: GossipWorld) -> None:
        self.process = process
        self.world = world
        self.records = world.records[process.database.store_id]
        self.machine: Gossip | None = None
        self.streams: dict[str, Stream] = {}
        self._names: dict[str, str] = {}
        self._barred: dict[str, int] = {}
        self._early: deque[list[bytes]] = deque()
        self._fed_ns = 0
        self._steps = 0
        self._timer: Timer | None = None
        self._unwritten: deque[Durable] = deque()
        self._written: Promise[None] = Promise()

    def methods(self) -> Mapping[str, Handler]:
        """The one."""
        return {GOSSIP: self._serve}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """Follow the database, then begin."""
        process = self.process
        followers = process.database.followers
        followers.append(self._hear)
        process.at_end.append(lambda: followers.remove(self._hear))
        process.spawn("gossip", self._begin())

    def check(self) -> None:
        """Verify the machine."""
        if self.machine is not None:
            self.machine.check()

    # From clients

    def publishing(self, ids: Sequence[bytes], min_confirms: int) -> None:
        """A client is about to store something."""
        self.records.expect(ids, min_confirms)
        self.step(ge.Publishing(ids, min_confirms))

    def published(self, ids: Sequence[bytes], min_confirms: int) -> None:
        """It is durable; some of it was before."""
        self.records.want(self.process.timeline.now_ns, ids, min_confirms)
        if min_confirms:
            self.step(ge.Wanted(ids, min_confirms))

    # The machine

    def step(self, given: ge.Input) -> None:
        """Take one input in, and do what follows."""
        machine = self.machine
        if machine is None or not self.process.alive:
            return
        effects = machine.step(self.process.clock.steady_ns(), given)
        self._steps += 1
        if not self._steps % _CHECK_EVERY_STEPS:
            machine.check()
        for effect in effects:
            self._do(effect)
        self._arm()

    def _do(self, effect: ge.Effect) -> None:
        match effect:
            case ge.Send():
                self.world.frames += 1
                self.world.gossip_judge.sends(self.process, effect.frame)
                self.streams[effect.peer].send(effect.frame)
            case ge.Listen():
                self.streams[effect.peer].listen(effect.reading)
            case ge.Persist() | ge.Load() | ge.LookUp():
                self.process.spawn("gossip request", self._request(effect))
            case ge.Confirm() | ge.Read() | ge.Expire() | ge.Waiting():
                self._unwritten.append(effect)
                self._written.keep(None)
            case ge.CutOff():
                self._cut_off(effect)
            case ge.Counted():
                self.world.counts[effect.what] += effect.count

    def _arm(self) -> None:
        process, machine = self.process, self.machine
        assert machine is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = machine.next_wake_ns
        if wake_ns is not None:
            delay_ns = process.clock.true_delay_ns(wake_ns - process.clock.steady_ns())
            self._timer = process.timeline.after(delay_ns, lambda: self.step(ge.Tick()))

    # The database

    def _begin(self) -> Steps[None]:
        process = self.process
        while True:
            try:
                recent, unread = yield from process.database.look(self._look).wait()
                break
            except Unavailable:
                yield from process.sleep(_RETRY_NS)
        self.machine = self.world.make_machine(process.database.store_id)
        self.step(ge.Committed(recent, self.world.events_of(recent), fresh=False))
        self.step(ge.Restored(unread))
        while self._early:
            self._tell(self._early.popleft())
        process.spawn("gossip writer", self._write())
        process.spawn("gossip unread", self._refresh())
        for peer in process.node.peers:
            process.spawn("gossip dial", self._dial(peer))

    def _refresh(self) -> Steps[None]:
        """Now and then look what has become unread by others: another node, or an earlier life."""
        process = self.process
        while True:
            yield from process.sleep(_REFRESH_NS)
            try:
                _, unread = yield from process.database.look(self._look).wait()
            except Unavailable:
                continue
            self.step(ge.Restored(unread))

    def _look(self) -> tuple[list[bytes], list[ge.UnreadEvent]]:
        return self.records.recent(), self.records.unread(self.process.timeline.now_ns)

    def _hear(self, _: int, added: list[SyncId]) -> None:
        """Commits are told a little later, in their order, some twice."""
        process = self.process
        ids = [digest for _, digest in added]
        times = 1 + happens(process.dice, self.world.gossip.retold)
        for _ in range(times):
            delay_ns = int(process.dice.random() * 20 * NS_PER_MS)
            self._fed_ns = max(self._fed_ns, process.timeline.now_ns + delay_ns)
            process.timeline.at(self._fed_ns, lambda: self._tell(ids))

    def _tell(self, ids: list[bytes]) -> None:
        if self.machine is None:
            self._early.append(ids)
        else:
            self.step(ge.Committed(ids, self.world.events_of(ids)))

    def _request(self, effect: ge.Persist | ge.Load | ge.LookUp) -> Steps[None]:
        database = self.process.database
        try:
            match effect:
                case ge.Persist():
                    new = yield from database.write(self.process, effect.batch).wait()
                    self.step(ge.Persisted(effect.token, new))
                case ge.Load():
                    messages = yield from database.look(lambda: self._read(effect)).wait()
                    self.step(ge.Loaded(effect.token, messages))
                case ge.LookUp():
                    held = yield from database.look(
                        lambda: [digest in database.held for digest in effect.ids]
                    ).wait()
                    self.step(ge.Known(effect.token, held))
        except Unavailable:
            self.step(ge.Failed(effect.token))

    def _read(self, load: ge.Load) -> list[bytes | None]:
        held, size = self.process.database.held, 0
        messages: list[bytes | None] = []
        for digest in load.ids:
            message = transferred(held[digest][1]) if digest in held else None
            size += len(message or b"")
            if messages and size > load.max_bytes:
                break
            messages.append(message)
        return messages

    def _write(self) -> Steps[None]:
        """Write behind: what the machine says, in its order, again where that fails."""
        database = self.process.database
        while True:
            self._written = Promise()
            if not self._unwritten:
                yield from self._written.wait()
            effects = list(self._unwritten)
            try:
                yield from database.look(partial(self._apply, effects)).wait()
            except Unavailable:
                yield from self.process.sleep(_RETRY_NS)
                continue
            for _ in effects:
                self._unwritten.popleft()

    def _apply(self, effects: list[Durable]) -> None:
        self.records.apply(effects)
        self.world.gossip_judge.wrote(self.process, effects)

    # Streams

    def _serve(self, end: End, task: Task) -> Steps[None]:
        if self.machine is None:
            end.finish(Status.UNAVAILABLE, "not ready")
            return
        yield from self._run(Stream(self.process, end, task, self._sent, called=True))

    def _dial(self, peer: PeerAddress) -> Steps[None]:
        process = self.process
        while True:
            if self._is_wanted(peer):
                try:
                    end = yield from process.network.call(
                        process.name, peer.host, GOSSIP, process.identity
                    )
                except Closed:
                    pass
                else:
                    self._names[peer.host] = end.there.node_id
                    process.begin("gossip stream", partial(self._called, end))
            yield from process.sleep(int(_REDIAL_NS * process.dice.uniform(0.5, 1.5)))

    def _called(self, end: End, task: Task) -> Steps[None]:
        end.on_lost = task.cancel
        try:
            yield from self._run(Stream(self.process, end, task, self._sent, called=False))
        except Closed:
            return

    def _is_wanted(self, peer: PeerAddress) -> bool:
        name = self._names.get(peer.host, "")
        return name not in self.streams and not self._is_barred(name)

    def _is_barred(self, node_id: str) -> bool:
        return self._barred.get(node_id, 0) > self.process.clock.steady_ns()

    def _run(self, stream: Stream) -> Generator[Promise[Any], None, None]:
        """One stream from its beginning to its end; of two with one peer, one gives way."""
        key = stream.key
        before = self.streams.get(key)
        if self._is_barred(key) or (before is not None and not self._replaces(stream, before)):
            stream.close()
            return
        if before is not None:
            self._leave(before)
            before.close()
        self.streams[key] = stream
        self.step(ge.PeerJoined(key, stream.store_id))
        try:
            while self.streams.get(key) is stream:
                frame = yield from stream.read()
                if isinstance(frame, Ended):
                    return
                self.step(ge.Received(key, self._judged(frame)))
        finally:
            self._leave(stream)
            stream.close()

    def _replaces(self, stream: Stream, before: Stream) -> bool:
        """Does a new stream with a peer go before the one that is there?

        One that was begun by the same side does: the other one is broken, and nobody has noticed.
        """
        lower_is_caller = (self.process.identity.node_id < stream.key) != stream.called
        return stream.called == before.called or lower_is_caller

    def _leave(self, stream: Stream) -> None:
        if self.streams.get(stream.key) is stream:
            del self.streams[stream.key]
            self.step(ge.PeerLeft(stream.key))

    def _sent(self, stream: Stream) -> None:
        """A stream has taken a frame."""
        if self.streams.get(stream.key) is stream:
            self.step(ge.Sent(stream.key))

    def _cut_off(self, effect: ge.CutOff) -> None:
        self.process.note(f"cuts {effect.peer} off: {effect.reason}")
        self.world.gossip_judge.cut_off(self.process, effect)
        self._barred[effect.peer] = effect.until_ns
        stream = self.streams.pop(effect.peer)
        stream.close()

    def _judged(self, frame: Any) -> ge.FrameIn:  # noqa: ANN401 - whatever a peer has sent
        """What admission says of the messages of a frame."""
        if not isinstance(frame, ge.Events):
            inward: ge.FrameIn = frame
            return inward
        process = self.process
        admission = Admission(process.policy(), process.clock.unix_ns(), Source.GOSSIP)
        admission.admit(frame.messages)
        published = admission.admitted
        refused = [
            (published.hashes[index], refusal.label)
            for index, refusal in published.refusals.items()
        ]
        return ge.Bodies(published.batch, refused, sum(map(len, frame.messages)))
