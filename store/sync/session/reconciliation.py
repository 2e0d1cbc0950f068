"""The part of one side in a reconciliation: frames, questions to a view, sums at the end.

    compact mode, if agreed ─┐
    base session ────────────┴─► the last frame of one side, with its sum ─► the sum of the other
                                      equal: concluded; different: `session.sum_search`

The sides alternate, one frame each. A peer that neither sends nor takes a frame for ``silence_s``
has left, and a reconciliation ends after `MAX_RECONCILE_S` in any case. A thread works on large
payloads. The fingerprints of WAKU-SYNC find differences; equality is concluded from
sums where both sides know them, and otherwise from fingerprints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np

from reconcile.algorithm.questions import asked_about
from reconcile.codec import decode
from reconcile.compact.session import CompactInitiator as Initiator
from reconcile.compact.session import CompactResult as Found
from reconcile.compact.session import FallBack
from reconcile.ids import SyncId, SyncIds, ordered
from reconcile.limits import CodecLimits
from reconcile.session import PayloadFrame, Result, Role, SessionConfig, SessionStep, advance
from reconcile.session import ReconcileSession as Session
from reconcile.view import ViewAnswer as Answer
from store.domain.ports import ContentConflict, FrameStream, SyncObserver
from store.domain.view import OpenView, Times
from store.sync.errors import PeerSilentError, ProtocolBrokenError, shown
from store.sync.frames import compact_bytes, is_session_id, parse_reconcile, reconcile_bytes
from store.sync.index.view_reads import in_thread_if
from store.sync.limits import (
    FIRST_FRAME_S,
    MAX_RECONCILE_S,
    THREADED_PAYLOAD_BYTES,
    THREADED_ROWS,
)
from store.sync.session.agreement import Agreement, Phase
from store.sync.session.compact import (
    FAILED,
    CompactSide,
    encode_ids,
    initiator_side,
    responder_side,
)
from store.sync.session.conflicts import NO_CONFLICTS, KnownConflicts
from store.sync.session.sum_search import Search, has_spans
from storenode.wire.storenode.v1.peer_pb2 import ReconcileExtension, ReconcileFrame, SumSearch

_T = TypeVar("_T")

Turns = Callable[[int], AbstractAsyncContextManager[None]]

_NOTHING: Final = PayloadFrame(b"")
_SKIPPED: Final = SumSearch(more=True)


@dataclass
class Reconciliation:
    """The part of one side in a reconciliation: made for one `initiate` or `respond`.

    ``view`` may be None where nothing is asked, and ``agreement`` where nothing beyond WAKU-SYNC is
    offered. ``turn``: around the work on a payload of so many bytes. ``compact_from``: use the
    compact mode from so many own IDs on; None: never. ``offers``: offer the mode at once; else a
    peer that differs may begin it. ``known``: the conflicts of earlier sessions with this peer.

    Attributes:
        session_id: sent by the responder with its first frame.
        compact: this side of the compact mode, where it was possible, or taken up.
        is_compact: the differences were found in the compact mode.
        summed_from_ns: from here on sums were equal in the end, but for conflicts; None: nowhere.
        hidden: differences that the fingerprints of WAKU-SYNC did not show.
        conflicts: IDs with different contents on the two sides.
        settled: the spans in which these are all conflicts.
    """

    role: Role
    config: SessionConfig
    stream: FrameStream
    view: OpenView | None
    observer: SyncObserver
    silence_s: float
    turn: Turns
    agreement: Agreement | None
    compact_from: int | None = None
    offers: bool = True
    session_id: str = ""
    known: KnownConflicts = NO_CONFLICTS
    sent_bytes: int = field(default=0, init=False)
    received_bytes: int = field(default=0, init=False)
    compact: CompactSide | None = field(default=None, init=False)
    is_compact: bool = field(default=False, init=False)
    summed_from_ns: int | None = field(default=None, init=False)
    hidden: SyncIds = field(default_factory=SyncIds.empty, init=False)
    conflicts: tuple[ContentConflict, ...] = field(default=(), init=False)
    settled: tuple[Times, ...] = field(default=(), init=False)
    session: Session = field(init=False)
    _opening: ReconcileExtension | None = field(default=None, init=False)
    _is_first: bool = field(default=True, init=False)
    _has_offered: bool = field(default=False, init=False)
    _last: ReconcileFrame = field(default_factory=ReconcileFrame, init=False)
    _peer_count: int | None = field(default=None, init=False)
    _search: Search | None = field(default=None, init=False)
    _own_sum: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self.session = Session(self.role, self.config)

    @property
    def compact_failed(self) -> bool:
        """True if the compact mode was offered, or begun, and not used."""
        offered = self.offers or (self.compact is not None and bool(self.compact.reason))
        return offered and self.compact is not None and not self.is_compact

    async def initiate(self) -> Result:
        """Reconcile as the initiator.

        Raises:
            MalformedPayload: the peer sent what is none.
            LimitExceeded: the peer sent too much.
            PeerFailed: the peer left, or broke the protocol.
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        offer = await self._compact_offer()
        if self.compact is None or self.agreement is None:
            return await self._run()
        self._opening = ReconcileExtension(compact_frame=offer) if offer else None
        step = await self._step()
        if step.result is not None:
            return await self._conclude(step.result, by_peer=step.frame is None)
        frame = await self._next()
        self._peer_count = _count(frame)
        if frame.refusal or not self._received_extension.compact_frame:
            self.agreement.compact = False
            return await self._run(frame)
        return await self._run_compact(self.compact, frame)

    async def respond(self, first: ReconcileFrame) -> Result:
        """Reconcile as the responder to a first frame; raises as `initiate`."""
        if self.agreement is not None:
            self.agreement.receive(first)
        self.received_bytes += reconcile_bytes(first)
        self._last, self._peer_count = first, _count(first)
        agreement, view = self.agreement, self.view
        if agreement is not None and view is not None and self.compact_from is not None:
            self.compact = responder_side(agreement, view, first, self.config)
            if self.compact is not None:
                agreement.compact = True
                return await self._run_compact(self.compact, first)
        return await self._run(first)

    # Frames

    async def _send(self, sent: PayloadFrame, extension: ReconcileExtension | None = None) -> None:
        first, self._is_first = self._is_first, False
        names = first and self.role is Role.RESPONDER and not sent.refusal
        frame = ReconcileFrame(
            ranges_data=sent.payload,
            session_id=self.session_id if names else "",
            refusal=sent.refusal,
            count=sent.count if first else None,
            extension=extension,
        )
        await in_time(self.stream.write(frame.SerializeToString()), self.silence_s)
        self.sent_bytes += reconcile_bytes(frame)
        self.observer.sync_bytes("sent", reconcile_bytes(frame))

    async def _next(self) -> ReconcileFrame:
        data = await in_time(self.stream.read(), self.silence_s)
        if data is None:
            raise ProtocolBrokenError("the peer left when it was its turn to answer")
        frame = parse_reconcile(data)
        if self.role is Role.INITIATOR:
            self._check_name(frame)
        self.received_bytes += reconcile_bytes(frame)
        self.observer.sync_bytes("received", reconcile_bytes(frame))
        if self.agreement is not None:
            self.agreement.receive(frame)
        self._last = frame
        return frame

    def _check_name(self, frame: ReconcileFrame) -> None:
        """Take the name of the session from the responder's first frame."""
        if self.session_id and frame.session_id not in ("", self.session_id):
            raise ProtocolBrokenError("the peer gives the session another name in the middle of it")
        if not self.session_id and not frame.refusal and not is_session_id(frame.session_id):
            raise ProtocolBrokenError("the peer's first frame does not name the session")
        self.session_id = self.session_id or frame.session_id

    @property
    def _received_extension(self) -> ReconcileExtension:
        return ReconcileExtension() if self.agreement is None else self.agreement.received

    # The base session

    async def _run(self, frame: ReconcileFrame | None = None) -> Result:
        """Run the base session, from a frame of the peer on, or from the beginning."""
        while True:
            step = await self._step(frame)
            if step.result is not None:
                return await self._conclude(step.result, by_peer=step.frame is None)
            frame = await self._next()

    async def _step(self, frame: ReconcileFrame | None = None) -> SessionStep:
        view, payload_bytes = self.view, 0
        if frame is None:
            work = self.session.begin()
        else:
            payload_bytes = len(frame.ranges_data)
            refusal = shown(frame.refusal)
            work = self.session.receive(PayloadFrame(frame.ranges_data, _count(frame), refusal))
        async with self.turn(payload_bytes):
            found = await in_thread_if(payload_bytes > THREADED_PAYLOAD_BYTES, advance, work)
            while not isinstance(found, SessionStep):
                # A first payload of Skips only opens no view, and needs no answer.
                answer = Answer() if view is None else await view.answer(found)
                found = await in_thread_if(_is_large(answer), advance, work, answer)
        if found.frame is not None:
            extension = None if found.frame.refusal else await self._extension(found.result)
            await self._send(found.frame, extension)
        return found

    async def _extension(self, result: Result | None) -> ReconcileExtension | None:
        """Return the offer for this side's first frame, its sum for the last one."""
        agreement = self.agreement
        if agreement is None or self.view is None:
            return None
        if result is not None:
            await self._compute_sum(result)
            agreement.expect(Phase.ANSWER)
        own_sum = b"" if result is None else self._own_sum
        opening, self._opening = self._opening, None
        extension = ReconcileExtension(sum=own_sum)
        if opening is not None:
            extension.MergeFrom(opening)
        if self.role is Role.INITIATOR or agreement.peer_knows:
            self._offer_in(extension)
        return extension if extension.ListFields() else None

    def _offer_in(self, extension: ReconcileExtension) -> None:
        """Add the offer to the extension of this side's first frame."""
        if not self._has_offered:
            assert self.agreement is not None
            self._has_offered = True
            extension.MergeFrom(self.agreement.offer())

    # The compact mode

    async def _compact_offer(self) -> bytes:
        agreement, view = self.agreement, self.view
        if agreement is None or view is None or self.compact_from is None:
            return b""
        self.compact = initiator_side(agreement, view, self.config, self.compact_from)
        if self.compact is None:
            return b""
        agreement.compact = True
        if self.offers:
            return await self.compact.begin()
        agreement.takes_slices = True
        assert isinstance(self.compact.side, Initiator)
        self.compact.side.await_slices()
        return b""

    async def _run_compact(self, compact: CompactSide, first: ReconcileFrame) -> Result:
        assert self.agreement is not None
        if isinstance(compact.side, Initiator):
            compact.side.agree(self.agreement.nonces[1])
        elif not self._received_extension.compact_frame:
            await self._tell(ReconcileExtension(compact_frame=await compact.begin()))
            await self._next()
        while True:
            async with self.turn(compact_bytes(self._received_extension)):
                step = await compact.step(self._received_extension.compact_frame)
            match step.outcome:
                case FallBack():
                    return await self._fall_back(compact, first)
                case Found() as found:
                    break
            assert step.frame is not None
            await self._tell(ReconcileExtension(compact_frame=step.frame))
            await self._next()
        sent = ReconcileExtension(
            compact_frame=step.frame or b"", compact_ids=encode_ids(found.to_send)
        )
        if step.frame is None:
            result = compact.result(found, self._received_extension.compact_ids, self._peer_count)
            await self._compute_sum(result)
            self.agreement.expect(Phase.ANSWER)
            sent.sum = self._own_sum
            await self._tell(sent)
            return await self._conclude_compact(result, by_peer=False)
        await self._tell(sent)
        await self._next()
        if self._received_extension.compact_frame:
            async with self.turn(compact_bytes(self._received_extension)):
                await compact.step(self._received_extension.compact_frame)
        if compact.reason:
            return await self._fall_back(compact, first)
        result = compact.result(found, self._received_extension.compact_ids, self._peer_count)
        return await self._conclude_compact(result, by_peer=True)

    async def _conclude_compact(self, result: Result, *, by_peer: bool) -> Result:
        assert self.agreement is not None
        self.agreement.compact = False
        checked = await self._conclude(result, by_peer=by_peer)
        self.is_compact = True
        return self._with_bytes(checked)

    async def _fall_back(self, compact: CompactSide, first: ReconcileFrame) -> Result:
        """Run a base session, from its beginning; the side that fails says so."""
        assert self.agreement is not None
        if self.role is Role.INITIATOR:
            self._opening = (
                None if compact.is_announced else ReconcileExtension(compact_frame=FAILED)
            )
            self.session = Session(self.role, self.config)
            self.agreement.compact = False
            return self._with_bytes(await self._run())
        if self._last is not first and not compact.is_announced:
            await self._tell(ReconcileExtension(compact_frame=FAILED))
            await self._next()
        self.agreement.compact = False
        return self._with_bytes(await self._run(self._last))

    async def _tell(self, extension: ReconcileExtension) -> None:
        """Send a frame of the compact mode, the first one with the offer."""
        self._offer_in(extension)
        count = None if self.compact is None else self.compact.own_count
        await self._send(PayloadFrame(b"", count), extension)

    def _with_bytes(self, result: Result) -> Result:
        return replace(result, bytes_sent=self.sent_bytes, bytes_received=self.received_bytes)

    # The sums

    async def _compute_sum(self, result: Result) -> None:
        """Compute the sum of what both sides hold; empty: unknown."""
        assert self.agreement is not None
        assert self.view is not None
        self._own_sum = b""
        whole = self.agreement.summed(result)
        if whole is None:
            return
        sent = await self.view.contents(result.to_send)
        limit, seed = self.config.limits.max_differences, b"".join(self.agreement.nonces)
        self._search = Search(self.view, whole, sent, seed, limit, known=self.known)
        self._own_sum = await self._search.sum()

    async def _conclude(self, result: Result, *, by_peer: bool) -> Result:
        """Compare the sums, if there are some; ``by_peer``: the peer's last frame was the last."""
        if self.agreement is None or self.view is None:
            return result
        if by_peer:
            return await self._answer_sum(result, self._received_extension)
        return await self._await_sum(result) if self._own_sum else result

    async def _await_sum(self, result: Result) -> Result:
        search, theirs = self._search, await self._next_last()
        assert search is not None
        assert self.agreement is not None
        differs = bool(theirs.sum) and theirs.sum != self._own_sum
        if differs != theirs.HasField("search"):
            raise ProtocolBrokenError(
                "the peer searches where sums are equal, or not where they differ"
            )
        if not theirs.HasField("search"):
            return self._concluded(result, is_known=bool(theirs.sum))
        self.agreement.expect(Phase.SEARCH)
        if not has_spans(theirs.search):
            # The peer knows the conflicts.
            if search.is_explained(theirs.sum):
                await self._send(_NOTHING, ReconcileExtension(search=_SKIPPED))
                return self._concluded(result, search.known_conflicts)
            await self._send(_NOTHING, ReconcileExtension(search=await search.begin()))
            return await self._search_on(result, search, await self._next_step())
        return await self._search_on(result, search, theirs.search)

    async def _answer_sum(self, result: Result, theirs: ReconcileExtension) -> Result:
        if not theirs.sum:
            return result
        await self._compute_sum(result)
        assert self.agreement is not None
        search, own_sum = self._search, self._own_sum
        if not own_sum or search is None or own_sum == theirs.sum:
            await self._send(_NOTHING, ReconcileExtension(sum=own_sum))
            return self._concluded(result, is_known=bool(own_sum))
        self.agreement.expect(Phase.SEARCH)
        if search.is_explained(theirs.sum):
            await self._send(_NOTHING, ReconcileExtension(sum=own_sum, search=_SKIPPED))
            step = await self._next_step()
            if not has_spans(step):
                return self._concluded(result, search.known_conflicts)
            return await self._search_on(result, search, step)
        await self._send(_NOTHING, ReconcileExtension(sum=own_sum, search=await search.begin()))
        return await self._search_on(result, search, await self._next_step())

    async def _search_on(self, result: Result, search: Search, step: SumSearch) -> Result:
        while True:
            own = await search.answer(step)
            if not has_spans(step):
                break
            await self._send(_NOTHING, ReconcileExtension(search=own))
            if not has_spans(own):
                break
            step = await self._next_step()
        return self._searched(result, search)

    async def _next_last(self) -> ReconcileExtension:
        frame = await self._next()
        if frame.ranges_data:
            raise ProtocolBrokenError("the peer goes on after the end of the reconciliation")
        return self._received_extension

    async def _next_step(self) -> SumSearch:
        extension = await self._next_last()
        if not extension.HasField("search"):
            raise ProtocolBrokenError("the peer leaves the search: see SumSearch in the schema")
        return extension.search

    def _concluded(
        self, result: Result, conflicts: tuple[ContentConflict, ...] = (), *, is_known: bool = True
    ) -> Result:
        """Note that both sides are equal but for known conflicts, or that a sum is not known."""
        whole = self._whole(result)
        if is_known and whole is not None:
            self.summed_from_ns, self.settled, self.conflicts = whole[0], (whole,), conflicts
        return result

    def _searched(self, result: Result, search: Search) -> Result:
        """Return what reconciliation and search came to: in settled spans the lists count.

        Raises:
            ProtocolBrokenError: the sums of the peer are not those of its messages.
        """
        sent, sent_before = _split(result.to_send, search.settled)
        received, received_before = _split(result.to_receive, search.settled)
        before = SyncIds.join([sent_before, received_before])
        after = SyncIds.join([*search.to_send, *search.to_receive])
        hidden = _without(after, before)
        differs = len(hidden) or len(_without(before, after)) or search.conflicts
        if search.complete and not differs:
            raise ProtocolBrokenError(
                "the peer's sum is not that of the messages that it has listed"
            )
        whole = self._whole(result)
        complete = search.complete and whole is not None
        self.hidden, self.conflicts = ordered(hidden), tuple(search.conflicts)
        self.settled = tuple(search.settled)
        if complete and whole is not None:
            self.summed_from_ns, self.settled = whole[0], (whole,)
        return replace(
            result,
            to_send=ordered(SyncIds.join([sent, *search.to_send])),
            to_receive=ordered(SyncIds.join([received, *search.to_receive])),
            rounds=result.rounds + search.rounds,
            truncated=not complete,
        )

    def _whole(self, result: Result) -> Times | None:
        return None if self.agreement is None else self.agreement.summed(result)


