"""The part of one side in a reconciliation: frames, questions to a view, sums at the end.

    compact mode, if agreed ─┐
    base session ────────────┴─► the last frame of one side, with its sum ─► the sum of the other
                                      equal: concluded; different: `session.sum_search`

The sides alternate, one frame each. A peer that neither sends nor takes a frame for ``silence_s``
has left, and a reconciliation ends after `MAX_RECONCILE_S` in any case. A thread works on large
payloads. The fingerprints of WAKU-SYNC find differences; equality is concluded from
sums where both sides know them, and otherwise from fingerprints.

The compact mode finds what the other side lacks by short IDs. The side with the last compact frame
sends its own IDs with it; the other one answers with its IDs and its sum, as at the end of a base
session. Source: docs/spec/compact.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from reconcile.algorithm.questions import asked_about
from reconcile.codec import RangeKind, decode
from reconcile.compact import is_available
from reconcile.compact.frames import FrameKind, PlainFrame, encode
from reconcile.compact.session import Claim, CompactStep, Expected, FallBack
from reconcile.compact.session import CompactInitiator as Initiator
from reconcile.compact.session import CompactResponder as Responder
from reconcile.compact.session import CompactResult as Found
from reconcile.errors import MalformedCompactError as MalformedCompact
from reconcile.errors import PayloadLimitError
from reconcile.ids import HASH_DTYPE, LOWEST, SyncId, SyncIds, less, ordered
from reconcile.limits import CodecLimits
from reconcile.session import (
    Bounds,
    PayloadFrame,
    Result,
    Role,
    SessionConfig,
    SessionStep,
    advance,
)
from reconcile.session import ReconcileSession as Session
from reconcile.view import ViewAnswer as Answer
from store.domain.view import OpenView, Span
from store.sync.errors import PeerSilentError, ProtocolBrokenError, shown
from store.sync.frames import compact_bytes, is_session_id, parse_reconcile, reconcile_bytes
from store.sync.index.view_reads import in_thread_if
from store.sync.limits import (
    MAX_OFFER_PAYLOAD_BYTES,
    MAX_RECONCILE_S,
    THREADED_PAYLOAD_BYTES,
    THREADED_ROWS,
)
from store.sync.peers import FrameStream
from store.sync.session.agreement import Agreement, Phase
from store.sync.session.report import ContentConflict, SessionReport, SyncObserver
from store.sync.session.sum_search import NO_CONFLICTS, KnownConflicts, Search, has_spans
from storenode.message.limits import HASH_BYTES
from storenode.wire.storenode.v1.peer_pb2 import ReconcileExtension, ReconcileFrame, SumSearch

_T = TypeVar("_T")

Turns = Callable[[int], AbstractAsyncContextManager[None]]

GOES_ON: Final = "the peer goes on after the end of the reconciliation"
_NOTHING: Final = PayloadFrame(b"")
_SKIPPED: Final = SumSearch(more=True)

FAILED: Final = encode(PlainFrame(FrameKind.FAILED))
"""The frame that announces a base session to the peer."""

_TIME_BYTES: Final = 8
_TIME_DTYPE: Final = np.dtype("<i8")


class Reconciliation:
    """The part of one side in a reconciliation: made for one `initiate` or `respond`.

    Attributes:
        session_id: sent by the responder with its first frame.
        compact: this side of the compact mode, where it was possible, or taken up.
        compact_error: why the mode was given up.
        hidden: ascending differences that the fingerprints of WAKU-SYNC did not show.
        conflicts: IDs with different contents on the two sides.
        settled: the spans of time whose conflicts are all in ``conflicts``.
    """

    def __init__(
        self,
        role: Role,
        config: SessionConfig,
        stream: FrameStream,
        view: OpenView | None,
        report: SessionReport,
        *,
        observer: SyncObserver,
        silence_s: float,
        turn: Turns,
        agreement: Agreement | None,
        compact_from: int | None = None,
        offers: bool = True,
        session_id: str = "",
        known: KnownConflicts = NO_CONFLICTS,
    ) -> None:
        """Take the parts; the findings are noted in ``report``.

        ``view`` may be None where nothing is asked, and ``agreement`` where nothing beyond
        WAKU-SYNC is offered. ``turn``: around the work on a payload of so many bytes.
        ``compact_from``: use the compact mode from so many own IDs on; None: never. ``offers``:
        offer the mode at once; else a peer that differs may begin it. ``known``: the conflicts of
        earlier sessions with this peer.
        """
        self.role = role
        self.config = config
        self.view = view
        self.agreement = agreement
        self.compact: Initiator | Responder | None = None
        self.compact_error = ""
        self.compact_from = compact_from
        self.offers = offers
        self.session_id = session_id
        self.session = Session(role, config)
        self._stream = stream
        self._observer = observer
        self._silence_s = silence_s
        self._turn = turn
        self._report = report
        self._known = known
        self._has_sent = False
        self._opening = b""  # the compact frame in the initiator's next base frame
        self._compact_window = LOWEST, LOWEST
        self._compact_rounds = 0  # the compact frames of this side
        self._peer_gave_up = False  # the peer has announced the failure, and not this side
        self._received: ReconcileFrame | None = None  # the last frame of the peer
        self._extension = ReconcileExtension()  # its extension, as far as it was agreed on
        self._peer_count: int | None = None
        self._search: Search | None = None
        self._own_sum = b""
        self._summed: Span | None = None  # the range of the sums
        self.hidden = SyncIds.empty()
        self.conflicts: tuple[ContentConflict, ...] = ()
        self.settled: Sequence[Span] = ()

    @property
    def compact_failed(self) -> bool:
        """True if the compact mode was offered, or begun, and not used."""
        if self.compact is None or self._report.compact:
            return False
        return self.offers or bool(self.compact_error)

    async def initiate(self) -> Result:
        """Reconcile as the initiator.

        Raises:
            MalformedPayload: the peer sent what is none.
            PayloadLimitError: the peer sent too much.
            PeerError: the peer left, or broke the protocol.
            NotServingError: the database does not serve.
        """
        agreement = self.agreement
        side = None if agreement is None else self._compact_initiator(agreement)
        if side is None or agreement is None:
            return await self._run()
        self.compact, agreement.compact = side, True
        if self.offers:
            self._opening = await in_thread_if(side.own_count > THREADED_ROWS, side.begin)
        else:
            agreement.takes_slices = True
            side.await_slices()
        step = await self._step()
        if step.result is not None:
            return await self._conclude(step.result, by_peer=step.frame is None)
        frame = await self._next()
        if frame.refusal or not self._extension.compact_frame:
            agreement.compact = False
            return await self._run(frame)
        side.agree(agreement.nonces[1])
        return await self._run_compact(side, agreement, frame)

    async def respond(self, first: ReconcileFrame) -> Result:
        """Reconcile as the responder to a first frame; raises as `initiate`."""
        self._receive(first)
        agreement = self.agreement
        side = None if agreement is None else self._compact_responder(agreement, first)
        if side is None or agreement is None:
            return await self._run(first)
        self.compact, agreement.compact = side, True
        if not self._extension.compact_frame:
            self._compact_rounds += 1
            await self._send_compact(
                side, await in_thread_if(side.own_count > THREADED_ROWS, side.begin)
            )
            await self._next()
        return await self._run_compact(side, agreement, first)

    # Frames

    async def _send(self, sent: PayloadFrame, extension: ReconcileExtension | None = None) -> None:
        """Send a frame, the first one with the offer of this side."""
        first, self._has_sent = not self._has_sent, True
        is_initiator, agreement = self.role is Role.INITIATOR, self.agreement
        if (
            first
            and extension is not None
            and agreement is not None
            and (is_initiator or agreement.peer_knows)
        ):
            extension.MergeFrom(agreement.offer())
        frame = ReconcileFrame(
            ranges_data=sent.payload,
            session_id=self.session_id if first and not is_initiator and not sent.refusal else "",
            refusal=sent.refusal,
            count=sent.count if first else None,
            extension=extension if extension is not None and extension.ListFields() else None,
        )
        await in_time(self._stream.write(frame.SerializeToString()), self._silence_s)
        self._report.bytes_sent += reconcile_bytes(frame)
        self._observer.session_progressed(self._report)

    async def _next(self) -> ReconcileFrame:
        data = await in_time(self._stream.read(), self._silence_s)
        if data is None:
            raise ProtocolBrokenError("the peer left when it was its turn to answer")
        frame = parse_reconcile(data)
        if self.role is Role.INITIATOR:
            self._check_name(frame)
        self._receive(frame)
        return frame

    def _receive(self, frame: ReconcileFrame) -> None:
        if self._received is None:
            self._peer_count = _count(frame)
        self._report.bytes_received += reconcile_bytes(frame)
        self._observer.session_progressed(self._report)
        self._received = frame
        if self.agreement is not None:
            self._extension = self.agreement.receive(frame)

    def _check_name(self, frame: ReconcileFrame) -> None:
        """Take the name of the session from the responder's first frame."""
        if self.session_id and frame.session_id not in ("", self.session_id):
            raise ProtocolBrokenError("the peer gives the session another name in the middle of it")
        if not self.session_id and not frame.refusal and not is_session_id(frame.session_id):
            raise ProtocolBrokenError("the peer's first frame does not name the session")
        self.session_id = self.session_id or frame.session_id

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
        async with self._turn(payload_bytes):
            found = await in_thread_if(payload_bytes > THREADED_PAYLOAD_BYTES, advance, work)
            while not isinstance(found, SessionStep):
                # A first payload of Skips only opens no view, and needs no answer.
                answer = Answer() if view is None else await view.answer(found)
                found = await in_thread_if(_is_large(answer), advance, work, answer)
        if found.frame is not None:
            extension = None
            if self.agreement is not None and not found.frame.refusal:
                if found.result is not None:
                    await self._compute_sum(self.agreement, found.result)
                extension = ReconcileExtension(sum=self._own_sum, compact_frame=self._opening)
                self._opening = b""
            await self._send(found.frame, extension)
        return found

    # The compact mode

    def _compact_initiator(self, agreement: Agreement) -> Initiator | None:
        """Return an initiator's side; None: not all is in memory, or there are too few IDs."""
        assert self.config.window is not None
        index, window = agreement.view.indexed, (agreement.start, self.config.window[1])
        least = self.compact_from
        if least is None or not is_available() or index is None:
            return None
        if not agreement.whole or not window[0] < window[1]:
            return None
        side = Initiator(index, window, agreement.own_nonce)
        self._compact_window = window
        return None if side.claim.count < least else side

    def _compact_responder(self, agreement: Agreement, first: ReconcileFrame) -> Responder | None:
        """Return a responder's side for a first frame; None: no offer that can be taken up.

        Where the initiator offers nothing and takes slices, an equal side does not use the mode.
        """
        index, offered = agreement.view.indexed, self._extension.compact_frame
        is_wanted = bool(offered or agreement.peer_takes_slices) and agreement.peer_knows
        if self.compact_from is None or not is_available() or index is None:
            return None
        if not (is_wanted and agreement.whole and first.HasField("count")):
            return None
        if len(first.ranges_data) > MAX_OFFER_PAYLOAD_BYTES:
            return None
        config = self.config
        payload = decode(first.ranges_data, config.limits.payload)
        if (payload.cluster, set(payload.shards)) != (config.cluster, set(config.shards)):
            return None  # A base session refuses it.
        ranges = payload.ranges
        asked = asked_about(ranges)
        opened = ranges.kinds.nonzero()[0]
        is_single = ranges.kinds[opened].tolist() == [RangeKind.FINGERPRINT]
        if asked is None or asked[0] != agreement.start or not is_single:
            return None
        claim = Claim(first.count, ranges.fingerprints[opened[0]])
        side = Responder(index, asked, agreement.nonces, claim)
        self._compact_window = asked
        return None if side.is_equal and not offered else side

    async def _run_compact(
        self, side: Initiator | Responder, agreement: Agreement, first: ReconcileFrame
    ) -> Result:
        step = await self._compact_step(side)
        while not isinstance(found := step.outcome, Found):
            if isinstance(found, FallBack):
                return await self._fall_back(side, agreement, first)
            assert step.frame is not None
            await self._send_compact(side, step.frame)
            await self._next()
            step = await self._compact_step(side)
        own_ids = encode_ids(found.to_send)
        is_last = step.frame is None
        if step.frame is None:
            result = self._compact_result(side, found)
            await self._compute_sum(agreement, result)
            await self._send_compact(side, b"", own_ids, self._own_sum)
        else:
            await self._send_compact(side, step.frame, own_ids)
            await self._next()
            if self._extension.compact_frame:
                await self._compact_step(side)
            if self.compact_error:
                return await self._fall_back(side, agreement, first)
            result = self._compact_result(side, found)
        agreement.compact = False
        checked = await self._conclude(result, by_peer=not is_last)
        self._report.compact = True
        return checked

    async def _compact_step(self, side: Initiator | Responder) -> CompactStep:
        """Take the compact frame of the peer's last frame."""
        self._compact_rounds += 1
        frame, limit = self._extension.compact_frame, self.config.limits.max_differences
        async with self._turn(compact_bytes(self._extension)):
            try:
                step = await in_thread_if(side.own_count > THREADED_ROWS, side.receive, frame)
            except (MalformedCompact, PayloadLimitError) as error:
                step = CompactStep(FAILED, FallBack(str(error)))
        match step.outcome:
            case Found(to_send, to_receive) if len(to_send) + len(to_receive) > limit:
                step = CompactStep(FAILED, FallBack("more differences than a session may report"))
        if isinstance(step.outcome, FallBack):
            self.compact_error, self._peer_gave_up = step.outcome.reason, step.frame is None
        return step

    def _compact_result(self, side: Initiator | Responder, found: Found) -> Result:
        """Return what both sides came to, with the IDs that the peer says it sends.

        Raises:
            ProtocolBrokenError: they are not those that it has reconciled.
        """
        window, encoded = self._compact_window, self._extension.compact_ids
        return Result(
            to_send=found.to_send,
            to_receive=_checked_ids(encoded, found.to_receive, window),
            rounds=self._compact_rounds,
            bytes_sent=0,
            bytes_received=0,
            own_count=side.own_count,
            peer_count=self._peer_count,
            truncated=False,
            refusal="",
            window=window,
        )

    async def _fall_back(
        self, side: Initiator | Responder, agreement: Agreement, first: ReconcileFrame
    ) -> Result:
        """Run a base session, from its beginning; the side that fails says so."""
        self._report.compact_failed = self.compact_error
        if self.role is Role.INITIATOR:
            self._opening = b"" if self._peer_gave_up else FAILED
            self.session = Session(self.role, self.config)
            agreement.compact = False
            return await self._run()
        if self._received is not first and not self._peer_gave_up:
            await self._send_compact(side, FAILED)
            await self._next()
        agreement.compact = False
        return await self._run(self._received)

    async def _send_compact(
        self, side: Initiator | Responder, frame: bytes, ids: bytes = b"", own_sum: bytes = b""
    ) -> None:
        extension = ReconcileExtension(compact_frame=frame, compact_ids=ids, sum=own_sum)
        await self._send(PayloadFrame(b"", side.own_count), extension)

    # The sums

    async def _compute_sum(self, agreement: Agreement, result: Result) -> None:
        """Compute the sum of what both sides hold, which the peer is to answer; empty: unknown."""
        agreement.expect(Phase.ANSWER)
        self._own_sum = b""
        whole = self._summed = agreement.summed(result)
        if whole is None:
            return
        sent = await agreement.view.contents(result.to_send)
        limit, seed = self.config.limits.max_differences, b"".join(agreement.nonces)
        self._search = Search(agreement.view, whole, sent, seed, limit, known=self._known)
        self._own_sum = await self._search.sum()

    async def _conclude(self, result: Result, *, by_peer: bool) -> Result:
        """Compare the sums, if there are some; ``by_peer``: the peer's last frame was the last."""
        if self.agreement is None:
            return result
        if by_peer:
            return await self._answer_sum(self.agreement, result)
        if not self._own_sum or self._search is None:
            return result
        return await self._await_sum(self.agreement, self._search, result)

    async def _await_sum(self, agreement: Agreement, search: Search, result: Result) -> Result:
        theirs = await self._next_last()
        differs = bool(theirs.sum) and theirs.sum != self._own_sum
        if differs != theirs.HasField("search"):
            raise ProtocolBrokenError(
                "the peer searches where sums are equal, or not where they differ"
            )
        if not differs:
            return self._concluded(result) if theirs.sum else result
        agreement.expect(Phase.SEARCH)
        step = theirs.search
        if not has_spans(step):
            # The peer knows the conflicts.
            if search.is_explained(theirs.sum):
                await self._send(_NOTHING, ReconcileExtension(search=_SKIPPED))
                return self._concluded(result, search.known_conflicts)
            await self._send(_NOTHING, ReconcileExtension(search=await search.begin()))
            step = await self._next_step()
        return await self._search_on(result, search, step)

    async def _answer_sum(self, agreement: Agreement, result: Result) -> Result:
        peer_sum = self._extension.sum
        if not peer_sum:
            return result
        await self._compute_sum(agreement, result)
        search, own_sum = self._search, self._own_sum
        if not own_sum or search is None or own_sum == peer_sum:
            await self._send(_NOTHING, ReconcileExtension(sum=own_sum))
            return self._concluded(result) if own_sum else result
        agreement.expect(Phase.SEARCH)
        is_explained = search.is_explained(peer_sum)
        asked = _SKIPPED if is_explained else await search.begin()
        await self._send(_NOTHING, ReconcileExtension(sum=own_sum, search=asked))
        step = await self._next_step()
        if is_explained and not has_spans(step):
            return self._concluded(result, search.known_conflicts)
        return await self._search_on(result, search, step)

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
            raise ProtocolBrokenError(GOES_ON)
        return self._extension

    async def _next_step(self) -> SumSearch:
        extension = await self._next_last()
        if not extension.HasField("search"):
            raise ProtocolBrokenError("the peer leaves the search: see SumSearch in the schema")
        return extension.search

    def _concluded(self, result: Result, conflicts: tuple[ContentConflict, ...] = ()) -> Result:
        """Note that both sides are equal but for known conflicts."""
        if self._summed is not None:
            self._report.keyed_from_ns, self.settled = self._summed[0], [self._summed]
        self.conflicts = conflicts
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
        complete = search.complete and self._summed is not None
        self.hidden, self.conflicts = ordered(hidden), tuple(search.conflicts)
        self.settled = search.settled
        if complete:
            self._concluded(result, self.conflicts)
        return replace(
            result,
            to_send=ordered(SyncIds.join([sent, *search.to_send])),
            to_receive=ordered(SyncIds.join([received, *search.to_receive])),
            rounds=result.rounds + search.rounds,
            truncated=not complete,
        )


def encode_ids(ids: SyncIds) -> bytes:
    """Return IDs as ``compact_ids`` of the schema."""
    return ids.timestamps.astype(_TIME_DTYPE).tobytes() + ids.hashes.tobytes()


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


async def asked_range(payload: bytes, limits: CodecLimits) -> tuple[SyncId, SyncId] | None:
    """Return the range of an initiator's first payload, without leading Skips; None: nothing.

    Raises:
        MalformedPayload: it is no payload.
        PayloadLimitError: it is too large.
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
