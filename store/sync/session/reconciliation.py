"""A side of a reconciliation: frames, questions to a view, and sums at the end.

    first frame, with a keyed sum ─► equal: the keyed sum of the responder, concluded
      │ not equal, or not known
      ├─ compact mode, if agreed ─┐
      └─ base session ────────────┴─► the last frame of one side, with its sum ─► the peer's sum
                                           equal: concluded; different: `session.sum_search`

The sides alternate, one frame each. A thread works on large payloads. The fingerprints of WAKU-SYNC
find differences; equality is concluded from sums where both sides know them, and otherwise from
fingerprints.

Beyond WAKU-SYNC the sides use an extension of their frames (`ReconcileExtension` in the schema):

- Each side makes an offer in its first frame: a nonce, and from when on it compares messages. An
  offer of another version counts as none; without both offers nothing of this applies.
- The offer of an initiator that has all in memory contains its sum, keyed by its nonce. A responder
  that has this sum answers by the sum under both nonces, which cannot be repeated without it, and
  no frame follows.
- The side that ends the reconciliation by an empty payload sends its sum with it, and the other
  side answers with its own. A side that does not know its sum sends none.
- A part of the extension that comes in another frame, or has another size, breaks the protocol.

The compact mode finds what the other side lacks by short IDs. The side with the last compact frame
sends its own IDs with it; the other one answers with its IDs and its sum, as at the end of a base
session. Source: docs/spec/compact.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from reconcile.codec import RangeKind, decode
from reconcile.compact import is_available
from reconcile.compact.frames import FrameKind, encode
from reconcile.compact.keys import NONCE_BYTES
from reconcile.compact.session import (
    Claim,
    CompactInitiator,
    CompactResponder,
    CompactResult,
    CompactStep,
    Expected,
    FallBack,
)
from reconcile.errors import MalformedCompactError, PayloadLimitError, SummaryMismatchError
from reconcile.ids import HASH_DTYPE, LOWEST, SyncId, SyncIds, less, ordered
from reconcile.index import IndexView
from reconcile.lattice import DIGEST_BYTES, LatticeSum
from reconcile.session import (
    Bounds,
    PayloadFrame,
    ReconcileSession,
    Result,
    Role,
    SessionConfig,
    SessionStep,
)
from store.domain.ports import StoreUnavailableError
from store.domain.view import Span
from store.sync.errors import SILENT, Fault, ProtocolBrokenError, SessionFaultError, shown
from store.sync.frames import compact_bytes, is_session_id, parse_reconcile
from store.sync.index.views import StoredView, at, in_thread_if, worked_through
from store.sync.limits import MAX_OFFER_PAYLOAD_BYTES, THREADED_PAYLOAD_BYTES, THREADED_ROWS
from store.sync.peers import FrameStream
from store.sync.session.registry import PeerSession
from store.sync.session.report import ContentConflict
from store.sync.session.sum_search import PeerNotes, Search, has_spans
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS
from storenode.wire.storenode.v1.peer_pb2 import (
    RECONCILE_FEATURE_SLICES,
    ReconcileExtension,
    ReconcileFrame,
    SumSearch,
)

if TYPE_CHECKING:
    from store.sync.session.exchange import Exchange

_T = TypeVar("_T")

VERSION: Final = 4
GOES_ON: Final = "the peer goes on after the end of the reconciliation"
_NOTHING: Final = PayloadFrame(b"")
_SKIPPED: Final = SumSearch(more=True)
_NO_EXTENSION: Final = ReconcileExtension()

FAILED: Final = encode(FrameKind.FAILED)
"""The frame that announces a base session to the peer."""

_TIME_BYTES: Final = 8
_TIME_DTYPE: Final = np.dtype("<i8")


class _Stage(Enum):
    """The frames of the peer that may come."""

    RANGES = auto()
    COMPACT = auto()  # or RANGES, where the peer does not take up the mode
    SUM = auto()  # the answer to a sum
    SEARCH = auto()  # after sums that differ


class Reconciliation:
    """A side of a reconciliation: made for one `initiate` or `respond`.

    Attributes:
        report: that of the session, in which the findings are noted.
        own: the offer of this side; None: nothing beyond WAKU-SYNC.
        theirs: that of the peer, as far as it is known.
        compact: this side of the compact mode, where it was possible, or taken up.
        offers: offer the mode at once; else a peer that differs may begin it.
        hidden: ascending differences that the fingerprints of WAKU-SYNC did not show.
        conflicts: IDs with different contents on the two sides.
        settled: the spans of time whose conflicts are all in ``conflicts``.
        equal_sum: that of both sides, if keyed sums were equal; then the responder ends the call.
    """

    def __init__(
        self,
        exchange: Exchange,
        session: PeerSession,
        stream: FrameStream,
        view: StoredView,
        asked: Bounds | None = None,
    ) -> None:
        """Take the parts; ``asked``: the initiator's window, or what it asks the responder about.

        Below the horizon of the report nothing is compared.
        """
        work, report = exchange.work, session.report
        notes = exchange.notes.get(report.node_id) or PeerNotes()
        horizon = report.horizon or LOWEST
        self.role, self.report = report.role, report
        self.view = view
        self.compact: CompactInitiator | CompactResponder | None = None
        # An offer costs more than a session that finds nothing: none after such a one.
        self.offers = not notes.equal
        self.equal_sum = b""
        self.hidden = SyncIds.empty()
        self.conflicts: tuple[ContentConflict, ...] = ()
        self.settled: Sequence[Span] = ()
        self.exchange, self.session, self._stream = exchange, session, stream
        self._wait = partial(session.wait, exchange.environment.steady_ns)
        self._known = notes.known(exchange.environment.steady_ns())
        self._asked = asked
        self.compact_from = work.compact_from
        self.config = SessionConfig(
            cluster=work.cluster,
            shards=work.shards,
            window=asked if self.role is Role.INITIATOR else None,
            horizon=horizon,
            limits=work.limits,
            tuning=work.tuning,
        )
        self.base = ReconcileSession(self.role, self.config)
        self._is_in_memory = False
        self.own: ReconcileExtension | None = None
        self.theirs: ReconcileExtension | None = None
        if asked is not None and work.sums:
            lower = max(report.asked_from or LOWEST, horizon)
            self.own = ReconcileExtension(
                version=VERSION,
                nonce=exchange.environment.random.randbytes(NONCE_BYTES),
                # A bound inside a nanosecond leaves that nanosecond out.
                compared_from=min(lower[0] + (lower[1] != LOWEST[1]), MAX_TIMESTAMP_NS),
            )
            self._is_in_memory = view.floor <= lower
        self._window = LOWEST, LOWEST  # of the mode
        self._compact_rounds = 0  # the compact frames of this side
        self._has_sent = False
        self._received: ReconcileFrame | None = None  # the last frame of the peer
        self._extension = _NO_EXTENSION  # its extension, as far as it was agreed on
        self._search: Search | None = None
        self._own_sum = b""

    def conclude(self, result: Result) -> None:
        """Note the result in the report, and what it means for the next session with the peer."""
        report = self.report
        if result.refusal:
            return
        report.conclude(result, self.hidden, self.conflicts)
        known = self.exchange.notes
        notes = known[report.node_id] = known.get(report.node_id) or PeerNotes()
        if self.role is Role.INITIATOR:
            notes.equal = not report.differences
        notes.update(self.exchange.environment.steady_ns(), self.conflicts, self.settled)

    @property
    def start(self) -> SyncId:
        """The bound from which on both sides compare messages."""
        offers = [each for each in (self.own, self.theirs) if each is not None]
        return max(each.compared_from for each in offers), LOWEST[1]

    async def initiate(self) -> Result:
        """Reconcile as the initiator.

        Raises:
            MalformedPayloadError: the peer sent what is none.
            PayloadLimitError: the peer sent too much.
            PeerError: the peer left, or broke the protocol.
            NotServingError: the database does not serve.
        """
        side, opening, total = self._compact_initiator(), b"", None
        self.compact = side
        if side is not None and self.own is not None and not self.offers:
            self.own.features.append(RECONCILE_FEATURE_SLICES)
            side.await_slices()
        if side is not None and self.offers:
            opening = await in_thread_if(side.own_count > THREADED_ROWS, side.begin)
        elif self.own is not None and (total := await self._sum_asked()) is not None:
            self.own.keyed_sum = _keyed(total, self.own.nonce)
        step = await self._step(opening=opening)
        if step.result is not None:
            return step.result
        frame = await self._next(_Stage.RANGES if side is None else _Stage.COMPACT)
        own, theirs = self.own, self.theirs
        if own is not None and theirs is not None and theirs.keyed_sum:
            key = own.nonce + theirs.nonce
            is_same = theirs.compared_from == own.compared_from and not frame.ranges_data
            if total is None or not is_same or theirs.keyed_sum != _keyed(total, key):
                raise ProtocolBrokenError("the peer's keyed sum is not that of what is here")
            return self._equal(total)
        if side is None or frame.refusal or not self._extension.compact_frame or theirs is None:
            return await self._run(frame)
        side.agree(theirs.nonce)
        return await self._run_compact(side, frame)

    async def respond(self, first: ReconcileFrame) -> Result:
        """Reconcile as the responder to a first frame; raises as `initiate`."""
        self._receive(first, _Stage.RANGES)
        if (equal := await self._answer_equal(first)) is not None:
            return equal
        side = self._compact_responder(first)
        if side is None:
            return await self._run(first)
        self.compact = side
        if not self._extension.compact_frame:
            self._compact_rounds += 1
            opening = await in_thread_if(side.own_count > THREADED_ROWS, side.begin)
            await self._send_compact(side, opening)
            await self._next(_Stage.COMPACT)
        return await self._run_compact(side, first)

    # Keyed sums

    async def _sum_asked(self) -> LatticeSum | None:
        """Return the sum of all that is asked about; None: not all of it is in memory."""
        own, asked = self.own, self._asked
        if own is None or asked is None or not self._is_in_memory:
            return None
        span = own.compared_from, asked[1][0]
        if span[0] >= span[1] or asked[1] != at(span[1]):
            return None
        sums = await self.view.lattices([span])
        return None if sums is None else sums[0]

    async def _answer_equal(self, first: ReconcileFrame) -> Result | None:
        """Send the answer to a keyed sum that is this side's; return None for another or none."""
        own, theirs, asked = self.own, self.theirs, self._asked
        if own is None or theirs is None or asked is None or not theirs.keyed_sum:
            return None
        # Another order of the shards is an older version's, which sends no keyed sums.
        is_same = theirs.compared_from == own.compared_from and asked[0] == self.start
        if not is_same or not first.ranges_data.startswith(self.base.head):
            return None
        total = await self._sum_asked()
        if total is None or theirs.keyed_sum != _keyed(total, theirs.nonce):
            return None
        own.keyed_sum = _keyed(total, theirs.nonce + own.nonce)
        await self._send(PayloadFrame(b"", total.count), ReconcileExtension())
        return self._equal(total)

    def _equal(self, total: LatticeSum) -> Result:
        """Return the result of a session whose sides hold the same messages."""
        assert self._asked is not None
        window, self.equal_sum = (self.start, self._asked[1]), total.digest()
        self.report.keyed_from_ns, self.settled = window[0][0], [(window[0][0], window[1][0])]
        none = SyncIds.empty()
        return Result(to_send=none, to_receive=none, rounds=1, own_count=total.count, window=window)

    # Frames

    async def _send(self, sent: PayloadFrame, extension: ReconcileExtension | None = None) -> None:
        """Send a frame, the first one with the offer of this side."""
        first, self._has_sent = not self._has_sent, True
        is_initiator = self.role is Role.INITIATOR
        if first and extension is not None and self.own is not None:
            extension.MergeFrom(self.own if is_initiator or self.theirs else _NO_EXTENSION)
        is_name_due = first and not is_initiator and not sent.refusal
        frame = ReconcileFrame(
            ranges_data=sent.payload,
            session_id=self.session.session_id if is_name_due else "",
            refusal=sent.refusal,
            count=sent.count if first else None,
            extension=extension if extension is not None and extension.ListFields() else None,
        )
        await self._wait(self._stream.write(frame.SerializeToString()))
        self.report.bytes_sent += len(frame.ranges_data) + compact_bytes(frame.extension)

    async def _next(self, stage: _Stage = _Stage.RANGES) -> ReconcileFrame:
        data = await self._wait(self._stream.read())
        if data is None:
            raise ProtocolBrokenError("the peer left when it was its turn to answer")
        frame, name = parse_reconcile(data), self.session.session_id
        if self.role is Role.INITIATOR:
            # The responder's first frame names the session.
            if name and frame.session_id not in ("", name):
                raise ProtocolBrokenError(
                    "the peer gives the session another name in the middle of it"
                )
            if not name and not frame.refusal and not is_session_id(frame.session_id):
                raise ProtocolBrokenError("the peer's first frame does not name the session")
            self.session.session_id = name or frame.session_id
        self._receive(frame, stage)
        return frame

    def _receive(self, frame: ReconcileFrame, stage: _Stage) -> None:
        """Take a frame, and its extension if both sides have made an offer.

        Raises:
            ProtocolBrokenError: a part of the extension does not belong there, or has another size.
        """
        first, extension = self._received is None, frame.extension
        self._received = frame
        self.report.bytes_received += len(frame.ranges_data) + compact_bytes(extension)
        if first:
            self.report.peer_count = frame.count if frame.HasField("count") else None
            if self.own is not None and extension.version == VERSION:
                size_bytes = len(extension.nonce)
                _require(size_bytes == NONCE_BYTES, f"a nonce of {size_bytes} bytes")
                is_time = extension.compared_from <= MAX_TIMESTAMP_NS
                _require(is_time, "a time beyond the last timestamp")
                self.theirs = extension
        if self.theirs is None:
            return
        is_last, size_bytes = not frame.ranges_data, len(extension.sum)
        is_answer, is_search = stage is _Stage.SUM, stage is _Stage.SEARCH
        has_sum = is_answer or (is_last and not is_search)
        has_search = is_last and (is_search or (is_answer and size_bytes > 0))
        _require(first or not extension.nonce, "a nonce after its first frame")
        _require(first or not extension.keyed_sum, "a keyed sum after its first frame")
        _require(len(extension.keyed_sum) in (0, DIGEST_BYTES), "a keyed sum of another size")
        _require(has_sum or not size_bytes, "a sum before its last frame")
        _require(size_bytes in (0, DIGEST_BYTES), f"a sum of {size_bytes} bytes")
        _require(has_search or not extension.HasField("search"), "a search before sums that differ")
        is_agreed = first or stage is _Stage.COMPACT
        _require(is_agreed or not compact_bytes(extension), "a compact frame nobody asked for")
        self._extension = extension

    # The base session

    async def _run(self, frame: ReconcileFrame | None = None, opening: bytes = b"") -> Result:
        """Run the base session, from a frame of the peer on, or from the beginning."""
        step = await self._step(frame, opening)
        while step.result is None:
            step = await self._step(await self._next())
        return await self._conclude(step.result, by_peer=step.frame is None)

    async def _step(self, frame: ReconcileFrame | None = None, opening: bytes = b"") -> SessionStep:
        """Take a frame of the peer, and send the answer; ``opening``: a compact frame in it."""
        ids, payload_bytes, large = self.view.ids, 0, False
        if frame is None:
            work = self.base.begin(ids)
        else:
            payload_bytes = len(frame.ranges_data)
            refusal = shown(frame.refusal) if frame.refusal else ""
            received = PayloadFrame(frame.ranges_data, refusal=refusal)
            work = self.base.receive(received, ids)
            indexed = 0 if ids.memory is None else len(ids.memory[0])
            large = payload_bytes > THREADED_PAYLOAD_BYTES or indexed > THREADED_ROWS
        async with self.exchange.turn(payload_bytes):
            try:
                found = await worked_through(work, self.view.load, large=large)
            except SummaryMismatchError as error:
                raise StoreUnavailableError(str(error)) from error
        if found.frame is not None:
            extension = None
            if self.own is not None and not found.frame.refusal:
                if found.result is not None:
                    await self._compute_sum(found.result)
                extension = ReconcileExtension(sum=self._own_sum, compact_frame=opening)
            await self._send(found.frame, extension)
        return found

    # The compact mode

    @property
    def _index(self) -> IndexView | None:
        """The index, if all that both sides compare is in memory here, and in the peer's range."""
        own = self.own
        if self.compact_from is None or own is None or not is_available():
            return None
        is_whole = self._is_in_memory and self.start[0] == own.compared_from
        return self.view.rows if is_whole else None

    def _compact_initiator(self) -> CompactInitiator | None:
        """Return an initiator's side; None: not all is in memory, or there are too few IDs."""
        index, own, least = self._index, self.own, self.compact_from
        if index is None or own is None or least is None or len(index) < least:
            return None
        assert self.config.window is not None
        self._window = window = self.start, self.config.window[1]
        if not window[0] < window[1]:
            return None
        side = CompactInitiator(index, window, own.nonce)
        return None if side.claim.count < least else side

    def _compact_responder(self, first: ReconcileFrame) -> CompactResponder | None:
        """Return a responder's side for a first frame; None: no offer that can be taken up.

        Where the initiator offers nothing and takes slices, an equal side does not use the mode.
        """
        own, theirs, asked = self.own, self.theirs, self._asked
        if own is None or theirs is None or asked is None or (index := self._index) is None:
            return None
        offered = theirs.compact_frame
        is_wanted = offered or RECONCILE_FEATURE_SLICES in theirs.features
        is_short = len(first.ranges_data) <= MAX_OFFER_PAYLOAD_BYTES
        is_own = asked[0] == self.start and first.ranges_data.startswith(self.base.head)
        if not (is_wanted and is_short and is_own and first.HasField("count")):
            return None  # A base session refuses other shards.
        ranges = decode(first.ranges_data, self.config.limits.payload).ranges
        opened = ranges.kinds.nonzero()[0]
        if ranges.kinds[opened].tolist() != [RangeKind.FINGERPRINT]:
            return None
        self._window = asked
        claim = Claim(first.count, ranges.fingerprints[opened[0]])
        side = CompactResponder(index, asked, (theirs.nonce, own.nonce), claim)
        return None if side.is_equal and not offered else side

    async def _run_compact(
        self, side: CompactInitiator | CompactResponder, first: ReconcileFrame
    ) -> Result:
        step = await self._compact_step(side)
        while not isinstance(found := step.outcome, CompactResult):
            if isinstance(found, FallBack):
                return await self._fall_back(side, first, step)
            assert step.frame is not None
            await self._send_compact(side, step.frame)
            await self._next(_Stage.COMPACT)
            step = await self._compact_step(side)
        is_last, sent = step.frame is None, found.to_send
        own_ids = sent.timestamps.astype(_TIME_DTYPE).tobytes() + sent.hashes.tobytes()
        if is_last:
            result = await self._compact_result(side, found)
            await self._compute_sum(result)
        await self._send_compact(side, step.frame or b"", own_ids, self._own_sum)
        if not is_last:
            await self._next(_Stage.COMPACT)
            if self._extension.compact_frame:
                step = await self._compact_step(side)
                if isinstance(step.outcome, FallBack):
                    return await self._fall_back(side, first, step)
            result = await self._compact_result(side, found)
        result = await self._conclude(result, by_peer=not is_last)
        self.report.compact = True
        return result

    async def _compact_step(self, side: CompactInitiator | CompactResponder) -> CompactStep:
        """Take the compact frame of the peer's last frame."""
        self._compact_rounds += 1
        frame, limit = self._extension.compact_frame, self.config.limits.max_differences
        async with self.exchange.turn(compact_bytes(self._extension)):
            try:
                step = await in_thread_if(side.own_count > THREADED_ROWS, side.receive, frame)
            except (MalformedCompactError, PayloadLimitError) as error:
                return CompactStep(FAILED, FallBack(str(error)))
        match step.outcome:
            case CompactResult(to_send, to_receive) if len(to_send) + len(to_receive) > limit:
                return CompactStep(FAILED, FallBack("more differences than a session may report"))
        return step

    async def _compact_result(
        self, side: CompactInitiator | CompactResponder, found: CompactResult
    ) -> Result:
        """Return what both sides came to, with the IDs that the peer sends.

        Raises:
            ProtocolBrokenError: they are not those that it has reconciled.
        """
        given = self._extension.compact_ids, found.to_receive, self._window
        ids = await in_thread_if(len(found.to_receive) > THREADED_ROWS, _checked_ids, *given)
        return Result(
            to_send=found.to_send,
            to_receive=ids,
            rounds=self._compact_rounds,
            own_count=side.own_count,
            window=self._window,
        )

    async def _fall_back(
        self, side: CompactInitiator | CompactResponder, first: ReconcileFrame, step: CompactStep
    ) -> Result:
        """Run a base session, from its beginning; the side that fails says so in its frame."""
        assert isinstance(step.outcome, FallBack)
        self.report.compact_failed = step.outcome.reason
        if self.role is Role.INITIATOR:
            self.base = ReconcileSession(self.role, self.config)
            return await self._run(opening=step.frame or b"")
        if self._received is not first and step.frame is not None:
            await self._send_compact(side, step.frame)
            await self._next(_Stage.COMPACT)
        return await self._run(self._received)

    async def _send_compact(
        self,
        side: CompactInitiator | CompactResponder,
        frame: bytes,
        ids: bytes = b"",
        own_sum: bytes = b"",
    ) -> None:
        extension = ReconcileExtension(compact_frame=frame, compact_ids=ids, sum=own_sum)
        await self._send(PayloadFrame(b"", side.own_count), extension)

    # The sums

    async def _compute_sum(self, result: Result) -> None:
        """Compute the sum of what both sides hold, which the peer is to answer; empty: unknown."""
        own, theirs = self.own, self.theirs
        start_ns, (end_ns, end_hash) = self.start[0], result.window[1]
        is_known = not (result.truncated or result.refusal) and end_hash == LOWEST[1]
        if own is None or theirs is None or not is_known or start_ns >= end_ns:
            return
        sent = await self.view.contents(result.to_send)
        seed = own.nonce + theirs.nonce if self.role is Role.INITIATOR else theirs.nonce + own.nonce
        limit = self.config.limits.max_differences
        self._search = Search(self.view, (start_ns, end_ns), sent, seed, limit, known=self._known)
        self._own_sum = await self._search.sum()

    async def _conclude(self, result: Result, *, by_peer: bool) -> Result:
        """Compare the sums, if there are some; ``by_peer``: the peer's last frame was the last."""
        if by_peer and (peer_sum := self._extension.sum):
            await self._compute_sum(result)
            search, own_sum = self._search, self._own_sum
            if search is None or own_sum in (b"", peer_sum):
                await self._send(_NOTHING, ReconcileExtension(sum=own_sum))
                return self._concluded(result) if own_sum else result
            is_explained = search.is_explained(peer_sum)
            asked = _SKIPPED if is_explained else await search.begin()
            await self._send(_NOTHING, ReconcileExtension(sum=own_sum, search=asked))
            step = await self._next_step()
            if is_explained and not has_spans(step):
                return self._concluded(result, search.known_conflicts)
            return await self._search_on(result, search, step)
        if by_peer or self._search is None or not self._own_sum:
            return result
        return await self._await_sum(self._search, result)

    async def _await_sum(self, search: Search, result: Result) -> Result:
        """Await the sum of the peer, and search if it differs."""
        theirs = await self._next_last(_Stage.SUM)
        differs = bool(theirs.sum) and theirs.sum != self._own_sum
        if differs != theirs.HasField("search"):
            raise ProtocolBrokenError(
                "the peer searches where sums are equal, or not where they differ"
            )
        if not differs:
            return self._concluded(result) if theirs.sum else result
        step = theirs.search
        if not has_spans(step):
            # The peer knows the conflicts.
            if search.is_explained(theirs.sum):
                await self._send(_NOTHING, ReconcileExtension(search=_SKIPPED))
                return self._concluded(result, search.known_conflicts)
            await self._send(_NOTHING, ReconcileExtension(search=await search.begin()))
            step = await self._next_step()
        return await self._search_on(result, search, step)

    async def _search_on(self, result: Result, search: Search, step: SumSearch) -> Result:
        """Search to the end; return what it and the reconciliation came to.

        In settled spans the lists count.

        Raises:
            ProtocolBrokenError: the sums of the peer are not those of its messages.
        """
        while True:
            own = await search.answer(step)
            if not has_spans(step):
                break
            await self._send(_NOTHING, ReconcileExtension(search=own))
            if not has_spans(own):
                break
            step = await self._next_step()
        sent, sent_before = _split(result.to_send, search.settled)
        received, received_before = _split(result.to_receive, search.settled)
        before = SyncIds.join([sent_before, received_before])
        after = SyncIds.join([*search.to_send, *search.to_receive])
        hidden = _without(after, before)
        differs = len(hidden) or len(_without(before, after)) or search.conflicts
        if search.complete and not differs:
            raise ProtocolBrokenError("the peer's sum is not that of the messages that it lists")
        self.hidden, self.conflicts = ordered(hidden), tuple(search.conflicts)
        self.settled = search.settled
        if search.complete:
            self._concluded(result, self.conflicts)
        return replace(
            result,
            to_send=ordered(SyncIds.join([sent, *search.to_send])),
            to_receive=ordered(SyncIds.join([received, *search.to_receive])),
            rounds=result.rounds + search.rounds,
            truncated=not search.complete,
        )

    async def _next_last(self, stage: _Stage) -> ReconcileExtension:
        frame = await self._next(stage)
        if frame.ranges_data:
            raise ProtocolBrokenError(GOES_ON)
        return self._extension

    async def _next_step(self) -> SumSearch:
        extension = await self._next_last(_Stage.SEARCH)
        if not extension.HasField("search"):
            raise ProtocolBrokenError("the peer leaves the search: see SumSearch in the schema")
        return extension.search

    def _concluded(self, result: Result, conflicts: tuple[ContentConflict, ...] = ()) -> Result:
        """Note that both sides are equal but for known conflicts."""
        assert self._search is not None
        whole = self._search.whole
        self.report.keyed_from_ns, self.settled, self.conflicts = whole[0], [whole], conflicts
        return result


