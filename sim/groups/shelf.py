"""The messages of a channel in a simulated store, read by the shipped lookups of a node.

`store.domain.claims` and `store.domain.causal` say what they want read, as of a database. Limits
and truncation are the node's: claimants per ID, messages of a causal history. What is proven comes
first, as participants ask for it.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Final

from store.domain.causal import CausalWalk, WalkState
from store.domain.claims import Claim, ClaimAnswer, ClaimQuery, Hinted, HintQuery, Lookup, rank
from store.domain.ports import CausalRequest, HistoryEntry, TopicFilter
from store.domain.query import RequestLimits
from storenode.sds.aio.transport import Fetched
from storenode.sds.codec import Entry, decode, sds_key

_UUID: Final = 2950
_BYTEA: Final = 17


class Shelf:
    """Messages of one channel; nothing leaves it.

    Attributes:
        stored: hint -> message.
        order: all of them, as they were stored.
    """

    def __init__(self, channel_id: str, limits: RequestLimits) -> None:
        self.stored: dict[bytes, Fetched] = {}
        self.order: list[Fetched] = []
        self._channel_id = channel_id.encode()
        self._limits = limits
        self._claims: dict[bytes, Claim] = {}
        self._by_key: dict[bytes, list[Claim]] = {}

    def add(self, message: Fetched) -> bool:
        """Store a message; False when it is there."""
        if message.hint in self.stored:
            return False
        self.stored[message.hint] = message
        self.order.append(message)
        claim = _claim(message)
        self._claims[message.hint] = claim
        insort(self._by_key.setdefault(claim[0], []), claim, key=rank)
        return True

    def since(self, time_ns: int) -> tuple[list[Fetched], bool]:
        """Return messages from a time on, in ascending order; never truncated."""
        found = [each for each in self.order if each.timestamp_ns >= time_ns]
        return sorted(found, key=lambda each: (each.timestamp_ns, each.hint)), False

    def by_hint(self, hints: Iterable[bytes]) -> tuple[list[Fetched], bool]:
        """Return stored messages by their hints; never truncated."""
        return [self.stored[hint] for hint in hints if hint in self.stored], False

    def by_id(self, entries: Sequence[Entry]) -> tuple[list[Fetched], bool]:
        """Return the messages that claim some IDs; True: an ID has more claimants."""
        asked = _entries(entries)
        lookup = Lookup(self._channel_id, asked, self._limits.sds_claimants)
        answer: ClaimAnswer | None = None
        while (read := lookup.step(answer)) is not None:
            answer = self._answer(read)
        return [self.stored[found[2]] for found in lookup.messages], lookup.truncated

    def causes(self, heads: Sequence[Entry], known: Sequence[str]) -> tuple[list[Fetched], bool]:
        """Return heads and all their causes, parents first; True: a limit ended the walk."""
        request = CausalRequest(
            self._channel_id,
            _entries(heads),
            frozenset(each.encode() for each in known),
            self._limits.causal_messages,
            0,
            TopicFilter(),
            self._limits.sds_claimants,
            prefer_proven=True,
        )
        walk = CausalWalk(request)
        answer: ClaimAnswer | None = None
        while (effect := walk.step(answer)) is not WalkState.DONE:
            answer = self._answer(effect) if isinstance(effect, ClaimQuery) else None
        found = [self.stored[walk.taken[number][2]] for number in walk.parents_first()]
        return found, walk.truncated

    def _answer(self, read: ClaimQuery) -> ClaimAnswer:
        most = self._limits.sds_claimants + 1
        claims = [claim for key in read.keys for claim in self._by_key.get(key, ())[:most]]
        hinted = {(query.key, query.hash): self._hinted(query) for query in read.hints}
        return ClaimAnswer(read.keys, claims, hinted)

    def _hinted(self, query: HintQuery) -> Hinted | None:
        claim = self._claims.get(query.hash)
        return Hinted(claim, readable=True) if claim and claim[0] == query.key else None


def _entries(entries: Iterable[Entry]) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(entry.message_id.encode(), entry.hint) for entry in entries)


def _claim(message: Fetched) -> Claim:
    found = decode(message.payload)
    assert found is not None, "a participant has published what no node can read"
    return (
        sds_key(found.channel_id, found.message_id),
        message.timestamp_ns,
        message.hint,
        found.message_id,
        _array(_UUID, [sds_key(found.channel_id, parent) for parent, _ in found.parents]),
        _array(_BYTEA, [hint for _, hint in found.parents]),
        found.proven,
    )


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    """Encode an array in the binary format of Postgres."""
    if not values:
        return struct.pack(">iii", 0, 0, kind)
    parts = [struct.pack(">iiiii", 1, int(None in values), kind, len(values), 1)]
    for value in values:
        parts.append(struct.pack(">i", -1 if value is None else len(value)))
        parts.append(value or b"")
    return b"".join(parts)
