"""A reconciliation whose end is checked by keyed digests, where both sides can.

    compact mode, if agreed ─► digests, or

    base session ─► digests ─► equal: concluded by key
                       └─────► they differ: reconcile anew by aliases, tell each other the hashes

What the fingerprints of WAKU-SYNC say stays a means to find differences; without an agreement it is
also what equality is concluded from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from reconcile.compact.outcome import Found
from reconcile.compact.session import Initiator, Responder
from reconcile.ids import SyncId, SyncIds, ordered
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
from store.sync.session.agreement import BY_XOR, Agreement, Phase, Proof, divided, without
from store.sync.session.compacting import FAILED, Compacting, encoded, initiating, responding
from store.sync.session.reconciling import (
    Answerer,
    Driving,
    Extending,
    Frames,
    Turns,
    received,
)
from storenode.message.limits import HASH_BYTES

_NOTHING_TO_SAY: Final = Send(b"")


@dataclass(slots=True)
class Verifying:
    """One reconciliation, as one side sees it.

    ``view`` may be None where nothing is asked. ``agreement``: None in clear text. ``turn``: around
    the work on a payload of so many bytes. ``compact_from``: offer the compact mode where this side
    holds so many IDs; None: neither offer it nor take it up. ``proof`` is complete at the end.
    """

    role: Role
    config: SessionConfig
    session: Session
    view: OpenView | None
    frames: Frames
    now_ns: Callable[[], int]
    turn: Turns
    agreement: Agreement | None
    compact_from: int | None = None
    proof: Proof = BY_XOR
    compact: Compacting | None = field(default=None, init=False)
    """The part of the compact mode, where it was offered to a peer, or taken up."""
    _heard: Extension = field(default_factory=Extension, init=False)
    _digest: bytes = field(default=b"", init=False)
    _offered: bool = field(default=False, init=False)
    _opening: Extension | None = field(default=None, init=False)
    _last: Reconcile = field(default_factory=lambda: Reconcile(b""), init=False)
    _peer_count: int | None = field(default=None, init=False)

    @property
    def session_id(self) -> str:
        """What the responder calls the session."""
        return self.frames.session_id

    async def begin(self) -> Result:
        """Go on to the end, as the initiator; raises as `Driving.run`."""
        offer = await self._compact_offer()
        if self.compact is None:
            return await self._run(Begin())
        self._opening = Extension(compact_frame=offer)
        result, said = await self._base().say(Begin())
        if result is not None:
            return await self._check(result, by_peer=not said)
        frame = await self._next()
        self._peer_count = frame.count
        if frame.refusal or not self._heard.compact_frame:
            return await self._run(received(frame))
        return await self._compactly(self.compact, frame)

    async def answer(self, first: Reconcile) -> Result:
        """Go on to the end, as the responder to this frame; raises as `Driving.run`."""
        self._hear(first)
        self.frames.received_bytes += first.size_bytes
        self._last, self._peer_count = first, first.count
        if self._takes_up(first):
            assert self.compact is not None
            return await self._compactly(self.compact, first)
        return await self._run(received(first))

    async def _run(self, first: Input) -> Result:
        result, by_peer = await self._base().run(first)
        return await self._check(result, by_peer=by_peer)

    async def _check(self, result: Result, *, by_peer: bool) -> Result:
        return await (self._check_theirs(result) if by_peer else self._check_own(result))

    async def _compact_offer(self) -> bytes:
        agreement, view, window = self.agreement, self.view, self.config.window
        if agreement is None or view is None or window is None or self.compact_from is None:
            return b""
        made = initiating(agreement, view, window, self.compact_from)
        if made is None:
            return b""
        agreement.compact = True
        self.compact = self._compacting(*made)
        return await self.compact.begin()

    def _takes_up(self, first: Reconcile) -> bool:
        agreement, view = self.agreement, self.view
        if agreement is None or view is None or self.compact_from is None:
            return False
        if not self._heard.compact_frame:
            return False
        made = responding(agreement, view, first, self.config)
        if made is not None:
            agreement.compact = True
            self.compact = self._compacting(*made)
        return made is not None

    def _compacting(self, side: Initiator | Responder, window: Bounds) -> Compacting:
        limit = self.config.limits.max_differences
        return Compacting(side, window, side.held_count, limit, self.turn, self._tell, self._told)

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
        """The peer has said the last of the mode: tell it the own IDs, and the digest."""
        assert self.agreement is not None
        result = compact.result(found, self._heard.compact_ids, self._peer_count)
        self._digest = await self._own_digest(result)
        self.agreement.expect(Phase.ANSWER)
        await self._tell(replace(sent, digest=self._digest))
        return await self._compared(result, by_peer=False)

    async def _compared(self, result: Result, *, by_peer: bool) -> Result:
        assert self.agreement is not None
        self.agreement.compact = False
        checked = await self._check(result, by_peer=by_peer)
        self.proof = replace(self.proof, compact=True)
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
            told = replace(offer, compact_frame=told.compact_frame, compact_ids=told.compact_ids)
        count = None if self.compact is None else self.compact.own_count
        await self.frames.send(Send(b"", count), told)

    async def _told(self) -> Extension:
        await self._next()
        return self._heard

    async def _next(self) -> Reconcile:
        self._last = await self.frames.receive()
        self._hear(self._last)
        return self._last

    def _base(self) -> Driving:
        answer = None if self.view is None else self.view.answer
        return self._driving(self.session, answer, self._extending)

    def _driving(self, session: Session, answer: Answerer | None, extending: Extending) -> Driving:
        return Driving(session, answer, self.frames, self.now_ns, self.turn, extending, self._hear)

    def _hear(self, frame: Reconcile) -> None:
        if self.agreement is not None:
            self._heard = self.agreement.hear(frame)

    async def _extending(self, result: Result | None) -> Extension | None:
        """The offer in the own first frame, the digest in the last one."""
        if self.agreement is None or self.view is None:
            return None
        if result is not None:
            self._digest = await self._own_digest(result)
            self.agreement.expect(Phase.ANSWER)
        opening, self._opening = self._opening, None
        compact = b"" if opening is None else opening.compact_frame
        if self._offered or (self.role is Role.RESPONDER and not self.agreement.peer_knows):
            told = Extension(digest=self._digest, compact_frame=compact)
            return told if self._digest or compact else None
        self._offered = True
        return replace(self.agreement.offer(), digest=self._digest, compact_frame=compact)

    async def _own_digest(self, result: Result) -> bytes:
        """Empty: none can be compared."""
        agreement, view = self.agreement, self.view
        if agreement is None or agreement.key is None or not agreement.comparable(result):
            return b""
        assert view is not None
        own = await view.keyed_sum(agreement.key.fold, agreement.cut, result.window[1])
        return agreement.digest(result, own)

    async def _check_own(self, result: Result) -> Result:
        """The own digest was the last word, if there was one: the peer answers it."""
        if not self._digest:
            return result
        frame = await self.frames.receive()
        self._hear(frame)
        theirs = self._heard.digest
        if theirs and theirs != self._digest:
            return await self._search(Role.RESPONDER, Received(frame.payload), result)
        if frame.payload:
            raise ProtocolBroken("the peer goes on after the end of the reconciliation")
        return self._concluded(result, equal=bool(theirs))

    async def _check_theirs(self, result: Result) -> Result:
        """The peer's digest was the last word, if there was one: answer it."""
        theirs = self._heard.digest
        if not theirs:
            return result
        self._digest = await self._own_digest(result)
        if self._digest and theirs != self._digest:
            return await self._search(Role.INITIATOR, Begin(), result)
        await self.frames.send(_NOTHING_TO_SAY, Extension(digest=self._digest))
        return self._concluded(result, equal=bool(self._digest))

    def _concluded(self, result: Result, *, equal: bool) -> Result:
        if equal and self.agreement is not None:
            self.proof = Proof(self.agreement.cut[0])
        return result

    async def _search(self, role: Role, first: Input, result: Result) -> Result:
        """Find by aliases what the fingerprints of WAKU-SYNC hide."""
        agreement, view = self.agreement, self.view
        assert agreement is not None
        assert agreement.key is not None
        assert view is not None
        agreement.expect(Phase.SEARCH)
        bounds = agreement.cut, result.window[1]
        held = (await view.answer(Read(items=Spans.of([bounds])))).items
        assert held is not None
        large = len(held.ids) > THREADED_ROWS
        aliased = await in_thread_if(large, Aliased, held.ids, agreement.key)
        window = bounds if role is Role.INITIATOR else None
        session = Session(role, replace(self.config, window=window, horizon=bounds[0], cuts=()))
        opening = Extension(digest=self._digest) if window else None

        async def answer(read: Read) -> Answer:
            return await in_thread_if(large, aliased.view.answer, read)

        async def extending(found: Result | None) -> Extension | None:
            nonlocal opening
            told, opening = opening, None
            return told if found is None else _hashes(aliased, found)

        found, by_peer = await self._driving(session, answer, extending).run(first)
        if by_peer:
            told = self._heard.hashes
            await self.frames.send(_NOTHING_TO_SAY, _hashes(aliased, found))
        else:
            told = await self._last_hashes()
        if len(told) > HASH_BYTES * self.config.limits.max_differences:
            raise ProtocolBroken("the peer tells more hashes than a session may report")
        whole, self.proof = await in_thread_if(
            large, _settled, result, found, aliased, agreement.cut, told
        )
        return whole

    async def _last_hashes(self) -> bytes:
        frame = await self.frames.receive()
        self._hear(frame)
        if frame.payload:
            raise ProtocolBroken("the peer goes on after the end of the search")
        return self._heard.hashes