def _split(ids: SyncIds, spans: list[Times]) -> tuple[SyncIds, SyncIds]:
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


def _count(frame: ReconcileFrame) -> int | None:
    return frame.count if frame.HasField("count") else None


def _is_large(answer: Answer) -> bool:
    parts = (
        () if answer.measured is None else answer.measured.counts,
        () if answer.parts is None else answer.parts.counts,
        () if answer.items is None else answer.items.ids,
        () if answer.probed is None else answer.probed.hit,
    )
    return sum(map(len, parts)) > THREADED_ROWS


async def first_frame(stream: FrameStream, observer: SyncObserver) -> ReconcileFrame | None:
    """Return the frame with which an initiator begins; None: it has nothing to ask.

    Raises:
        PeerFailed: it leaves instead.
    """
    data = await in_time(stream.read(), FIRST_FRAME_S)
    if data is None:
        return None
    frame = parse_reconcile(data)
    observer.sync_bytes("received", reconcile_bytes(frame))
    return frame


async def end_of_frames(stream: FrameStream, silence_s: float) -> None:
    """Close an initiator's side, and wait until the responder has ended the call.

    Raises:
        PeerFailed: it fails, or goes on.
    """
    await stream.half_close()
    if await in_time(stream.read(), silence_s) is not None:
        raise ProtocolBrokenError("the peer goes on after the end of the reconciliation")


