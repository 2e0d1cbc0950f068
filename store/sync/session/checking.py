"""The end of a reconciliation: digests of both sides, and a search where they differ.

the last word of one side, with its digests ─► the other's: equal: concluded
                                                    └─────► they differ:
   of what is in memory ──────────────────────────────────────────────┐
   of what lies below ─► the hours that differ (`session.locating`) ──┴─► reconcile anew by
                                                      aliases, tell each other the hashes
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from reconcile.ids import SyncIds, ordered
from reconcile.keyed import Aliased
from reconcile.session import (
    Begin,
    Bounds,
    Input,
    Received,
    Result,
    Role,
    Send,
    Session,
    SessionConfig,
)
from reconcile.view import Answer, Read, Spans
from store.domain.view import OpenView
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, Reconcile
from store.sync.index.reading import in_thread_if
from store.sync.limits import THREADED_ROWS
from store.sync.session.agreement import BY_XOR, Agreement, Phase, Proof, parted, without
from store.sync.session.locating import Below
from store.sync.session.reconciling import Driving
from storenode.message.limits import HASH_BYTES

NOTHING_TO_SAY: Final = Send(b"")


@dataclass(frozen=True, slots=True)
class Digests:
    """Of one side; empty where there is none. ``below``: what the lattice digest is made from."""

    keyed: bytes = b""
    lattice: bytes = b""
    below: Below | None = None

    def __bool__(self) -> bool:
        return bool(self.keyed or self.lattice)

    def added_to(self, extension: Extension) -> Extension:
        """With these digests."""
        return replace(extension, digest=self.keyed, lattice_digest=self.lattice)


@dataclass(slots=True)
class Checking:
    """One side's part in the check of one reconciliation.

    ``proof`` is complete at the end.
    """

    config: SessionConfig
    view: OpenView
    driving: Driving
    agreement: Agreement
    proof: Proof = BY_XOR
    own: Digests = field(default_factory=Digests)
    """Of this side, once it has computed them."""

    async def compute(self, result: Result, *, lattice: bool = True) -> Digests:
        """The digests of what both sides hold together, as far as this side knows."""
        agreement, keyed = self.agreement, b""
        if agreement.key is None:
            return self.own
        if agreement.comparable(result):
            assert agreement.folds is not None
            held = await self.view.keyed_sum(agreement.folds, agreement.cut, result.window[1])
            keyed = agreement.digest(result, held)
        span, below = agreement.below(result), None
        if lattice and span is not None:
            below = Below(self.view, agreement.key, span, result.to_receive)
        self.own = Digests(keyed, b"" if below is None else await below.digest(), below)
        return self.own

    async def after_own(self, result: Result) -> Result:
        """The own digests were the last word, if there were any: the peer answers them.

        Raises:
            PeerFailed: the peer left, or broke the protocol.
        """
        own = self.own
        if not own:
            return result
        frame, heard = await self._next()
        below_differs = _differs(own.lattice, heard.lattice_digest)
        if heard.steps is not None and not below_differs:
            raise ProtocolBroken("the peer tells lattice steps although its digest is equal")
        if not _differ(own, heard):
            if frame.payload:
                raise ProtocolBroken("the peer goes on after the end of the reconciliation")
            return self._concluded(result, heard)
        spans, complete = self._keyed_spans(heard, result), True
        if below_differs:
            assert own.below is not None
            offered = await own.below.hours(heard.steps)
            self.agreement.expect(Phase.HOURS)
            await self.driving.frames.send(NOTHING_TO_SAY, Extension(steps=offered))
            frame, chosen = await self._next()
            spans = own.below.chosen(chosen.steps, offered) + spans
            complete = chosen.steps is not None and not chosen.steps.more
        given = Received(frame.payload)
        return await self._search(Role.RESPONDER, given, result, heard, spans, complete=complete)

    async def after_theirs(self, result: Result, heard: Extension) -> Result:
        """The peer's digests were the last word, if there were any: answer them; raises alike."""
        if not (heard.digest or heard.lattice_digest):
            return result
        own = await self.compute(result, lattice=bool(heard.lattice_digest))
        opening = own.added_to(Extension())
        if not _differ(own, heard):
            await self.driving.frames.send(NOTHING_TO_SAY, opening)
            return self._concluded(result, heard)
        spans, complete = self._keyed_spans(heard, result), True
        if _differs(own.lattice, heard.lattice_digest):
            assert own.below is not None
            self.agreement.expect(Phase.DAYS)
            await self.driving.frames.send(
                NOTHING_TO_SAY, replace(opening, steps=await own.below.days())
            )
            _, hours = await self._next()
            chosen = await own.below.choose(hours.steps)
            opening, complete = Extension(steps=chosen), not chosen.more
            spans = own.below.bounds(chosen.hours) + spans
        return await self._search(
            Role.INITIATOR, Begin(), result, heard, spans, complete=complete, opening=opening
        )

    def _keyed_spans(self, heard: Extension, result: Result) -> list[Bounds]:
        differ = _differs(self.own.keyed, heard.digest)
        return [(self.agreement.cut, result.window[1])] if differ else []

    async def _next(self) -> tuple[Reconcile, Extension]:
        frame = await self.driving.next()
        return frame, self.agreement.heard

    def _concluded(self, result: Result, heard: Extension) -> Result:
        """All that was compared is equal."""
        self.proof = Proof(self._compared_from(result, heard))
        return result

    def _compared_from(self, result: Result, heard: Extension) -> int | None:
        """From when on both sides have digests."""
        in_memory = self.agreement.cut < result.window[1]
        if in_memory and not (self.own.keyed and heard.digest):
            return None
        if self.own.below is not None and self.own.lattice and heard.lattice_digest:
            return self.own.below.span[0]
        return self.agreement.cut[0] if in_memory else None

    async def _search(
        self,
        role: Role,
        first: Input,
        result: Result,
        heard: Extension,
        spans: list[Bounds],
        *,
        complete: bool,
        opening: Extension | None = None,
    ) -> Result:
        """Find by aliases what the fingerprints of WAKU-SYNC hide in some spans."""
        agreement = self.agreement
        assert agreement.key is not None
        agreement.expect(Phase.SEARCH)
        held = (await self.view.answer(Read(items=Spans.of(spans)))).items
        assert held is not None
        large = len(held.ids) > THREADED_ROWS
        aliased = await in_thread_if(large, Aliased, held.ids, agreement.key)
        bounds = spans[0][0], spans[-1][1]
        window = bounds if role is Role.INITIATOR else None
        session = Session(role, replace(self.config, window=window, horizon=bounds[0], cuts=()))

        async def answer(read: Read) -> Answer:
            return await in_thread_if(large, aliased.view.answer, read)

        async def extending(found: Result | None) -> Extension | None:
            nonlocal opening
            told, opening = opening, None
            return told if found is None else _hashes(aliased, found)

        found, by_peer = await self.driving.run(session, answer, extending, first)
        told = await self._told_hashes(aliased, found, by_peer=by_peer)
        whole, hidden = await in_thread_if(large, _settled, result, found, aliased, spans, told)
        if found.truncated or not complete:
            self.proof = Proof(hidden=hidden)
            return replace(whole, truncated=True)
        self.proof = Proof(self._compared_from(result, heard), hidden=hidden)
        return whole

    async def _told_hashes(self, aliased: Aliased, found: Result, *, by_peer: bool) -> bytes:
        """The hashes of what the peer sends, after the last word of the search."""
        if by_peer:
            told = self.agreement.heard.hashes
            await self.driving.frames.send(NOTHING_TO_SAY, _hashes(aliased, found))
        else:
            frame, heard = await self._next()
            told = heard.hashes
            if frame.payload:
                raise ProtocolBroken("the peer goes on after the end of the search")
        if len(told) > HASH_BYTES * self.config.limits.max_differences:
            raise ProtocolBroken("the peer tells more hashes than a session may report")
        return told


