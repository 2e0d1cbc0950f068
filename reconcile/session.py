"""The sides of a reconciliation: initiator and responder.

Rules (WAKU-SYNC, "Reconciliation Message Flow", and the rulings on it):

- The initiator begins with a Skip to its window and one fingerprint over it. Then the sides take
  turns, a payload each.
- A range that is equal is answered by a Skip; one that differs by finer fingerprints, by an
  unreconciled set, or by small reconciled sets that show every difference in it.
- A side that has nothing to answer sends the empty payload; the side that receives it is done.
- A session works on one fixed view, between fixed bounds: the initiator's window, and what the
  responder was first asked about, neither below the own horizon.
- A peer is trusted only for its own items: an ID is to be sent only if it was read from the view.

`ReconcileSession.begin` and `receive` are computations that read a view, which may have to load IDs
meanwhile (`reconcile.summaries.summary.proceed`). Each ends in a step: a frame to send, the result,
or both; after the result there is nothing more.
The driver limits the time. A payload that is malformed or beyond a limit raises, and the session
has then no result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from reconcile import kernel
from reconcile.algorithm import direct
from reconcile.algorithm.plan import Rules, Tuning
from reconcile.algorithm.questions import asked_about, questions
from reconcile.algorithm.turn import Reply, Turn
from reconcile.codec import Payload, RangeKind, Ranges, decode, encode_head
from reconcile.errors import SessionLimitError
from reconcile.ids import LOWEST, SyncId, SyncIds, ordered, total
from reconcile.limits import DEFAULT_SESSION_LIMITS, SessionLimits
from reconcile.view import Loading, Spans, View
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.varint import varint

Bounds = tuple[SyncId, SyncId]


class Role(StrEnum):
    """A side of a session (label ``role`` of the metrics)."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """The configuration of a session.

    Attributes:
        cluster: the node's cluster.
        shards: the node's shards, in any order.
        window: the range to reconcile; the initiator's. None for a responder.
        horizon: nothing below is compared. An initiator's, and its window, are bounded by times.
        limits: the limits of the session.
        tuning: the parameters that were chosen by measuring.
    """

    cluster: int
    shards: tuple[int, ...]
    window: Bounds | None = None
    horizon: SyncId = LOWEST
    limits: SessionLimits = DEFAULT_SESSION_LIMITS
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True, slots=True)
class PayloadFrame:
    """A frame to send, or of the peer.

    Attributes:
        payload: its ``ranges_data``.
        count: the number of the sender's IDs in the whole range, for its first frame.
        refusal: why its sender will not reconcile; empty if it will.
    """

    payload: bytes
    count: int | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a session.

    Attributes:
        to_send: IDs that the peer lacks, ascending; all of them are in the view.
        to_receive: IDs that the peer has and the view lacks, ascending.
        rounds: payloads that the initiator sent.
        own_count: IDs in the view, in the window; None if it was never counted.
        window: the range that was reconciled; both bounds are ``LOWEST`` if none was.
        truncated: there are more differences than a session may report, or there may be.
        refusal: why nothing was reconciled; empty if something was.
    """

    to_send: SyncIds
    to_receive: SyncIds
    rounds: int
    own_count: int | None
    window: Bounds
    truncated: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class SessionStep:
    """The end of a computation: a frame to send, the result of the session, or both."""

    frame: PayloadFrame | None = None
    result: Result | None = None


