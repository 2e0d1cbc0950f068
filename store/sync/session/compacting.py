"""The compact mode in a session: one side's frames, up to a result or to falling back.

    offer, beside the base payload ────► compact frames ─► IDs of both sides, told to each other
    or, if the responder differs, slices ──┘   │ anything fails
        │ not taken up                         │
        └──────────► base session ◄────────────┘

The mode finds what the other side lacks by short IDs. The side with the last compact frame sends
its own IDs with it; the other one answers with its IDs and its sum, as at the end of a base
session. So equality is concluded from sums, and a set that hides from XORs is searched for.
Source: docs/compact.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from reconcile.algorithm.questions import asked_about
from reconcile.codec import decode
from reconcile.compact import is_available
from reconcile.compact.frames import FrameKind as Kind
from reconcile.compact.frames import PlainFrame as Plain
from reconcile.compact.frames import encode
from reconcile.compact.session import Claim, Expected, FallBack
from reconcile.compact.session import CompactInitiator as Initiator
from reconcile.compact.session import CompactResponder as Responder
from reconcile.compact.session import CompactResult as Found
from reconcile.compact.session import CompactStep as Step
from reconcile.errors import MalformedCompactError as MalformedCompact
from reconcile.errors import PayloadLimitError as LimitExceeded
from reconcile.ids import HASH_DTYPE, SyncIds, less
from reconcile.session import Bounds, Result, SessionConfig
from store.domain.view import OpenView
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, Reconcile
from store.sync.index.reading import in_thread_if
from store.sync.limits import THREADED_ROWS
from store.sync.session.agreement import Agreement
from store.sync.session.reconciling import Turns
from storenode.message.limits import HASH_BYTES

FAILED: Final = encode(Plain(Kind.FAILED))
"""Says to the peer that a base session follows."""

MAX_OFFER_PAYLOAD_BYTES: Final = 1_024
"""A base payload of one fingerprint is shorter, but for very many shards."""

_TIME_BYTES: Final = 8
_TIME_DTYPE: Final = np.dtype("<i8")


@dataclass(slots=True)
class Compacting:
    """One side of the mode.

    ``tell`` sends an extension in a frame without payload, ``hear`` gives that of the peer's next
    frame. ``limit``: differences that the session may report. ``large``: its steps take a thread.
    """

    side: Initiator | Responder
    window: Bounds
    own_count: int
    limit: int
    turn: Turns
    tell: Callable[[Extension], Awaitable[None]]
    hear: Callable[[], Awaitable[Extension]]
    rounds: int = 0
    reason: str = field(default="", init=False)
    """Why it has failed."""
    told: bool = field(default=False, init=False)
    """The peer has said so, and not this side."""

    async def begin(self) -> bytes:
        """The initiator's offer."""
        assert isinstance(self.side, Initiator)
        return await in_thread_if(self._is_large, self.side.begin)

    async def run(self, heard: Extension) -> tuple[Found, bytes | None] | None:
        """From a compact frame of the peer on; with what is found the own last frame, if any.

        A responder to whom nothing was offered begins.

        None: it has failed.

        Raises:
            PeerFailed: the peer leaves.
        """
        if isinstance(self.side, Responder) and not heard.compact_frame:
            self.rounds += 1
            slices = await in_thread_if(self._is_large, self.side.begin)
            await self.tell(Extension(compact_frame=slices))
            heard = await self.hear()
        while True:
            step = await self._step(heard)
            match step.outcome:
                case FallBack():
                    return None
                case Found():
                    return step.outcome, step.frame
            assert step.frame is not None
            await self.tell(Extension(compact_frame=step.frame))
            heard = await self.hear()

    async def failed(self, heard: Extension) -> bool:
        """Has the peer refused what this side has found?"""
        if heard.compact_frame:
            await self._step(heard)
        return bool(self.reason)

    def result(self, found: Found, told: bytes, peer_count: int | None) -> Result:
        """What both sides came to; ``told``: the IDs that the peer says it sends.

        Raises:
            ProtocolBroken: they are not those that it has reconciled.
        """
        return Result(
            to_send=found.to_send,
            to_receive=_revealed(told, found.to_receive, self.window),
            rounds=self.rounds,
            bytes_sent=0,
            bytes_received=0,
            own_count=self.own_count,
            peer_count=peer_count,
            truncated=False,
            refusal="",
            window=self.window,
        )

    @property
    def _is_large(self) -> bool:
        return self.own_count > THREADED_ROWS

    async def _step(self, heard: Extension) -> Step:
        self.rounds += 1
        async with self.turn(heard.size_bytes):
            try:
                step = await in_thread_if(self._is_large, self.side.receive, heard.compact_frame)
            except (MalformedCompact, LimitExceeded) as error:
                step = Step(FAILED, FallBack(str(error)))
        match step.outcome:
            case Found(to_send, to_receive) if len(to_send) + len(to_receive) > self.limit:
                step = Step(FAILED, FallBack("more differences than a session may report"))
        if isinstance(step.outcome, FallBack):
            self.reason, self.told = step.outcome.reason, step.frame is None
        return step


