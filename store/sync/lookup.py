"""Asks a peer for some SDS messages by their IDs, and stores what comes.

What is held already is not asked for, so that a long list may be gone through again; but for IDs
that could prove their message and do not prove the one that is held, which may be forged. What
comes takes the way of every message between stores: admission judges it, the writer makes it
durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from store.domain.admission import Admission
from store.domain.claims import name_of
from store.domain.environment import Environment
from store.domain.ports import (
    HistoryEntry,
    PeerAddress,
    PeerError,
    SdsLookup,
    SdsLookups,
    Source,
    TopicFilter,
    Writer,
)
from store.messages.transfer import decode_message
from store.sync.limits import ADMITTED_AT_ONCE
from store.sync.peers import PeerCaller
from storenode.message.rules import Policy


@dataclass(frozen=True, slots=True)
class FetchDone:
    """The outcome of each entry that a peer was asked for, and of what came.

    ``already_stored`` here; ``found`` at the peer, and stored here now; ``missing`` there;
    ``refused`` by the rules that ``notes`` name. ``error``: why it was not asked to the end.
    """

    peer: PeerAddress
    already_stored: tuple[HistoryEntry, ...] = ()
    found: tuple[HistoryEntry, ...] = ()
    missing: tuple[HistoryEntry, ...] = ()
    refused: tuple[HistoryEntry, ...] = ()
    stored: int = 0
    notes: tuple[str, ...] = ()
    error: str = ""


_MAX_NOTES: Final = 10
Entries = tuple[HistoryEntry, ...]


@dataclass
class _Taken:
    """The result so far: the number of new messages, and the refused ones, by ID or hash."""

    stored: int = 0
    refused: set[bytes | None] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)


class Fetcher:
    """The look-ups of one node; on the event loop's thread."""

    def __init__(
        self,
        caller: PeerCaller,
        sds: SdsLookups,
        writer: Writer,
        policy: Callable[[], Policy],
        environment: Environment,
    ) -> None:
        self._caller = caller
        self._sds = sds
        self._writer = writer
        self._policy = policy
        self._environment = environment

    async def fetch(self, peer: PeerAddress, request: SdsLookup) -> FetchDone:
        """Ask one peer, once; see `store.sync.schedule.Synchronizer.fetch`."""
        wanted, doubtful = await self._missing(request.channel_id, request.entries)
        done = FetchDone(peer, already_stored=_without(request.entries, wanted))
        asked = wanted + doubtful
        if not asked:
            return done
        taken, error = _Taken(), ""
        try:
            pages = self._caller.lookup(peer, request.channel_id, asked)
            async with aclosing(pages):
                async for page in pages:
                    for start in range(0, len(page), ADMITTED_AT_ONCE):
                        await self._take(page[start : start + ADMITTED_AT_ONCE], taken)
        except PeerError as failed:
            error = str(failed)
        left, _ = await self._missing(request.channel_id, wanted)
        refused = tuple(
            entry for entry in left if {entry.message_id, entry.retrieval_hint} & taken.refused
        )
        self._environment.log.info(
            "fetched", peer=str(peer), asked=len(asked), stored=taken.stored, error=error
        )
        return replace(
            done,
            found=_without(wanted, left),
            missing=() if error else _without(left, refused),
            refused=refused,
            stored=taken.stored,
            notes=tuple(f"{count:,} refused: {why}" for why, count in taken.reasons.most_common()),
            error=error,
        )

    async def _missing(
        self, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> tuple[Entries, Entries]:
        wanted = SdsLookup(
            channel_id, tuple(entries), TopicFilter(), claimants=1, prefer_proven=True
        )
        missing, unproven = await self._sds.doubtful(wanted)
        return tuple(missing), tuple(unproven)

    async def _take(self, encoded: list[bytes], taken: _Taken) -> None:
        admission = Admission(self._policy(), self._environment.now_ns(), Source.TRANSFER)
        admission.admit(encoded)
        published = admission.admitted
        new = await self._writer.store(published.batch, Source.TRANSFER)
        published.refuse_conflicts(new)
        counted = published.count(new)
        self._environment.count_intake(Source.TRANSFER.value, counted.duplicate, counted.rejected)
        taken.stored += counted.stored
        for place, refusal in published.refusals.items():
            payload = decode_message(encoded[place]).payload
            taken.refused.add(name_of(payload, published.hashes[place]))
            if refusal.sentence in taken.reasons or len(taken.reasons) < _MAX_NOTES:
                taken.reasons[refusal.sentence] += 1


def _without(entries: Entries, left: Entries) -> Entries:
    gone = set(left)
    return tuple(entry for entry in entries if entry not in gone)