class ReconcileSession:
    """A side of one reconciliation; fixed view, strictly one computation at a time.

    Raises:
        ValueError: an initiator without a window, or a responder with one; a bound of an initiator
            inside a nanosecond.
    """

    def __init__(self, role: Role, config: SessionConfig) -> None:
        if (role is Role.INITIATOR) != (config.window is not None):
            raise ValueError("an initiator has a window and a responder has none: pass it so")
        if config.window and any(
            hash_ != LOWEST[1] for _, hash_ in (*config.window, config.horizon)
        ):
            raise ValueError("bounds of an initiator lie inside a nanosecond: pass times alone")
        self._role = role
        self._config = config
        self.ended = False
        self._territory: Bounds | None = None
        self._large: bool | None = None
        self._rounds = 0
        self._own_count: int | None = None
        self._truncated = False
        self.head = encode_head(config.cluster, config.shards)
        self._usual = True  # no view has said yet that payloads need more than compiled code
        self._to_send = SyncIds.empty()
        self._to_receive = SyncIds.empty()

    def check(self) -> None:
        """Verify that the state is one that the rules allow.

        Raises:
            AssertionError: it is not.
        """
        assert 0 <= self._rounds <= self._config.limits.max_rounds
        self._to_send.check()
        self._to_receive.check()
        assert len(self._to_send) + len(self._to_receive) <= self._config.limits.max_differences

    def begin(self, view: View) -> Loading[SessionStep]:
        """Send the initiator's first payload.

        It has a Skip up to the window, and a fingerprint over it.
        """
        config = self._config
        assert config.window is not None
        lower, upper = max(config.window[0], config.horizon), config.window[1]
        if upper <= lower:
            return SessionStep(result=self._end())
        self._territory = lower, upper
        measured = yield from view.measure(Spans.of([(lower, upper)]))
        self._own_count = total(measured.counts)
        self._large = self._own_count >= config.tuning.large_count
        skip = varint(lower[0]) + bytes([RangeKind.SKIP]) if lower[0] else b""
        record = varint(upper[0] - lower[0]) + bytes([RangeKind.FINGERPRINT])
        payload = self.head + skip + record + measured.fingerprints.tobytes()
        return SessionStep(self._send(payload))

    def receive(self, given: PayloadFrame, view: View) -> Loading[SessionStep]:
        """Read a frame of the peer, and compute the answer from the view.

        Raises:
            MalformedPayloadError: its payload is not what the specification says.
            PayloadLimitError: it, or the session, is larger than allowed.
        """
        if self._role is Role.RESPONDER:
            self._count_round()
        reply = self._direct(given, view)
        return (yield from self._by_turn(given, view)) if reply is None else self._replied(reply)

    def _direct(self, given: PayloadFrame, view: View) -> Reply | None:
        """Return the reply by compiled code; None: a turn has to find it."""
        territory, payload, memory = self._territory, given.payload, view.memory
        lower, upper = territory or (self._config.horizon, (MAX_TIMESTAMP_NS, LOWEST[1]))
        limits = self._config.limits.payload
        usual = kernel.compiled is not None and self._usual and not given.refusal
        usual = usual and not self._truncated and lower[1] == upper[1] == LOWEST[1]
        usual = usual and len(self.head) < len(payload) <= limits.max_payload_bytes
        usual = usual and len(self._config.shards) <= limits.max_shards
        if memory is None or not (usual and payload.startswith(self.head)):
            return None
        index = memory[0].handle, memory[1][0]
        bounds_ns = lower[0], upper[0]
        found = direct.answer(payload, len(self.head), bounds_ns, self._rules(), index)
        if found is None:
            self._usual = False
            return None
        reply, asked = found
        if territory is None:
            self._territory = max(asked[0], self._config.horizon), asked[1]
        return reply

    def _by_turn(self, given: PayloadFrame, view: View) -> Loading[SessionStep]:
        """Compute the answer to any payload from any view, step by step."""
        payload = decode(given.payload, self._config.limits.payload)
        mismatch = self._mismatch(payload) if len(given.payload) > 1 else ""
        if given.refusal or not len(payload.ranges):
            return SessionStep(result=self._end(given.refusal or mismatch))
        if mismatch:
            stated = mismatch if self._role is Role.RESPONDER else ""
            return SessionStep(self._send(b"", stated), self._end(mismatch))
        if self._territory is None:
            self._territory = self._asked_territory(payload.ranges)
        if self._territory is None or self._truncated:
            return SessionStep(self._send(b""), self._end())
        limits = self._config.limits
        asked = questions(payload.ranges, self._territory, limits.max_cut_ranges)
        return self._replied((yield from Turn(asked, self._rules(), view).run()))

    def _replied(self, reply: Reply) -> SessionStep:
        self._record(reply)
        sent = self._send(reply.payload)
        return SessionStep(sent, None if reply.payload else self._end())

    def _count_round(self) -> None:
        allowed = self._config.limits.max_rounds
        if self._rounds == allowed:
            raise SessionLimitError("max_rounds", allowed, allowed + 1)
        self._rounds += 1

    def _mismatch(self, payload: Payload) -> str:
        """Return why the sides must not reconcile; empty if they may."""
        config = self._config
        if (payload.cluster, payload.shards) == (config.cluster, config.shards):
            return ""
        ours = config.cluster, sorted(set(config.shards))
        theirs = payload.cluster, sorted(set(payload.shards))
        if ours == theirs:
            return ""
        return (
            f"{self._role.value} has cluster {ours[0]} and shards {_listed(ours[1])}, its peer"
            f" cluster {theirs[0]} and shards {_listed(theirs[1])}: they must be equal"
        )

    def _asked_territory(self, ranges: Ranges) -> Bounds | None:
        """Return the bounds that the responder is asked about, above its horizon."""
        asked = asked_about(ranges)
        if asked is None:
            return None
        lower = max(asked[0], self._config.horizon)
        return (lower, asked[1]) if lower < asked[1] else None

    def _rules(self) -> Rules:
        config = self._config
        ordinal = 2 * self._rounds + (self._role is Role.INITIATOR)
        found = len(self._to_send) + len(self._to_receive)
        return Rules(
            cluster=config.cluster,
            shards=config.shards,
            limits=config.limits,
            differences_left=config.limits.max_differences - found,
            tuning=config.tuning,
            ordinal=ordinal,
            large=self._large,
        )

    def _record(self, reply: Reply) -> None:
        self._truncated |= reply.truncated
        self._to_send = _united(self._to_send, reply.to_send)
        self._to_receive = _united(self._to_receive, reply.to_receive)
        if self._own_count is None:
            self._own_count = reply.own_count
            self._large = reply.own_count >= self._config.tuning.large_count

    def _send(self, payload: bytes, refusal: str = "") -> PayloadFrame:
        if self._role is Role.INITIATOR:
            self._count_round()
        return PayloadFrame(payload, None if refusal else self._own_count, refusal)

    def _end(self, refusal: str = "") -> Result:
        self.ended = True
        # A side that leaves differences out answers as if there were no more of them. The peer is
        # shown as many as a session may report, and knows by that.
        found = len(self._to_send) + len(self._to_receive)
        full = found == self._config.limits.max_differences
        return Result(
            to_send=self._to_send,
            to_receive=self._to_receive,
            rounds=self._rounds,
            own_count=self._own_count,
            truncated=self._truncated or full,
            refusal=refusal,
            window=self._territory or (LOWEST, LOWEST),
        )


def _united(ids: SyncIds, more: list[SyncIds]) -> SyncIds:
    """Return IDs with some that were found later; ascending, each once."""
    added = [some for some in more if len(some)]
    return ordered(SyncIds.join([ids, *added])) if added else ids


def _listed(shards: list[int]) -> str:
    """Return shards for a sentence; not more of them than a reader can use."""
    if not shards:
        return "none"
    shown = ", ".join(map(str, shards[:16]))
    return f"{shown} and {len(shards) - 16} more" if len(shards) > 16 else shown