async def asked_range(payload: bytes, limits: CodecLimits) -> tuple[SyncId, SyncId] | None:
    """Return the range of an initiator's first payload, without leading Skips; None: nothing.

    Raises:
        MalformedPayload: it is no payload.
        LimitExceeded: it is too large.
    """
    large = len(payload) > THREADED_PAYLOAD_BYTES
    return asked_about((await in_thread_if(large, decode, payload, limits)).ranges)


@asynccontextmanager
async def time_limit() -> AsyncIterator[None]:
    """Limit the time of a whole reconciliation."""
    try:
        async with asyncio.timeout(MAX_RECONCILE_S) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise PeerSilentError(
            f"the reconciliation was not done within {MAX_RECONCILE_S:.0f} s: reconcile a shorter "
            "window"
        ) from None


async def in_time(work: Awaitable[_T], silence_s: float) -> _T:
    """Wait for a frame to come, or to be taken, for so many seconds.

    Raises:
        PeerSilentError: neither happens.
    """
    try:
        async with asyncio.timeout(silence_s):
            return await work
    except TimeoutError:
        raise PeerSilentError(
            f"the peer has said nothing for {silence_s:.0f} s: see what keeps it, or give "
            "--peer-silence on both nodes if it needs longer for an answer"
        ) from None
