"""``GetCausalHistory`` where history is as it should be: one pass over the channel, newest first.

A participant publishes after what it refers to, and usually names its parents' hashes. Then the
causal past of the heads is found by going through the channel once, from the newest head down:
a message belongs to it when one that was met before refers to it, and ascending time is an order
in which every parent precedes its children. That takes a fraction of the work of the walk in
`store.domain.causal`, which knows no such conditions.

Rules: the sweep comes to the same result as that walk, or gives up. It gives up when a limit on
depth is set; when the limits on messages or on what is open are passed; when a head does not
select exactly one message; when two references to an ID differ in their hints; and when an ID
that was never met below its children turns out to be claimed somewhere, or the message that a
hint names to be held (a parent newer than its child, a cycle, a lying hint, a thin history among
many other messages). An ID that was referenced without a hint must have no second claimant, and
where the caller prefers what is proven, neither must one whose message is not and might be.

=========  =====================  ==========================================================
state      `Sweep.step` answers   then
=========  =====================  ==========================================================
heads      ``Read`` of keys       down
down       ``Read`` of a window   down, until nothing is open, or little of a window is used
down       ``Pause``              down, in the same window
rest       ``Read`` of keys       hints
hints      ``Read`` of hints      sole
sole       ``Read`` of contested  done
done       ``Done``               takes ``parents_first()``, ``missing``, ``truncated``
any        ``GiveUp``             walks
=========  =====================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from store.domain.causal import CausalWalk
from store.domain.claims import (
    DONE,
    GIVE_UP,
    HEADS,
    PAUSE,
    Answer,
    Claim,
    Claims,
    Done,
    Found,
    GiveUp,
    HintQuery,
    Origin,
    Pause,
    Read,
    Window,
    references,
    usable_hint,
)
from store.domain.ports import CausalRequest, SyncId
from storenode.message.limits import MAX_CAUSAL_MESSAGES
from storenode.sds.codec import sds_key
from storenode.sds.proofs import ID_BYTES

MAX_OPEN: Final = MAX_CAUSAL_MESSAGES
"""IDs that are referenced and not met yet; the walk has a limit in bytes."""

MAX_REST: Final = 2_048
"""IDs that were never met and may be missing; more are left to the walk."""

FIRST_WINDOW_CLAIMS: Final = 512
LARGEST_WINDOW_CLAIMS: Final = 2_048
"""Claims of a window. A walk's are larger, since each costs it more reads than the window."""

STEP_REFERENCES: Final = 8_192
"""Claims and references looked at in one step, a few milliseconds."""

_GROWTH: Final = 4
_LEAST_USE: Final = 16

_Effect = Read | Pause | Done | GiveUp

_Open = tuple[bytes | None, int, int]
"""Hint of the references to an ID, number and slot of the first."""


