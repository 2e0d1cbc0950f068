"""The sides of the compact mode in a session: when it can be used, and what it came to.

The mode finds what the other side lacks by short IDs. The side with the last compact frame sends
its own IDs with it; the other one answers with its IDs and its sum, as at the end of a base
session. So equality is concluded from sums. Source: docs/spec/compact.md.
"""

from __future__ import annotations

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
from store.sync.errors import ProtocolBrokenError
from store.sync.index.view_reads import in_thread_if
from store.sync.limits import MAX_OFFER_PAYLOAD_BYTES, THREADED_ROWS
from store.sync.session.agreement import Agreement
from storenode.message.limits import HASH_BYTES
from storenode.wire.storenode.v1.peer_pb2 import ReconcileExtension, ReconcileFrame

FAILED: Final = encode(Plain(Kind.FAILED))
"""The frame that announces a base session to the peer."""

_TIME_BYTES: Final = 8
_TIME_DTYPE: Final = np.dtype("<i8")


class CompactSide:
    """The part of one side in the mode; it may report ``limit`` differences.

    Attributes:
        rounds: the frames of this side.
        reason: why the mode has failed.
        is_announced: the peer has announced the failure, and not this side.
    """

    def __init__(self, side: Initiator | Responder, window: Bounds, limit: int) -> None:
        self.side = side
        self.own_count = side.own_count
        self._window = window
        self._limit = limit
        self._is_large = self.own_count > THREADED_ROWS
        self.rounds = 0
        self.reason = ""
        self.is_announced = False

    async def begin(self) -> bytes:
        """Return the initiator's offer, or the responder's slices."""
        self.rounds += isinstance(self.side, Responder)
        return await in_thread_if(self._is_large, self.side.begin)

    async def step(self, frame: bytes) -> Step:
        """Take a compact frame of the peer."""
        self.rounds += 1
        try:
            step = await in_thread_if(self._is_large, self.side.receive, frame)
        except (MalformedCompact, LimitExceeded) as error:
            step = Step(FAILED, FallBack(str(error)))
        match step.outcome:
            case Found(to_send, to_receive) if len(to_send) + len(to_receive) > self._limit:
                step = Step(FAILED, FallBack("more differences than a session may report"))
        if isinstance(step.outcome, FallBack):
            self.reason, self.is_announced = step.outcome.reason, step.frame is None
        return step

    def result(self, found: Found, peer_ids: bytes, peer_count: int | None) -> Result:
        """Return what both sides came to; ``peer_ids``: the IDs that the peer says it sends.

        Raises:
            ProtocolBrokenError: they are not those that it has reconciled.
        """
        return Result(
            to_send=found.to_send,
            to_receive=_checked_ids(peer_ids, found.to_receive, self._window),
            rounds=self.rounds,
            bytes_sent=0,
            bytes_received=0,
            own_count=self.own_count,
            peer_count=peer_count,
            truncated=False,
            refusal="",
            window=self._window,
        )


def encode_ids(ids: SyncIds) -> bytes:
    """Return IDs as ``compact_ids`` of the schema."""
    return ids.timestamps.astype(_TIME_DTYPE).tobytes() + ids.hashes.tobytes()


def initiator_side(
    agreement: Agreement, view: OpenView, config: SessionConfig, least: int
) -> CompactSide | None:
    """Return an initiator's side; None: not all is in memory, or the mode is for more IDs."""
    assert config.window is not None
    index, window = view.indexed, (agreement.start, config.window[1])
    if not is_available() or index is None or not agreement.whole or not window[0] < window[1]:
        return None
    side = Initiator(index, window, agreement.own_nonce)
    if side.claim.count < least:
        return None
    return CompactSide(side, window, config.limits.max_differences)


def responder_side(
    agreement: Agreement,
    view: OpenView,
    first: ReconcileFrame,
    extension: ReconcileExtension,
    config: SessionConfig,
) -> CompactSide | None:
    """Return a responder's side for a first frame; None: there is no offer that can be taken up.

    Where the initiator offers nothing and takes slices, an equal side does not use the mode.
    """
    index, offered = view.indexed, extension.compact_frame
    is_wanted = bool(offered or agreement.peer_takes_slices)
    is_possible = is_available() and agreement.whole and is_wanted
    if not agreement.peer_knows or index is None or not is_possible:
        return None
    if not first.HasField("count") or len(first.ranges_data) > MAX_OFFER_PAYLOAD_BYTES:
        return None
    payload = decode(first.ranges_data, config.limits.payload)
    if (payload.cluster, set(payload.shards)) != (config.cluster, set(config.shards)):
        return None  # A base session refuses it.
    ranges = payload.ranges
    asked = asked_about(ranges)
    is_single = len(ranges.fingerprints) == 1 and not len(ranges.item_counts)
    if asked is None or asked[0] != agreement.start or not is_single:
        return None
    claim = Claim(first.count, ranges.fingerprints[0])
    side = Responder(index, asked, agreement.nonces, claim)
    if side.is_equal and not offered:
        return None
    return CompactSide(side, asked, config.limits.max_differences)


def _checked_ids(encoded: bytes, expected: Expected, window: Bounds) -> SyncIds:
    count = len(expected)
    if len(encoded) != count * (_TIME_BYTES + HASH_BYTES):
        raise ProtocolBrokenError("the peer tells more or fewer IDs than it has reconciled")
    if not count:
        return SyncIds.empty()
    timestamps = np.frombuffer(encoded, _TIME_DTYPE, count).astype(np.int64)
    flat = np.frombuffer(bytearray(encoded[_TIME_BYTES * count :]), HASH_DTYPE)
    ids = SyncIds(timestamps, flat.reshape(-1, HASH_BYTES))
    within = window[0] <= ids.at(0) and ids.at(-1) < window[1]
    ascending = within and bool(np.all(less(ids[:-1], ids[1:])))
    if not ascending or not expected.complete(ids.hashes):
        raise ProtocolBrokenError("the peer tells other IDs than those that it has reconciled")
    return ids