def _differs(own: bytes, theirs: bytes) -> bool:
    return bool(own and theirs) and own != theirs


def _differ(own: Digests, heard: Extension) -> bool:
    return _differs(own.keyed, heard.digest) or _differs(own.lattice, heard.lattice_digest)


def _hashes(aliased: Aliased, found: Result) -> Extension:
    return Extension(hashes=aliased.originals(found.to_send).hashes.tobytes())


def _settled(
    result: Result, found: Result, aliased: Aliased, spans: list[Bounds], told: bytes
) -> tuple[Result, SyncIds]:
    """What both passes came to together, and what was hidden: in the spans, the second one counts.

    Raises:
        ProtocolBroken: the peer's hashes or digest are not those of its messages.
    """
    to_send = aliased.originals(found.to_send)
    to_receive, exact = aliased.revealed(found.to_receive, told)
    if not exact and not found.truncated:
        raise ProtocolBroken("the peer tells other hashes than those that it has reconciled")
    sent, send_before = parted(result.to_send, spans)
    received, receive_before = parted(result.to_receive, spans)
    before = SyncIds.join([send_before, receive_before])
    after = SyncIds.join([to_send, to_receive])
    hidden = without(after, before)
    if not (len(hidden) or len(without(before, after)) or found.truncated):
        raise ProtocolBroken("the peer's digest is not that of the messages that it has reconciled")
    whole = replace(
        result,
        to_send=ordered(SyncIds.join([sent, to_send])),
        to_receive=ordered(SyncIds.join([received, to_receive])),
        rounds=result.rounds + found.rounds,
        bytes_sent=result.bytes_sent + found.bytes_sent,
        bytes_received=result.bytes_received + found.bytes_received,
    )
    return whole, ordered(hidden)
