"""A reconciliation whose end is checked by sums, where both sides can (`session.checking`).

    compact mode, if agreed ─┐
    base session ────────────┴─► sums of both sides

What the fingerprints of WAKU-SYNC say stays a means to find differences; without an agreement it is
also what equality is concluded from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reconcile.compact.session import CompactInitiator as Initiator
from reconcile.compact.session import CompactResponder as Responder
from reconcile.compact.session import CompactResult as Found
from reconcile.session import Bounds, Input, Result, Role, SessionConfig
from reconcile.session import ReconcileSession as Session
from reconcile.session import SendPayload as Send
from reconcile.session import SessionBegin as Begin
from store.domain.view import OpenView
from store.sync.frames import Extension, Reconcile
from store.sync.session.agreement import BY_XOR, NOTHING_HEARD, Agreement, Phase, Proof
from store.sync.session.checking import Checking
from store.sync.session.compacting import FAILED, Compacting, encoded, initiating, responding
from store.sync.session.reconciling import Answerer, Driving, Frames, received


@dataclass(slots=True)
class Verifying:
    """One reconciliation, as one side sees it.

    ``view`` may be None where nothing is asked. ``compact_from``: use the compact mode where this
    side holds so many IDs; None: not at all. ``offers``: begin with it; else a peer that differs
    may.
    """

    role: Role
    config: SessionConfig
    view: OpenView | None
    driving: Driving
    compact_from: int | None = None
    offers: bool = True
    compact: Compacting | None = field(default=None, init=False)
    """The part of the compact mode, where it was possible, or taken up."""
    session: Session = field(init=False)
    frames: Frames = field(init=False)
    agreement: Agreement | None = field(init=False)
    _answer: Answerer | None = field(init=False)
    _checking: Checking | None = field(default=None, init=False)
    _compact: bool = field(default=False, init=False)
    _offered: bool = field(default=False, init=False)
    _opening: Extension | None = field(default=None, init=False)
    _last: Reconcile = field(default_factory=lambda: Reconcile(b""), init=False)
    _peer_count: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.session = Session(self.role, self.config)
        self.frames, self.agreement = self.driving.frames, self.driving.agreement
        self._answer = None if self.view is None else self.view.answer
        if self.agreement is not None and self.view is not None:
            self._checking = Checking(self.config, self.view, self.driving, self.agreement)

    @property
    def proof(self) -> Proof:
        """How the two sides were compared; complete at the end."""
        checked = BY_XOR if self._checking is None else self._checking.proof
        return replace(checked, compact=self._compact)

    @property
    def compact_failed(self) -> bool:
        """The compact mode was offered, or begun, and not used."""
        offered = self.offers or (self.compact is not None and bool(self.compact.reason))
        return offered and self.compact is not None and not self._compact

    async def begin(self) -> Result:
        """Go on to the end, as the initiator; raises as `Driving.run`."""
        offer = await self._compact_offer()
        if self.compact is None or self.agreement is None:
            return await self._run(Begin())
        self._opening = Extension(compact_frame=offer) if offer else None
        base = self.session, self._answer, self._extending
        result, said = await self.driving.say(*base, Begin())
        if result is not None:
            return await self._check(result, by_peer=not said)
        frame = await self._next()
        self._peer_count = frame.count
        if frame.refusal or not self._heard.compact_frame:
            self.agreement.compact = False
            return await self._run(received(frame))
        return await self._compactly(self.compact, frame)

    async def answer(self, first: Reconcile) -> Result:
        """Go on to the end, as the responder to this frame; raises as `Driving.run`."""
        if self.agreement is not None:
            self.agreement.hear(first)
        self.frames.received_bytes += first.size_bytes
        self._last, self._peer_count = first, first.count
        if self._takes_up(first):
            assert self.compact is not None
            return await self._compactly(self.compact, first)
        return await self._run(received(first))

    async def _run(self, first: Input) -> Result:
        base = self.session, self._answer, self._extending
        result, by_peer = await self.driving.run(*base, first)
        return await self._check(result, by_peer=by_peer)

    async def _check(self, result: Result, *, by_peer: bool) -> Result:
        if self._checking is None:
            return result
        if by_peer:
            return await self._checking.after_theirs(result, self._heard)
        return await self._checking.after_own(result)

    @property
    def _heard(self) -> Extension:
        """What the peer's last frame has."""
        return NOTHING_HEARD if self.agreement is None else self.agreement.heard

    async def _compact_offer(self) -> bytes:
        agreement, view, window = self.agreement, self.view, self.config.window
        if agreement is None or view is None or window is None or self.compact_from is None:
            return b""
        made = initiating(agreement, view, window, self.compact_from)
        if made is None:
            return b""
        agreement.compact = True
        self.compact = self._compacting(*made)
        if self.offers:
            return await self.compact.begin()
        agreement.takes_slices = True
        made[0].await_slices()
        return b""

    def _takes_up(self, first: Reconcile) -> bool:
        agreement, view = self.agreement, self.view
        if agreement is None or view is None or self.compact_from is None:
            return False
        made = responding(agreement, view, first, self.config)
        if made is not None:
            agreement.compact = True
            self.compact = self._compacting(*made)
        return made is not None

    def _compacting(self, side: Initiator | Responder, window: Bounds) -> Compacting:
        limit = self.config.limits.max_differences
        turn = self.driving.turn
        return Compacting(side, window, side.own_count, limit, turn, self._tell, self._told)

    async def _compactly(self, compact: Compacting, first: Reconcile) -> Result:
        """Go on in the compact mode from a frame of the peer on, and where it fails without."""
        assert self.agreement is not None
        if isinstance(compact.side, Initiator):
            compact.side.agree(self.agreement.nonces[1])
        ended = await compact.run(self._heard)
        if ended is not None:
            found, last = ended
            sent = Extension(compact_frame=last or b"", compact_ids=encoded(found.to_send))
            if last is None:
                return await self._accept(compact, found, sent)
            await self._tell(sent)
            heard = await self._told()
            if not await compact.failed(heard):
                result = compact.result(found, heard.compact_ids, self._peer_count)
                return await self._compared(result, by_peer=True)
        return await self._fall_back(compact, first)

    async def _accept(self, compact: Compacting, found: Found, sent: Extension) -> Result:
        """Send this side's IDs and sum, after the peer's last frame of the mode."""
        assert self.agreement is not None
        assert self._checking is not None
        result = compact.result(found, self._heard.compact_ids, self._peer_count)
        own_sum = await self._checking.compute(result)
        self.agreement.expect(Phase.ANSWER)
        await self._tell(replace(sent, sum=own_sum))
        return await self._compared(result, by_peer=False)

    async def _compared(self, result: Result, *, by_peer: bool) -> Result:
        assert self.agreement is not None
        self.agreement.compact = False
        checked = await self._check(result, by_peer=by_peer)
        self._compact = True
        return self._counted(checked)

    def _counted(self, result: Result) -> Result:
        """With the bytes of compact frames."""
        sent, heard = self.frames.sent_bytes, self.frames.received_bytes
        return replace(result, bytes_sent=sent, bytes_received=heard)

    async def _fall_back(self, compact: Compacting, first: Reconcile) -> Result:
        """A base session, from its beginning; the side that fails says so."""
        assert self.agreement is not None
        if self.role is Role.INITIATOR:
            self._opening = None if compact.told else Extension(compact_frame=FAILED)
            self.session = Session(self.role, self.config)
            self.agreement.compact = False
            return self._counted(await self._run(Begin()))
        if self._last is not first and not compact.told:
            await self._tell(Extension(compact_frame=FAILED))
            await self._next()
        self.agreement.compact = False
        return self._counted(await self._run(received(self._last)))

    async def _tell(self, told: Extension) -> None:
        assert self.agreement is not None
        if not self._offered:
            self._offered, offer = True, self.agreement.offer()
            told = replace(
                told,
                version=offer.version,
                nonce=offer.nonce,
                slices=offer.slices,
                compared_from_ns=offer.compared_from_ns,
            )
        count = None if self.compact is None else self.compact.own_count
        await self.frames.send(Send(b"", count), told)

    async def _told(self) -> Extension:
        await self._next()
        return self._heard

    async def _next(self) -> Reconcile:
        self._last = await self.driving.next()
        return self._last

    async def _extending(self, result: Result | None) -> Extension | None:
        """Return the offer for this side's first frame, its sum for the last one."""
        if self.agreement is None or self._checking is None:
            return None
        own_sum = b""
        if result is not None:
            own_sum = await self._checking.compute(result)
            self.agreement.expect(Phase.ANSWER)
        opening, self._opening = self._opening, None
        told = opening or NOTHING_HEARD
        if not self._offered and (self.role is Role.INITIATOR or self.agreement.peer_knows):
            self._offered = True
            told = replace(self.agreement.offer(), compact_frame=told.compact_frame)
        elif not own_sum and opening is None:
            return None
        return replace(told, sum=own_sum)
