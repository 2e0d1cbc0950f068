"""A reconciliation whose end is checked by keyed digests, where both sides can.

    base session ─► digests ─► equal: concluded by key
                       └─────► they differ: reconcile anew by aliases, tell each other the hashes

What the fingerprints of WAKU-SYNC say stays a means to find differences; without an agreement it is
also what equality is concluded from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from reconcile.ids import SyncId, SyncIds, ordered
from reconcile.keyed import Aliased
from reconcile.session import Begin, Input, Received, Result, Role, Send, Session, SessionConfig
from reconcile.view import Answer, Read, Spans
from store.domain.view import OpenView
from store.sync.errors import ProtocolBroken, shown
from store.sync.frames import Extension, Reconcile
from store.sync.index.reading import in_thread_if
from store.sync.limits import THREADED_ROWS
from store.sync.session.agreement import BY_XOR, Agreement, Phase, Proof, divided, without
from store.sync.session.reconciling import Answerer, Driving, Extending, Frames, Turns
from storenode.message.limits import HASH_BYTES

_NOTHING_TO_SAY: Final = Send(b"")


@dataclass(slots=True)
class Verifying:
    """One reconciliation, as one side sees it.

    ``view`` may be None where nothing is asked. ``agreement``: None in clear text. ``turn``: around
    the work on a payload of so many bytes. ``proof`` is complete at the end.
    """

    role: Role
    config: SessionConfig
    session: Session
    view: OpenView | None
    frames: Frames
    now_ns: Callable[[], int]
    turn: Turns
    agreement: Agreement | None
    proof: Proof = BY_XOR
    _heard: Extension = field(default_factory=Extension, init=False)
    _digest: bytes = field(default=b"", init=False)
    _offered: bool = field(default=False, init=False)

    @property
    def session_id(self) -> str:
        """What the responder calls the session."""
        return self.frames.session_id

    async def begin(self) -> Result:
        """Go on to the end, as the initiator; raises as `Driving.run`."""
        return await self._run(Begin())

    async def answer(self, first: Reconcile) -> Result:
        """Go on to the end, as the responder to this frame; raises as `Driving.run`."""
        self._hear(first)
        return await self._run(Received(first.payload, first.count, shown(first.refusal)))

    async def _run(self, first: Input) -> Result:
        answer = None if self.view is None else self.view.answer
        result, by_peer = await self._driving(self.session, answer, self._extending).run(first)
        if by_peer:
            return await self._check_theirs(result)
        return await self._check_own(result)

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
        if self._offered or (self.role is Role.RESPONDER and not self.agreement.peer_knows):
            return Extension(digest=self._digest) if self._digest else None
        self._offered = True
        return replace(self.agreement.offer(), digest=self._digest)

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
    return whole, Proof(None if found.truncated else cut[0], ordered(hidden))
