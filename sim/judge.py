"""The judge of a run, with the rules that hold whatever happens.

1. Nothing is invented: what any store commits is what a client made, byte for byte. Of two messages
   with one hash a store keeps the first, and a node reports no other one as stored.
2. Nothing acknowledged is lost: after a node reported "stored" to a client or to a peer, the store
holds the message until its horizon passes it.
3. A view shows everything that was durable when it was asked for, and nothing that never was.
4. Two sessions that reconciled with each other end with the exact difference of their two views;
   with a part of it where one says that it was too much, and without forged messages where they
   have compared by XOR.
5. After a session that calls itself in sync, both stores hold what either showed, with the same
   contents, but for as many as it says that policy refuses.
6. No honest node accuses another of a broken protocol.
7. A resume that says that it has come up to a time has stored everything up to then.
8. A message that was refused as too new is not refused any more when its time has come.
9. After a stream has failed, its user ends soon, without waiting for a silence.
10. No node waits longer for a frame than the silence that it allows.
11. A lookup asks for nothing that the store held, accounts for everything that it was asked for,
   calls nothing found that is not held, and finds what an honest peer held all the time.
12. Where equality is concluded by lattice sums, both sides say so, from the same time on.
13. A session that states that another store is equal over a span names the count and the XOR of
   what either view showed there, and both stores hold all of it.
14. Such a statement is as of a time at which neither side had read what it holds.
15. Where an answer reports that stores are equal over a span, this store shows there what the
   sessions in question found in either view, and nothing else.
16. An answer that calls itself complete has all of that, whatever was stored, dropped or lost while
   it was read.

No rule asks for messages that a database has lost together with their commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from reconcile.ids import SyncId
from reconcile.session import Result, Role
from sim.limits import NS_PER_S
from sim.messages import Message, twin_of
from store.domain.coverage import Statement
from store.domain.ports import HistoryEntry
from store.domain.view import Span
from store.messages.conflicts import is_other_content
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from store.sync.fetch import FetchDone
from storenode.message.limits import HASH_BYTES

if TYPE_CHECKING:
    from sim.database import Database


class ViolationError(AssertionError):
    """A rule is broken."""


@dataclass(frozen=True, slots=True)
class Side:
    """A side of a reconciliation: the content of its view, and the start of its comparison.

    ``asked_ns``: its node's clock before the view was opened.
    """

    database: Database
    shown: Sequence[SyncId]
    horizon: SyncId
    asked_ns: int


@dataclass(slots=True)
class _Meeting:
    sides: dict[Role, Side] = field(default_factory=dict)
    results: dict[Role, Result] = field(default_factory=dict)
    summed_from: dict[Role, int | None] = field(default_factory=dict)

    def compares_by_xor(self, each: SyncId) -> bool:
        """Return True if an ID was compared by XOR only."""
        starts = self.summed_from.values()
        return not starts or any(start is None or each[0] < start for start in starts)


@dataclass(frozen=True, slots=True)
class _Said:
    """The statements of a session, and the content of both views; None: unknown."""

    statements: Sequence[Statement]
    shown: Sequence[SyncId] | None


class Judge:
    """A judge that fails the run if a rule is broken, even where a driver catches `ViolationError`.

    ``fail_run`` ends the run at once with an error.

    Attributes:
        made: all messages that clients made, by hash; ``twins``: others that have their hashes.
        acknowledged: hash -> the stores that said that they hold it.
        lost: what some database has lost.
        lies: how often a node has lied about what it holds.
        forged: messages of sets that have one XOR.
    """

    def __init__(self, fail_run: Callable[[ViolationError], None]) -> None:
        self._fail_run = fail_run
        self.made: dict[bytes, Message] = {}
        self.twins: dict[bytes, Message] = {}
        self.acknowledged: dict[bytes, list[Database]] = {}
        self.lost: set[bytes] = set()
        self.lies: Counter[str] = Counter()
        self.forged: frozenset[bytes] = frozenset()
        self.compared = 0
        self._meetings: dict[str, _Meeting] = {}
        self._tries: dict[tuple[object, str], deque[int]] = {}
        self._said: dict[tuple[str, str], list[_Said]] = {}

    def fail(self, sentence: str, cause: BaseException | None = None) -> NoReturn:
        """Fail the run, because of ``cause`` if that is known.

        Raises:
            ViolationError: always.
        """
        violation = ViolationError(sentence)
        self._fail_run(violation)
        raise violation from cause

    def demand(self, holds: bool, sentence: str) -> None:
        """Fail the run unless a rule holds."""
        if not holds:
            self.fail(sentence)

    def tried(self, key: object, what: str, now_ns: int, limit: tuple[int, int]) -> None:
        """Check a rate; ``limit``: the times that are allowed, and in how many seconds."""
        most, window_s = limit
        times = self._tries.setdefault((key, what), deque())
        times.append(now_ns)
        while times[0] <= now_ns - window_s * NS_PER_S:
            times.popleft()
        self.demand(
            len(times) <= most, f"{what} {len(times)} times in {window_s} s, without a pause"
        )

    # Messages

    def make(self, message: Message) -> None:
        """Note a message of a client, unless it is one's twin."""
        self.made.setdefault(message.digest, message)

    def twin(self, message: Message) -> Message:
        """Return the other message that has the hash of one of a client."""
        return self.twins.setdefault(message.digest, twin_of(message))

    def committed(self, database: Database, batch: RecordBatch) -> None:
        """Check a batch that is about to be durable (rule 1)."""
        batch.check()
        for index, digest in enumerate(batch.hashes):
            known = (self.made.get(digest), self.twins.get(digest))
            encoded = transferred(batch.frame(index))
            message = next((each for each in known if each and each.encoded == encoded), None)
            self.demand(
                message is not None
                and not message.ephemeral
                and message.timestamp_ns == batch.timestamps[index],
                f"{database.store_id} stores {digest.hex()[:12]}, which was never published so",
            )

    def acknowledge(
        self, database: Database, digests: Sequence[bytes], contents: Sequence[bytes] = ()
    ) -> None:
        """Note that a node reports messages as stored, with their content digests (rules 1, 2)."""
        for digest, content in zip(digests, contents, strict=bool(contents)):
            stored = database.digests[digest] if digest in database.stored else b""
            is_other = is_other_content(stored, content)
            self.demand(not is_other, f"{database.store_id} calls other content stored")
        for digest in digests:
            self._demand_stored(database, digest)
            stores = self.acknowledged.setdefault(digest, [])
            if database not in stores:
                stores.append(database)

    def check(self) -> None:
        """Verify that all that was acknowledged is still held (rule 2).

        Raises:
            ViolationError: something is not.
        """
        for digest, stores in self.acknowledged.items():
            for database in stores:
                self._demand_stored(database, digest)

    def _demand_stored(self, database: Database, digest: bytes) -> None:
        if not database.had(digest):
            self.fail(f"{database.store_id} acknowledged {digest.hex()[:12]} and does not hold it")

    # Reconciliation

    def opened(
        self, shown: Sequence[SyncId], durable: Sequence[SyncId], database: Database, floor: SyncId
    ) -> None:
        """Check a view that was requested when ``durable`` was stored (rule 3)."""
        seen = set(shown)
        missing = [each for each in durable if each >= floor and each not in seen]
        self.demand(
            not [
                each
                for each in missing
                if each[0] >= database.horizon_ns and each[1] in database.stored
            ],
            f"a view of {database.store_id} lacks {len(missing)} messages that are durable",
        )
        strange = [each for each in shown if each[1] not in self.made]
        self.demand(not strange, f"a view of {database.store_id} shows what was never stored")

    def meet(self, session_id: str, role: Role, side: Side) -> None:
        """Note a side of a session by the name of the session."""
        self._meetings.setdefault(session_id, _Meeting()).sides[role] = side

    def found(
        self, session_id: str, role: Role, result: Result, summed_from_ns: int | None
    ) -> None:
        """Check the result of a side, which uses lattice sums from some time on (rules 4, 12)."""
        meeting = self._meetings.get(session_id)
        if meeting is None:
            return
        meeting.results[role], meeting.summed_from[role] = result, summed_from_ns
        if len(meeting.results) < 2 or len(meeting.sides) < 2:
            return
        self.compared += 1
        self.demand(
            len(set(meeting.summed_from.values())) == 1,
            f"the sides of session {session_id[:8]} conclude by sums from other times: "
            f"{meeting.summed_from}",
        )
        whole = not any(each.truncated for each in meeting.results.values())
        window = meeting.results[Role.INITIATOR].window
        mine, theirs = self._views(meeting, window)
        expected = {Role.INITIATOR: (mine, theirs), Role.RESPONDER: (theirs, mine)}
        for side, (own, other) in expected.items():
            outcome = meeting.results[side]
            for what, ids, truth in (
                ("to send", outcome.to_send, own - other),
                ("to receive", outcome.to_receive, other - own),
            ):
                given = set(ids.pairs())
                missed = self._not_hidden(meeting, truth - given)
                # A sum that was forged may also be taken for that of one message.
                made_up = self._not_hidden(meeting, given - truth)
                exact = not made_up and not (whole and missed)
                self.demand(
                    exact,
                    f"the {side.value} of session {session_id[:8]} found {len(given)} IDs {what}, "
                    f"of which {len(made_up)} are none, and {len(missed)} are missing",
                )

    def in_sync(self, session_id: str, refused: int) -> None:
        """Check a session that is reported in sync but for ``refused`` messages (rule 5)."""
        meeting = self._meetings.get(session_id)
        if meeting is None or len(meeting.results) < 2:
            return
        mine, theirs = self._views(meeting, meeting.results[Role.INITIATOR].window)
        sides = list(meeting.sides.values())
        horizon_ns = max(side.database.horizon_ns for side in sides)
        for side in sides:
            lost = [
                each
                for each in self._not_hidden(meeting, mine ^ theirs)
                if each[0] >= horizon_ns
                and each[1] not in side.database.stored
                and each[1] not in self.lost
            ]
            self.demand(
                len(lost) <= refused,
                f"session {session_id[:8]} calls itself in sync, and {side.database.store_id} "
                f"lacks {len(lost)} messages",
            )
        unlike = self._unlike(meeting, mine | theirs)
        self.demand(not unlike, f"session {session_id[:8]} calls {len(unlike)} conflicts in sync")

    def stated(
        self, session_id: str, by: Database, store_id: str, statements: Sequence[Statement]
    ) -> None:
        """Check the statements of an initiator at its end (rules 13 and 14)."""
        said = self._said.setdefault((by.store_id, store_id), [])
        meeting = self._meetings.get(session_id)
        if meeting is None or len(meeting.results) < 2:
            said.append(_Said(statements, None))
            return
        mine, theirs = self._views(meeting, meeting.results[Role.INITIATOR].window)
        either = sorted(mine | theirs)
        said.append(_Said(statements, either))
        asked_ns = meeting.sides[Role.INITIATOR].asked_ns
        for each in statements:
            self.demand(each.compared_ns <= asked_ns, f"session {session_id[:8]} is dated too late")
            if not each.equal:
                continue
            within = _within(either, each.start_ns, each.end_ns)
            if len(self._not_hidden(meeting, set(within))) < len(within):
                continue
            sides = [side.database for side in meeting.sides.values()]
            lacking = [one.store_id for one in sides if not all(one.had(at[1]) for at in within)]
            unlike = self._unlike(meeting, within)
            self.demand(
                named(within) == (each.count, each.fingerprint) and not lacking and not unlike,
                f"session {session_id[:8]} states equality of {len(within)} messages as of "
                f"{each.count}, and {lacking or 'nobody'} lacks some, and {len(unlike)} differ",
            )

    def covered(
        self,
        by: Database,
        store_ids: Sequence[str],
        span: Span,
        compared_ns: int,
        shown: Sequence[SyncId],
        *,
        whole: bool,
    ) -> None:
        """Check an answer that ``by`` is equal to other stores.

        ``whole``: while all of ``shown`` was held (rule 15); else of ``shown``, as it was got, that
        it is complete (rule 16).
        """
        for store_id in store_ids:
            good: list[Span] = []
            for said in self._said.get((by.store_id, store_id), ()):
                for each in said.statements:
                    part = max(each.start_ns, span[0]), min(each.end_ns, span[1])
                    as_late = each.equal and each.compared_ns >= compared_ns
                    if as_late and part[0] < part[1] and self._borne_out(said, part, shown, whole):
                        good.append(part)
            reached_ns = span[0]
            for start_ns, end_ns in sorted(good):
                if start_ns <= reached_ns:
                    reached_ns = max(reached_ns, end_ns)
            self.demand(
                reached_ns >= span[1],
                f"{by.store_id} says that {store_id} is equal over {span} as of {compared_ns}, "
                f"which is not so from {reached_ns} on",
            )

    def _borne_out(self, said: _Said, part: Span, shown: Sequence[SyncId], whole: bool) -> bool:
        """Return True if the genuine messages of a session are shown; if whole, no others."""
        if said.shown is None:
            return True
        found = {at for at in _within(said.shown, *part) if at[1] not in self.forged}
        here = {at for at in _within(shown, *part) if at[1] not in self.forged}
        return found == here if whole else found <= here

    def _unlike(self, meeting: _Meeting, ids: Iterable[SyncId]) -> list[SyncId]:
        """Return the IDs under which both stores of a meeting hold other contents."""
        one, other = (side.database for side in meeting.sides.values())
        both = (one.stored.keys() & other.stored.keys()) - self.lost
        unlike = {each for each in both if one.digests[each] != other.digests[each]}
        return [each for each in ids if each[1] in unlike and not meeting.compares_by_xor(each)]

    def _not_hidden(self, meeting: _Meeting, ids: set[SyncId]) -> set[SyncId]:
        """Return the IDs that the comparison of a meeting can see."""
        return {
            each for each in ids if each[1] not in self.forged or not meeting.compares_by_xor(each)
        }

    @staticmethod
    def _views(meeting: _Meeting, window: tuple[SyncId, SyncId]) -> tuple[set[SyncId], set[SyncId]]:
        initiator, responder = meeting.sides[Role.INITIATOR], meeting.sides[Role.RESPONDER]
        lower = max(window[0], initiator.horizon, responder.horizon)
        mine, theirs = (
            {each for each in side.shown if lower <= each < window[1]}
            for side in (initiator, responder)
        )
        return mine, theirs

    def remembered(self, by: str, now_ns: int, digests: Iterable[bytes]) -> None:
        """Check the messages that a node remembers as too new, by its clock (rule 8)."""
        due = sum(self.made[digest].timestamp_ns <= now_ns for digest in digests)
        self.demand(not due, f"{by} refuses {due} messages as too new although their time has come")

    # Lookups

    def fetched(
        self,
        database: Database,
        entries: Sequence[HistoryEntry],
        done: FetchDone,
        *,
        had: set[HistoryEntry],
        taken: set[HistoryEntry],
    ) -> None:
        """Check a lookup that has ended (rule 11).

        The peer ``had`` some entries all the time, and the store has ``taken`` some.
        """
        by = database.store_id
        known = Counter((*done.already_stored, *done.found, *done.missing, *done.refused))
        whole = known == Counter(entries) if not done.error else known <= Counter(entries)
        self.demand(whole, f"a look-up of {by} does not account for what it was asked for")
        passed_over = had.intersection(done.missing)
        self.demand(not passed_over, f"a look-up of {by} misses {len(passed_over)} SDS messages")
        pretended = {*done.already_stored, *done.found} - taken
        self.demand(not pretended, f"a look-up of {by} calls found what its store does not hold")

    # Resume

    def advanced(
        self, database: Database, expected: Sequence[SyncId], reached_ns: int, refused: set[bytes]
    ) -> None:
        """Check a resume that reports all messages up to a time as stored (rule 7)."""
        lost = [
            each
            for each in expected
            if database.horizon_ns <= each[0] < reached_ns
            and each[1] not in database.stored
            and each[1] not in refused
            and each[1] not in self.lost
        ]
        self.demand(
            not lost, f"the resume of {database.store_id} has passed over {len(lost)} messages"
        )


def named(ids: Sequence[SyncId]) -> tuple[int, bytes]:
    """Return the count and the XOR of some IDs."""
    sum_of_all = 0
    for _, digest in ids:
        sum_of_all ^= int.from_bytes(digest)
    return len(ids), sum_of_all.to_bytes(HASH_BYTES)


def _within(ids: Sequence[SyncId], start_ns: int, end_ns: int) -> Sequence[SyncId]:
    first = bisect_left(ids, (start_ns, b""))
    return ids[first : bisect_left(ids, (end_ns, b""))]
