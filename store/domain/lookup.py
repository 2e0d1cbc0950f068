"""``GetSdsMessages``: which stored messages a list of SDS message IDs selects.

Rules: every entry is a reference (see `store.domain.claims`). The selected messages come in the
order of the entries, each once per ID; an entry that selects nothing is missing, with its hint as
it was given. Where what is proven is preferred, entries are unproven that select nothing proven,
although their ID could be a proof. The answer is truncated when an ID has more claimants than are
returned.

======================  =============================================
`Lookup.step` answers   the caller then
======================  =============================================
``Read``                reads it and steps again with the `Answer`
``None``                takes ``messages``, ``missing`` and ``truncated``
======================  =============================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from store.domain.claims import Answer, Claims, Found, HintQuery, Read, usable_hint
from store.domain.ports import HistoryEntry
from storenode.message.limits import MAX_SDS_CLAIMANTS
from storenode.sds.codec import decode, sds_key
from storenode.sds.proofs import ID_BYTES


class Lookup:
    """One request; ``step`` until it answers None.

    ``entries`` are those of the request, each once: slots of hint queries count in them.
    ``claimants`` are returned for one ID at most.
    """

    def __init__(
        self,
        channel_id: bytes,
        entries: Sequence[HistoryEntry],
        claimants: int = MAX_SDS_CLAIMANTS,
    ) -> None:
        self.messages: list[Found] = []
        self.missing: list[HistoryEntry] = []
        self.unproven: list[HistoryEntry] = []
        self.truncated = False
        self.entries = tuple(dict.fromkeys(entries))
        self._references = [
            (sds_key(channel_id, entry.message_id), usable_hint(entry.retrieval_hint))
            for entry in self.entries
        ]
        self._claims = Claims(claimants)

    def step(self, answer: Answer | None = None) -> Read | None:
        """Go on with what was read; what to read next, None when the result is complete."""
        if answer is not None:
            self._claims.add(answer)
        keys = {key: None for key, _ in self._references if not self._claims.is_read(key)}
        if keys:
            return Read(tuple(keys))
        hints = {
            (key, hint): HintQuery(key, hint, None, slot)
            for slot, (key, hint) in enumerate(self._references)
            if hint is not None and self._claims.lacks_hint(key, hint)
        }
        if hints:
            return Read((), tuple(hints.values()))
        self._finish()
        return None

    def _finish(self) -> None:
        sent: set[tuple[bytes, bytes]] = set()
        for entry, (key, hint) in zip(self.entries, self._references, strict=True):
            selection = self._claims.select(key, hint)
            assert selection is not None, "a reference is resolved before it was read"
            self.truncated |= selection.cut
            if not selection.claims:
                self.missing.append(entry)
            elif len(entry.message_id) == ID_BYTES and not any(
                claim[6] for claim in selection.claims
            ):
                self.unproven.append(entry)
            for claim in selection.claims:
                if (key, claim[2]) not in sent:
                    sent.add((key, claim[2]))
                    self.messages.append(claim[:4])


class Asked:
    """What another node was asked for, against which its answers are held."""

    def __init__(self, channel_id: bytes, entries: Sequence[HistoryEntry]) -> None:
        self._channel_id = channel_id
        self._ids = {entry.message_id for entry in entries}
        self._hints = {entry.retrieval_hint for entry in entries}

    def selects(self, payload: bytes, message_hash: Callable[[], bytes]) -> bool:
        """Does a payload claim one of the IDs, or cannot be read and is what a hint names?"""
        metadata = decode(payload)
        if metadata is None:
            return message_hash() in self._hints
        return metadata.channel_id == self._channel_id and metadata.message_id in self._ids


def name_of(payload: bytes, message_hash: bytes) -> bytes:
    """What entries name a message by: the ID that it claims, or its hash where it claims none."""
    metadata = decode(payload)
    return message_hash if metadata is None else metadata.message_id