def encoded(ids: SyncIds) -> bytes:
    """IDs as the schema has them."""
    return ids.timestamps.astype(_TIME_DTYPE).tobytes() + ids.hashes.tobytes()


def initiating(
    agreement: Agreement, view: OpenView, window: Bounds, least: int
) -> tuple[Initiator, Bounds] | None:
    """An initiator's side; None: less than all is in memory, or less than the mode is for."""
    index, (lower, upper) = view.indexed, (agreement.start, window[1])
    if not is_available() or index is None or not agreement.whole or not lower < upper:
        return None
    side = Initiator(index, (lower, upper), agreement.own_nonce)
    return None if side.claim.count < least else (side, (lower, upper))


def responding(
    agreement: Agreement, view: OpenView, first: Reconcile, config: SessionConfig
) -> tuple[Responder, Bounds] | None:
    """A responder's side; None: there is no offer, or none that can be taken up.

    Where the initiator offers nothing and takes slices, a side that does not differ is none.
    """
    index, offered = view.indexed, agreement.heard.compact_frame
    takes_up = is_available() and bool(offered or agreement.peer_takes_slices)
    if not agreement.peer_knows or index is None or not takes_up:
        return None
    if first.count is None or len(first.payload) > MAX_OFFER_PAYLOAD_BYTES or not agreement.whole:
        return None
    payload = decode(first.payload, config.limits.payload)
    if (payload.cluster, set(payload.shards)) != (config.cluster, set(config.shards)):
        return None  # A base session refuses it.
    ranges = payload.ranges
    asked = asked_about(ranges)
    if asked is None or asked[0] != agreement.start:
        return None
    if len(ranges.fingerprints) != 1 or len(ranges.item_counts):
        return None
    claim = Claim(first.count, ranges.fingerprints[0])
    side = Responder(index, asked, agreement.nonces, claim)
    return None if side.is_equal and not offered else (side, asked)


def _revealed(told: bytes, expected: Expected, window: Bounds) -> SyncIds:
    count = len(expected)
    if len(told) != count * (_TIME_BYTES + HASH_BYTES):
        raise ProtocolBroken("the peer tells more or fewer IDs than it has reconciled")
    if not count:
        return SyncIds.empty()
    timestamps = np.frombuffer(told, _TIME_DTYPE, count).astype(np.int64)
    flat = np.frombuffer(bytearray(told[_TIME_BYTES * count :]), HASH_DTYPE)
    ids = SyncIds(timestamps, flat.reshape(-1, HASH_BYTES))
    within = window[0] <= ids.at(0) and ids.at(-1) < window[1]
    ascending = within and bool(np.all(less(ids[:-1], ids[1:])))
    if not ascending or not expected.complete(ids.hashes):
        raise ProtocolBroken("the peer tells other IDs than those that it has reconciled")
    return ids