def _keyed(total: LatticeSum, key: bytes) -> bytes:
    return blake2b(total.digest(), digest_size=DIGEST_BYTES, key=key).digest()


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


def _split(ids: SyncIds, spans: list[Span]) -> tuple[SyncIds, SyncIds]:
    """Return ascending IDs outside of some spans of time, and those inside of them."""
    inside = np.zeros(len(ids), np.bool_)
    for low_ns, high_ns in spans:
        first, end = np.searchsorted(ids.timestamps, (low_ns, high_ns))
        inside[first:end] = True
    return ids[~inside], ids[inside]


def _without(ids: SyncIds, others: SyncIds) -> SyncIds:
    """Return the IDs whose hashes are not among those of others."""
    known = set(others.opaque.tolist())
    return ids[np.array([digest not in known for digest in ids.opaque.tolist()], np.bool_)]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolBrokenError(f"the peer sends {what}: see ReconcileExtension in the schema")


async def in_time(work: Awaitable[_T], limit_s: float) -> _T:
    """Wait for a frame to come, or to be taken, outside of a session.

    Raises:
        SessionFaultError: it does not happen in time.
    """
    try:
        async with asyncio.timeout(limit_s) as scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        raise SessionFaultError(Fault.SILENCE, SILENT.format(limit_s)) from None
