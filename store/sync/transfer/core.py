"""The transfer of what a reconciliation found, both ways: one machine, the same on both sides.

It is given the IDs that the peer lacks and those that this node lacks, and a frame at a time; it
says what to read, what to store and what to write to the stream. Source: WAKU-SYNC, "Transfer
Protocol", and the node's contract (the schema of ``TransferFrame``).

Rules.

1. Only what the session found missing is stored, each message once: its hash, which admission has
   computed anew, is that of an ID that is expected, and its timestamp too. Anything else is
   refused by name, counted, and ends the transfer when it is too much.
2. Every ID that is expected is answered once: ``stored`` when it is durable, whichever way it came,
   or ``refused`` with the reason. When the peer is done, what has not come is looked up, and
   refused as "not received" where it is not held.
3. Every ID to send is answered once by the peer. An answer to anything else, or a second one, is a
   fault of the peer.
   A message that is not stored since another one has its hash is refused as a conflict, and the two
   sides are not equal then.
4. What policy refuses is remembered on both sides (`PolicyMemory`): it is answered at once in later
   sessions, and not sent.
5. At most `TransferLimits.unsent_bytes` are read ahead of the stream, and at most one frame is
   under way to it. While `unstored_bytes` wait for the database, the stream is not read
   (`reading`). Answers wait as places of IDs. So memory does not depend on what the peer does.
6. It ends when both sides are done and all is answered; when it takes too long
   (`Patience`); at a fault; or when the stream or the database is lost. What
   was persisted stays, and the next reconciliation does not find it. A stream that is lost when all
   is answered was only closed: who has everything first need not wait for the other.
7. Where this side's result is ``partial``, since there are more differences than it may report, the
   peer may have found others, if its limit is another one. Then messages that are not expected are
   refused by name, a few at a time, and answers about others passed over, and none is a fault.

A peer is silent until a frame has something in it that counts: an expected message, an answer, or
the word that it is done.

=========  ==========================================  ===================================
state      inputs that are allowed                     leaves it
=========  ==========================================  ===================================
NEW        Begin; Lost                                 Begin: RUNNING; Lost: ENDED
RUNNING    Received, Ticked, Lost; SendReady, Loaded,  rule 6: ENDED
           Persisted, Found as answers to an effect
ENDED      none
=========  ==========================================  ===================================

An input that is not allowed raises `TransferStateError` and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from reconcile.ids import SyncIds
from store.sync.limits import FRAME_RESERVE_BYTES, MAX_FRAME_BYTES, TransferLimits
from store.sync.transfer.events import (
    Begin,
    Effect,
    Found,
    Frame,
    Input,
    Loaded,
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
from store.sync.transfer.policy_memory import PolicyMemory, Side
from store.sync.transfer.receive_half import Receiving
from store.sync.transfer.send_half import PeerFaultError, Sending
from storenode.message.limits import HASH_BYTES, NS_PER_S

DEFAULT_LIMITS: Final = TransferLimits()

_STORED_BYTES: Final = 2 + HASH_BYTES
_REFUSED_BYTES: Final = 12 + HASH_BYTES
"""An answer in a frame at most, without the reason."""


_NOT_IN_VAIN: Final = "what was stored stays, and the next session goes on"


class TransferStateError(RuntimeError):
    """The input is not allowed now; nothing was changed."""


class _State(Enum):
    NEW = "has not begun"
    RUNNING = "runs"
    ENDED = "has ended"


class Transfer:
    """A transfer, made in about half a second for a million IDs each way.

    ``to_send`` are IDs that the peer lacks, ``to_receive`` those that this node lacks; both
    ascend. ``peer`` names the peer in ``memory``. ``partial``: see rule 7. The time of the steps is
    in nanoseconds of a monotonic clock.
    """

    def __init__(
        self,
        session_id: str,
        to_send: SyncIds,
        to_receive: SyncIds,
        *,
        memory: PolicyMemory,
        peer: str,
        limits: TransferLimits = DEFAULT_LIMITS,
        partial: bool = False,
    ) -> None:
        self.session_id = session_id
        self.report = Report()
        """What has been done so far; final in `TransferEnded`."""
        self._limits = limits
        theirs, ours = memory.book(peer, Side.THEIRS), memory.book(peer, Side.OURS)
        self._sending = Sending(to_send, limits, self.report, theirs)
        self._receiving = Receiving(to_receive, limits, self.report, ours, partial=partial)
        self._partial = partial
        self._patience: Patience | None = None  # from its beginning on
        self._state = _State.NEW
        self._now_ns = 0
        self._clock_ns = 0  # of the Unix epoch, on the clock of the steps
        self._frame_bytes = 0  # of messages in the frame that is being written
        self._moved_bytes = 0
        self._named = False  # this side has sent a frame
        self._answered = False  # the peer has
        self._writing = False
        self._done = False

    @property
    def reading(self) -> bool:
        """False while the next frame of the peer must be left in the stream."""
        return self._receiving.reading

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        """Take one input in.

        Raises:
            TransferStateError: it is not allowed now.
        """
        self._demand(given)
        if self._patience is not None:
            own_work = self._receiving.looks or self._sending.loading
            self._patience.pass_time(now_ns, waiting=not own_work)
        self._now_ns = now_ns
        try:
            effects = self._take(given)
        except PeerFaultError as fault:
            return self._end(fault.fault, fault.sentence)
        if self._state is _State.RUNNING:
            effects += self._go_on()
        return effects

    def check(self) -> None:
        """Verify the invariants of both halves, and the bounds of rule 5.

        Raises:
            AssertionError: one is broken.
        """
        self._sending.check()
        self._receiving.check()
        ended_well = self._state is _State.ENDED and not self.report.fault
        assert not ended_well or self._is_complete()
        assert self._named or not (self._writing or self._done)

    def _demand(self, given: Input) -> None:
        match given:
            case Begin():
                allowed = self._state is _State.NEW
            case StreamLost():
                allowed = self._state is not _State.ENDED
            case SendReady():
                allowed = self._writing
            case Loaded():
                allowed = self._sending.takes(len(given.messages))
            case Persisted():
                allowed = self._receiving.holds(given.token, len(given.new))
            case Found():
                allowed = self._receiving.asks(len(given.is_stored))
            case _:
                allowed = True
        running = self._state is _State.RUNNING or isinstance(given, Begin | StreamLost)
        if not (allowed and running):
            raise TransferStateError(
                f"{type(given).__name__} is not allowed now: the transfer {self._state.value}"
            )

    def _take(self, given: Input) -> list[Effect]:
        effects: list[Effect] = []
        match given:
            case Begin():
                self._begin(given)
            case TransferReceived():
                effects += self._receive(given)
            case Loaded():
                effects += self._sending.loaded(given)
            case Persisted():
                effects += self._receiving.persisted(given)
            case Found():
                effects += self._receiving.found(given.is_stored)
            case SendReady():
                self._writing = False
                self._moved_bytes += self._frame_bytes
            case Ticked():
                assert self._patience is not None
                self._patience.check_time(self._moved())
            case StreamLost() if self._is_complete():
                return self._end(TransferFault.NONE, "")
            case StreamLost():
                return self._end(TransferFault.LOST, given.sentence)
        return effects

    def _begin(self, begin: Begin) -> None:
        self._state = _State.RUNNING
        self._clock_ns = begin.clock_ns - self._now_ns
        self._receiving.decline(begin.clock_ns)
        self._sending.withhold(begin.clock_ns)
        self._patience = Patience(self._limits, self._now_ns, self._moved())

    def _receive(self, frame: TransferReceived) -> list[Effect]:
        self._check_session(frame.session_id)
        if self._partial:
            stored, refused = self._sending.concerned(frame.stored, frame.refused)
            frame = replace(frame, stored=stored, refused=refused)
        answers = self._sending.find(frame.stored, frame.refused)
        places = self._receiving.place(frame.published)
        before = self._receiving.news
        reasons = [reason for _, reason in frame.refused]
        clock_ns = self._clock_ns + self._now_ns
        effects: list[Effect] = []
        effects += self._sending.answered(clock_ns, answers, len(frame.stored), reasons)
        effects += self._receiving.receive(clock_ns, frame.published, places, frame.size_bytes)
        first_done = frame.done and not self._receiving.peer_is_done
        if first_done:
            self._receiving.peer_is_done = True
        has_news = self._receiving.news > before
        if has_news:
            self._moved_bytes += frame.size_bytes
        if len(answers) or first_done or has_news or not self._answered:
            assert self._patience is not None
            self._patience.restart()
        self._answered = True
        return effects

    def _check_session(self, session_id: str) -> None:
        if session_id == self.session_id or (self._answered and not session_id):
            return
        raise PeerFaultError(
            TransferFault.PROTOCOL, "the frame names another session, or the first one none"
        )

    def _moved(self) -> Moved:
        sending, receiving = self._sending, self._receiving
        settled = len(sending.ids) - sending.unanswered + len(receiving.ids) - receiving.outstanding
        return Moved(settled, self._moved_bytes, sending.unanswered + receiving.outstanding)

    def _go_on(self) -> list[Effect]:
        effects: list[Effect] = []
        found = self._receiving.find()
        if found is not None:
            effects.append(found)
        load = self._sending.load()
        if load is not None:
            effects.append(load)
        frame = None if self._writing else self._frame()
        if frame is not None:
            self._writing = self._named = True
            effects.append(SendFrame(frame))
        elif not self._writing and self._is_complete():
            effects += self._end(TransferFault.NONE, "")
        return effects

    def _is_complete(self) -> bool:
        return (
            self._done
            and self._receiving.peer_is_done
            and not self._sending.unanswered
            and not self._receiving.outstanding
        )

    def _frame(self) -> Frame | None:
        stored, refused = self._receiving.answers.take(self._limits.frame_answers)
        room = MAX_FRAME_BYTES - FRAME_RESERVE_BYTES - _STORED_BYTES * len(stored)
        room -= sum(_REFUSED_BYTES + len(reason.encode()) for _, reason in refused)
        messages = self._sending.take(room, alone=not stored and not refused)
        done = not self._done and self._sending.exhausted
        if not (messages or stored or refused or done) and self._named:
            return None
        self._done = self._done or done
        session_id = "" if self._named else self.session_id
        self._frame_bytes = sum(map(len, messages))
        return Frame(session_id, messages, stored, refused, done)

    def _end(self, fault: TransferFault, sentence: str) -> list[Effect]:
        self._state = _State.ENDED
        report = self.report
        report.fault, report.error = fault, sentence
        report.unanswered = self._sending.unanswered
        report.outstanding = self._receiving.outstanding
        report.reasons_of_peer = tuple(self._sending.reasons)
        report.refused_by_peer = +report.refused_by_peer
        return [TransferEnded(report)]


@dataclass(frozen=True, slots=True)
class Moved:
    """The progress so far: IDs that were settled, bytes of messages, and IDs yet open."""

    settled: int
    size_bytes: int
    open: int


class Patience:
    """The patience of a transfer with a peer that sends little, or nothing.

    Three limits, of which the first two count only time in which it is the peer's turn: no word for
    `TransferLimits.silence_ns`; too little moved in `pace_ns`, so that a peer which lets messages
    trickle does not keep a session for itself; and `total_ns` in all. What ends so was not in vain:
    what is stored stays, and the next session finds the rest. Times are nanoseconds of a monotonic
    clock.
    """

    def __init__(self, limits: TransferLimits, now_ns: int, moved: Moved) -> None:
        self._limits = limits
        self._began_ns = self._now_ns = self._news_ns = now_ns
        self._waited_ns, self._mark = 0, moved

    def pass_time(self, now_ns: int, *, waiting: bool) -> None:
        """Set the time; ``waiting``: up to now it was for the peer to do something."""
        if waiting:
            self._waited_ns += now_ns - self._now_ns
        else:
            self._news_ns = now_ns
        self._now_ns = now_ns

    def restart(self) -> None:
        """Note that the peer has just sent something that counts."""
        self._news_ns = self._now_ns

    def check_time(self, moved: Moved) -> None:
        """Check that there is time left.

        Raises:
            PeerFaultError: there is not.
        """
        limits = self._limits
        silent_ns = self._now_ns - self._news_ns
        if silent_ns >= limits.silence_ns:
            raise PeerFaultError(
                TransferFault.SILENCE,
                f"the peer has said nothing for {silent_ns // NS_PER_S} s: {_NOT_IN_VAIN}; if it "
                "needs longer for an answer, see to its database, or give --peer-silence on both",
            )
        if self._now_ns - self._began_ns >= limits.total_ns:
            raise PeerFaultError(
                TransferFault.SLOW,
                f"the transfer was not done within {limits.total_ns // NS_PER_S} s: {_NOT_IN_VAIN}",
            )
        if self._waited_ns >= limits.pace_ns:
            self._demand_pace(moved)

    def _demand_pace(self, moved: Moved) -> None:
        limits, mark = self._limits, self._mark
        settled = moved.settled - mark.settled
        size_bytes = moved.size_bytes - mark.size_bytes
        if settled < min(limits.pace_ids, mark.open) and size_bytes < limits.pace_bytes:
            raise PeerFaultError(
                TransferFault.SLOW,
                f"the transfer moved {settled:,} messages and {size_bytes:,} bytes in "
                f"{limits.pace_ns // NS_PER_S} s, and {limits.pace_ids:,} or "
                f"{limits.pace_bytes:,} are due: {_NOT_IN_VAIN}",
            )
        self._waited_ns, self._mark = 0, moved
