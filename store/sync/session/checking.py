"""The end of a reconciliation: sums of both sides, and a search where they differ.

the last word of one side, with its sum ─► the other's: equal: concluded
                                              └─────► they differ: `session.sum_search`
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from reconcile.ids import SyncIds, ordered
from reconcile.session import Result, SessionConfig
from reconcile.session import SendPayload as Send
from store.domain.view import OpenView
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, SearchStep
from store.sync.session.agreement import BY_XOR, Agreement, Phase, Proof, parted, without
from store.sync.session.reconciling import Driving
from store.sync.session.sum_search import Search

NOTHING_TO_SAY: Final = Send(b"")


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
    _own: bytes = field(default=b"", init=False)
    _search: Search | None = field(default=None, init=False)

    async def compute(self, result: Result) -> bytes:
        """Return the sum of what both sides hold, as far as this side knows; empty: unknown."""
        whole = self.agreement.summed(result)
        if whole is None:
            return b""
        sent = await self.view.contents(result.to_send)
        limit, seed = self.config.limits.max_differences, b"".join(self.agreement.nonces)
        self._search = Search(self.view, whole, sent, seed, limit)
        self._own = await self._search.sum()
        return self._own

    async def after_own(self, result: Result) -> Result:
        """Conclude where the own sum was the last word, if there was one: the peer answers it.

        Raises:
            PeerFailed: the peer left, or broke the protocol.
        """
        if not self._own or self._search is None:
            return result
        heard = await self._next()
        differs = bool(heard.sum) and heard.sum != self._own
        if differs != (heard.search is not None):
            raise ProtocolBroken("the peer searches where sums are equal, or not where they differ")
        if heard.search is None:
            return self._concluded(result, is_known=bool(heard.sum))
        self.agreement.expect(Phase.SEARCH)
        return await self._go_on(result, self._search, heard.search)

    async def after_theirs(self, result: Result, heard: Extension) -> Result:
        """Conclude where the peer's sum was the last word, if there was one; raises alike."""
        if not heard.sum:
            return result
        own = await self.compute(result)
        if not own or self._search is None or own == heard.sum:
            await self._tell(Extension(sum=own))
            return self._concluded(result, is_known=bool(own))
        await self._tell(Extension(sum=own, search=await self._search.begin()))
        self.agreement.expect(Phase.SEARCH)
        return await self._go_on(result, self._search, await self._next_step())

    async def _go_on(self, result: Result, search: Search, step: SearchStep) -> Result:
        """Answer steps until one side has nothing left to compare."""
        while True:
            own = await search.answer(step)
            if not step:
                break
            await self._tell(Extension(search=own))
            if not own:
                break
            step = await self._next_step()
        return self._settled(result, search)

    async def _next(self) -> Extension:
        frame = await self.driving.next()
        if frame.payload:
            raise ProtocolBroken("the peer goes on after the end of the reconciliation")
        return self.agreement.heard

    async def _next_step(self) -> SearchStep:
        step = (await self._next()).search
        if step is None:
            raise ProtocolBroken("the peer leaves the search: see SumSearch in the schema")
        return step

    async def _tell(self, extension: Extension) -> None:
        await self.driving.frames.send(NOTHING_TO_SAY, extension)

    def _concluded(self, result: Result, *, is_known: bool) -> Result:
        """Note that the sums of both sides are equal, or that one is not known."""
        whole = self.agreement.summed(result)
        if is_known and whole is not None:
            self.proof = Proof(whole[0])
        return result

    def _settled(self, result: Result, search: Search) -> Result:
        """Return what both passes came to together: in settled spans the lists count.

        Raises:
            ProtocolBroken: the sums of the peer are not those of its messages.
        """
        sent, sent_before = parted(result.to_send, search.settled)
        received, received_before = parted(result.to_receive, search.settled)
        before = SyncIds.join([sent_before, received_before])
        after = SyncIds.join([*search.to_send, *search.to_receive])
        hidden = without(after, before)
        differs = len(hidden) or len(without(before, after)) or search.conflicts
        if search.complete and not differs:
            raise ProtocolBroken("the peer's sum is not that of the messages that it has listed")
        conflicts = tuple(search.conflicts)
        summed = self.agreement.summed(result)
        complete = search.complete and summed is not None
        start_ns = summed[0] if summed is not None and complete else None
        self.proof = Proof(start_ns, hidden=ordered(hidden), conflicts=conflicts)
        return replace(
            result,
            to_send=ordered(SyncIds.join([sent, *search.to_send])),
            to_receive=ordered(SyncIds.join([received, *search.to_receive])),
            rounds=result.rounds + search.rounds,
            truncated=not complete,
        )