def _hashes(aliased: Aliased, found: Result) -> Extension:
    return Extension(hashes=aliased.originals(found.to_send).hashes.tobytes())


def _settled(
    result: Result, found: Result, aliased: Aliased, cut: SyncId, told: bytes
) -> tuple[Result, Proof]:
    """What both passes came to together: from the cut on, the second one counts.

    Raises:
        ProtocolBroken: the peer's hashes or digest are not those of its messages.
    """
    to_send = aliased.originals(found.to_send)
    to_receive, exact = aliased.revealed(found.to_receive, told)
    if not exact and not found.truncated:
        raise ProtocolBroken("the peer tells other hashes than those that it has reconciled")
    before = SyncIds.join([divided(result.to_send, cut)[1], divided(result.to_receive, cut)[1]])
    hidden = without(SyncIds.join([to_send, to_receive]), before)
    phantom = without(before, SyncIds.join([to_send, to_receive]))
    if not (len(hidden) or len(phantom) or found.truncated):
        raise ProtocolBroken("the peer's digest is not that of the messages that it has reconciled")
    whole = replace(
        result,
        to_send=SyncIds.join([divided(result.to_send, cut)[0], to_send]),
        to_receive=SyncIds.join([divided(result.to_receive, cut)[0], to_receive]),
        rounds=result.rounds + found.rounds,
        bytes_sent=result.bytes_sent + found.bytes_sent,
        bytes_received=result.bytes_received + found.bytes_received,
        truncated=found.truncated,
    )
    return whole, Proof(None if found.truncated else cut[0], hidden=ordered(hidden))
