"""Sessions of gateways with nwaku, with each other, and with a peer that lies.

The engine is `store.gateway.sync_session` with its codec; `sim.nwaku` is the other implementation.
The rules that a run must keep:

1. Two honest sides whose session ends find exactly what the other lacks in the common window, each
   ID once, within `MAX_SYNC_FRAMES` frames, and few differences take few bytes.
2. A liar gets only messages of this side and of its window, each once, and answers of a size that
   its own frames and the IDs of this side bound.
3. After sessions of all pairs without faults, all honest sides store the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from sim.judge import Violation
from sim.limits import NS_PER_S, START_NS
from sim.nwaku import SimulatedNwaku
from sim.rng import Rng, happens
from sim.timeline import Timeline, Trace
from store.gateway.limits import MAX_SYNC_FRAMES
from store.gateway.sync_codec import (
    Id,
    ItemSet,
    PayloadError,
    Range,
    SyncPayload,
    decode_payload,
    encode_payload,
)
from store.gateway.sync_session import MessageIds, SyncSession
from storenode.message.limits import HASH_BYTES

TOPICS: Final = ("/waku/2/rs/7/0",)
_HOUR_NS: Final = 3_600 * NS_PER_S
_SPANS_NS: Final = (5, 8, 20, 1_000, _HOUR_NS, _HOUR_NS)
_SESSIONS: Final = 8
_BREAKS: Final = 0.05
_LIAR_FRAMES: Final = 6
_BYTES: Final = 8_000
_BYTES_PER_DIFFERENCE: Final = 12_000

NWAKU: Final = "nwaku"


@dataclass(frozen=True, slots=True)
class SyncSummary:
    """The result of a run: sessions that ended, those that broke, and those with liars."""

    digest: str
    sessions: int
    broken: int
    lies: int


class SyncWorld:
    """Gateways, an nwaku and their messages; `run` is called once."""

    def __init__(self, rng: Rng, sink: Callable[[str], None] | None = None) -> None:
        self.trace = Trace(Timeline(START_NS), sink)
        self._rng = rng
        self._low_ns = START_NS
        self._high_ns = START_NS + rng.choice(_SPANS_NS)
        self._step_ns = rng.choice((1, 1, 3))
        shared = set(self._draw_ids(rng.choice((0, 5, 150, 1_500, 1_500))))
        only = rng.choice((0, 1, 1, 40, 300))
        names = ["g0", "g1", NWAKU][: rng.randint(2, 3)] if happens(rng, 0.5) else ["g0", NWAKU]
        self._stored = {name: shared | set(self._draw_ids(only)) for name in names}
        self._sessions = self._broken = self._lies = 0

    def run(self) -> SyncSummary:
        """Run from the beginning to the end; raise Violation if a rule is broken."""
        rng, pairs = self._rng, list(combinations(self._stored, 2))
        for _ in range(_SESSIONS):
            if happens(rng, 0.4):
                self._lie()
            else:
                one, two = rng.sample(rng.choice(pairs), 2)
                self._reconcile(one, two, rng.choice((0.0, _BREAKS)), is_clipped=happens(rng, 0.5))
        for one, two in pairs * 2:
            self._reconcile(one, two, 0.0, is_clipped=False)
        within = [set(filter(self._is_within, each)) for each in self._stored.values()]
        if any(each != within[0] for each in within):
            raise Violation("the sides do not become equal")
        return SyncSummary(self.trace.digest, self._sessions, self._broken, self._lies)

    def _draw_ids(self, count: int) -> list[Id]:
        """Draw IDs of which some are outside of the window."""
        span_ns = self._high_ns - self._low_ns
        offsets = [self._rng.randint(-span_ns // 4, span_ns + span_ns // 4) for _ in range(count)]
        return [
            (self._low_ns + each // self._step_ns * self._step_ns, self._rng.randbytes(HASH_BYTES))
            for each in offsets
        ]

    def _is_within(self, message_id: Id) -> bool:
        return self._low_ns <= message_id[0] < self._high_ns

    def _side(self, name: str, low_ns: int) -> SyncSession | SimulatedNwaku:
        ids = self._stored[name]
        return (
            SimulatedNwaku(sorted(ids)) if name == NWAKU else _session(ids, low_ns, self._high_ns)
        )

    # Honest sides

    def _reconcile(self, one: str, two: str, breaks: float, *, is_clipped: bool) -> None:
        """Run a session that one side begins; both transfer what they found if it ends."""
        clip_ns = (self._high_ns - self._low_ns) // 4 if is_clipped else 0
        low_ns = self._low_ns + clip_ns
        sides = {one: self._side(one, low_ns), two: self._side(two, self._low_ns)}
        begins = sides[one]
        frame: bytes | None = (
            begins.begin()
            if isinstance(begins, SyncSession)
            else begins.begin(low_ns, self._high_ns, TOPICS)
        )
        order, size_bytes, frames = [sides[two], begins], 0, 0
        while frame is not None:
            self.trace.note(one, f"session with {two}: {len(frame)} bytes")
            size_bytes, frames = size_bytes + len(frame), frames + 1
            if frames > MAX_SYNC_FRAMES:
                raise Violation(f"a session of {one} and {two} does not end")
            if happens(self._rng, breaks):
                self._broken += 1
                return
            frame = _receive(order[0], frame)
            order.reverse()
        self._sessions += 1
        before, differences = {name: set(ids) for name, ids in self._stored.items()}, 0
        for name, other in ((one, two), (two, one)):
            lacking = before[name] - before[other]
            expected = {each for each in lacking if low_ns <= each[0] < self._high_ns}
            self._check_found(name, sides[name], expected)
            self._stored[other] |= expected
            differences += len(expected)
        if self._high_ns - self._low_ns == _HOUR_NS and not is_clipped:
            most_bytes = _BYTES + _BYTES_PER_DIFFERENCE * differences
            if size_bytes > most_bytes:
                raise Violation(f"{differences} differences take {size_bytes} bytes")

    def _check_found(
        self, name: str, side: SyncSession | SimulatedNwaku, expected: set[Id]
    ) -> None:
        if isinstance(side, SyncSession):
            found = [digest for _, digest in side.to_send]
            if not side.has_ended:
                raise Violation(f"{name} does not notice the end of a session")
        else:
            found = list(side.sends)
        if sorted(found) != sorted(digest for _, digest in expected):
            raise Violation(f"{name} finds {len(found)} of {len(expected)} differences")

    # A liar

    def _lie(self) -> None:
        """Send a gateway frames that no honest peer sends."""
        rng, own = self._rng, self._stored["g0"]
        side = _session(own, self._low_ns, self._high_ns)
        frame = side.begin() if happens(rng, 0.5) else b""
        false = _session(
            set(self._draw_ids(40)) | set(sorted(own)[:40]), self._low_ns, self._high_ns
        )
        self._lies += 1
        for _ in range(_LIAR_FRAMES):
            lie = self._false_frame(false, frame)
            try:
                frame = side.receive(decode_payload(lie)) or b""
            except PayloadError:
                break
            if len(frame) > 50 * len(own) + 400 * len(lie) + 100:
                raise Violation(f"{len(lie)} bytes of a liar are answered by {len(frame)}")
            self.trace.note("liar", f"gets {len(frame)} bytes")
            if side.has_ended:
                break
        found = list(side.to_send)
        if not set(found) <= set(filter(self._is_within, own)):
            raise Violation("a liar gets messages from outside of the window")
        if len(set(found)) < len(found):
            raise Violation("a liar gets messages twice")

    def _false_frame(self, false: SyncSession, answered: bytes) -> bytes:
        rng, low_ns, high_ns = self._rng, self._low_ns, self._high_ns
        invented = ItemSet(sorted(self._draw_ids(20)), reconciled=happens(rng, 0.5))
        trick = rng.choice(("empty", "empty", "outside", "invented", "parts", "flipped"))
        if trick == "outside":
            before_ns, after_ns = low_ns - NS_PER_S, high_ns + NS_PER_S
            content: bytes | ItemSet = invented if happens(rng, 0.5) else bytes(HASH_BYTES)
            return _encode([Range(before_ns, after_ns, content)])
        if trick == "invented":
            return _encode([Range(low_ns, high_ns, invented)])
        if trick == "parts":
            ends_ns = range(low_ns, min(high_ns, low_ns + 400))
            return _encode([Range(each, each + 1, rng.randbytes(HASH_BYTES)) for each in ends_ns])
        if trick == "flipped" and answered:
            genuine = bytearray(_receive(false, answered) or answered)
            genuine[rng.randint(0, len(genuine) - 1)] ^= rng.randint(1, 255)
            return bytes(genuine)
        return _encode([Range(low_ns, high_ns, ItemSet((), reconciled=False))])


def _encode(ranges: list[Range]) -> bytes:
    return encode_payload(SyncPayload(TOPICS, (), ranges))


def _receive(side: SyncSession | SimulatedNwaku, frame: bytes) -> bytes | None:
    if isinstance(side, SimulatedNwaku):
        return side.answer(frame)
    return side.receive(decode_payload(frame))


def _session(ids: set[Id], low_ns: int, high_ns: int) -> SyncSession:
    ordered = sorted(ids)
    timestamps = np.array([at_ns for at_ns, _ in ordered], np.int64)
    digests = b"".join(digest for _, digest in ordered)
    return SyncSession(MessageIds(timestamps, digests), low_ns, high_ns, TOPICS)