class Sweep:
    """A sweep; see the module's rules and table. ``taken`` is newest first."""

    truncated: Final = False

    def __init__(self, request: CausalRequest, known_keys: frozenset[bytes]) -> None:
        self.taken: list[Found] = []
        self.missing: dict[bytes, Origin] = {}
        self._request = request
        self._known = known_keys
        self._heads = [
            (sds_key(request.channel_id, head.message_id), usable_hint(head.retrieval_hint))
            for head in request.heads
        ]
        self._open: dict[bytes, _Open] = {}
        self._doubtful: list[bytes] = []  # must have one claimant
        self._window_claims = 0
        self._window = Answer((), (), {})
        self._seen = 0  # claims of the window that were gone through
        self._used = 0
        self._next: Callable[[Answer], _Effect] = self._begin

    def step(self, answer: Answer | None = None) -> _Effect:
        """Continue, with the answer if one was asked for."""
        if answer is not None:
            return self._next(answer)
        if self._seen < len(self._window.claims):
            return self._go_on()
        if self._request.max_depth:
            return GIVE_UP
        keys = {key: None for key, _ in self._heads if key not in self._known}
        return Read(tuple(keys)) if keys else DONE

    def parents_first(self) -> Iterator[int]:
        """Return the numbers of what was taken, every parent before its children: oldest first."""
        return iter(range(len(self.taken) - 1, -1, -1))

    def check(self) -> None:
        """Verify the invariants between steps; raises AssertionError."""
        positions = [(found[1], found[2]) for found in self.taken]
        assert positions == sorted(positions, reverse=True), "what was taken is out of order"
        assert len(set(positions)) == len(positions), "one is taken twice"
        assert self._known.isdisjoint(self._open), "what is known is looked for"
        assert self._known.isdisjoint(found[0] for found in self.taken), "what is known is taken"

    def _begin(self, answer: Answer) -> Read | GiveUp:
        claims = Claims(self._request.claimants)
        claims.add(answer)
        newest: SyncId = (0, b"")
        for slot, (key, hint) in enumerate(self._heads):
            if key in self._known:
                continue
            selection = claims.select(key, hint)
            if selection is None or len(selection.claims) != 1 or selection.cut:
                return GIVE_UP
            claim = selection.claims[0]
            if self._open.setdefault(key, (claim[2], HEADS, slot))[0] != claim[2]:
                return GIVE_UP
            newest = max(newest, (claim[1], claim[2]))
        # A position is exclusive, and the newest head itself must be met.
        return self._read_below((newest[0], newest[1] + b"\0"))

    def _read_below(self, position: SyncId) -> Read:
        self._next = self._go_down
        self._window_claims = min(
            self._window_claims * _GROWTH or FIRST_WINDOW_CLAIMS, LARGEST_WINDOW_CLAIMS
        )
        following = min(self._window_claims * _GROWTH, LARGEST_WINDOW_CLAIMS)
        return Read((), window=Window(position, self._window_claims, following, complete=False))

    def _go_down(self, answer: Answer) -> _Effect:
        self._window, self._seen, self._used = answer, 0, len(self.taken)
        return self._go_on()

    def _go_on(self) -> _Effect:
        if not self._take(self._window.claims):
            return GIVE_UP
        if len(self.taken) > self._request.max_messages or len(self._open) > MAX_OPEN:
            return GIVE_UP
        if self._seen < len(self._window.claims):
            return PAUSE
        used, reached = len(self.taken) - self._used, self._window.reached
        if not self._open:
            return self._ask_for_sole()
        if reached is None or used * _LEAST_USE < self._seen:
            return self._ask_for_rest()
        return self._read_below(reached)

    def _take(self, claims: Sequence[Claim]) -> bool:
        """Take what is open, newest first, as much as fits into a step; False when hints to one
        ID differ.
        """
        opened, known, taken = self._open, self._known, self.taken
        prefers = self._request.prefer_proven
        left = STEP_REFERENCES
        for claim in islice(claims, self._seen, None):
            if left <= 0:
                break
            self._seen += 1
            left -= 1
            first = opened.get(claim[0])
            if first is None:
                continue
            if first[0] != claim[2]:
                if first[0] is not None:
                    continue
                self._doubtful.append(claim[0])
            elif prefers and not claim[6] and len(claim[3]) == ID_BYTES:
                self._doubtful.append(claim[0])
            del opened[claim[0]]
            number = len(taken)
            taken.append(claim[:4])
            found = references(claim[4], claim[5])
            left -= len(found)
            for slot, (key, hint) in enumerate(found):
                other = opened.get(key)
                if other is None:
                    if key not in known:
                        opened[key] = (hint, number, slot)
                elif other[0] != hint:
                    return False
        return True

    def _ask_for_rest(self) -> Read | GiveUp:
        if len(self._open) > MAX_REST:
            return GIVE_UP
        self._next = self._note_rest
        return Read(tuple(self._open))

    def _note_rest(self, answer: Answer) -> Read | Done | GiveUp:
        if answer.claims:
            return GIVE_UP
        queries = [
            HintQuery(key, hint, None if number == HEADS else self.taken[number][:3], slot)
            for key, (hint, number, slot) in self._open.items()
            if hint is not None
        ]
        self.missing = {key: Origin(number, slot) for key, (_, number, slot) in self._open.items()}
        if not queries:
            return self._ask_for_sole()
        self._next = self._note_hints
        return Read((), queries)

    def _note_hints(self, answer: Answer) -> Read | Done | GiveUp:
        if any(hinted is not None for hinted in answer.hinted.values()):
            return GIVE_UP
        return self._ask_for_sole()

    def _ask_for_sole(self) -> Read | Done:
        if not self._doubtful:
            return DONE
        self._next = self._note_sole
        return Read((), contested=tuple(self._doubtful))

    @staticmethod
    def _note_sole(answer: Answer) -> Done | GiveUp:
        return GIVE_UP if answer.contested else DONE


HASHED_PER_STEP: Final = 4_096
"""Known IDs hashed in one step, a few milliseconds."""


class CausalHistory:
    """A request; ``step`` until it answers ``Done``, then ``result`` holds what was found."""

    def __init__(self, request: CausalRequest) -> None:
        self.result: Sweep | CausalWalk = Sweep(request, frozenset())
        self._request = request
        self._known_keys: set[bytes] = set()
        self._unhashed: Iterator[bytes] | None = iter(request.known_ids)

    def step(self, answer: Answer | None = None) -> Read | Pause | Done:
        """Continue, with the answer if one was asked for."""
        if self._unhashed is not None:
            return self._hash_known(self._unhashed)
        effect = self.result.step(answer)
        if isinstance(effect, GiveUp):
            self.result = CausalWalk(self._request, frozenset(self._known_keys))
            return PAUSE
        return effect

    def _hash_known(self, unhashed: Iterator[bytes]) -> Pause:
        channel = self._request.channel_id
        portion = list(islice(unhashed, HASHED_PER_STEP))
        self._known_keys.update(sds_key(channel, known) for known in portion)
        if not portion:
            self._unhashed = None
            self.result = Sweep(self._request, frozenset(self._known_keys))
        return PAUSE
