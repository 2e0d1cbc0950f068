"""Faults in nodes that reconcile, in a core or a driver: the simulator must find each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from reconcile.index import Index
from reconcile.session import ReconcileSession as Session
from reconcile.summaries.summary import SummaryView
from sim import node
from store.domain import coverage
from store.domain.admission import Admission, Verdict
from store.domain.ports import Source
from store.domain.retention import PrunePlan
from store.messages.conflicts import StoreResult
from store.sync import fetch
from store.sync.fetch import Fetcher, FetchWork, Resumer
from store.sync.index import hot
from store.sync.index.hot import HotIndex
from store.sync.schedule import Synchronizer
from store.sync.session import exchange, reconciliation
from store.sync.session.exchange import Exchange
from store.sync.session.reconciliation import Reconciliation
from store.sync.session.registry import Sessions
from store.sync.session.report import SessionReport
from store.sync.session.sum_search import Search
from store.sync.transfer.halves import Accepted, Receiving
from store.sync.transfer.policy_memory import PolicyMemory
from store.sync.transfer.transfer import Transfer
from tests.sim.mutant import Mutant, asyncio_with, edit, replace_with, sleep_not, together

in_transfer = partial(edit, Transfer)
in_exchange = partial(edit, Exchange)
in_statements = partial(edit, exchange)
in_coverage = partial(edit, coverage.KnownCoverage)
in_schedule = partial(edit, Synchronizer)
in_resume = partial(edit, Resumer)
in_index = partial(edit, HotIndex)
in_lookup = partial(edit, Fetcher)
in_fetches = partial(edit, FetchWork)

UNEQUAL = "do not become equal"
LACKS = "lacks .* that are durable"
LOST = "acknowledged .* does not hold"
LEFT = "are left"


async def _report_at_once(self: Transfer, accepted: Accepted) -> None:
    self._receiving.persisted(accepted, StoreResult([True] * len(accepted.batch)))
    self._go_on()
    await self._work.writer.store(accepted.batch, Source.TRANSFER)


def _admit_and_change(self: Admission, messages: Sequence[bytes]) -> None:
    _ADMIT(self, messages)
    payloads = self.admitted.batch.payloads
    if payloads and payloads[0]:
        payloads[0] = bytes([payloads[0][0] ^ 1]) + payloads[0][1:]


def _admit_and_honour(self: Admission, messages: Sequence[bytes]) -> None:
    _ADMIT(self, messages)
    self.admitted.verdicts = [
        Verdict.DUPLICATE if verdict is Verdict.REJECTED else verdict
        for verdict in self.admitted.verdicts
    ]


_ADMIT = Admission.admit


def all_new(batch: str) -> str:
    """Return an expression for the result of a batch in which every message was new."""
    module = "__import__('store.messages.conflicts').messages.conflicts"
    return f"{module}.StoreResult([True] * len({batch}))"


CORES = {
    "acknowledges too early": Mutant(
        replace_with(Transfer, "_persist", _report_at_once), LOST, first_seed=1
    ),
    "takes more than it has room for": Mutant(
        replace_with(Receiving, "reading", property(lambda _: True)), "too much waits", first_seed=2
    ),
    "drops a difference": Mutant(
        edit(Session, "_end", "to_receive=self._to_receive,", "to_receive=self._to_receive[1:],"),
        "are missing",
        first_seed=2,
    ),
    "invents a message": Mutant(
        replace_with(Admission, "admit", _admit_and_change), "nobody published so"
    ),
    "accepts and does not store": Mutant(
        replace_with(Admission, "admit", _admit_and_honour), LOST, first_seed=1, size=3
    ),
    "starts with an empty index": Mutant(
        edit(hot, "warm_up", "await asyncio.to_thread(index.insert, ids)", "pass"), LACKS
    ),
    "loses late messages": Mutant(
        edit(Index, "insert", "self._insert_among(ids)", "ids[:0]"), LACKS, first_seed=2
    ),
    "misplaces the floor": Mutant(
        edit(
            SummaryView,
            "cover_above",
            "self._floor, self._memory = floor, memory",
            "self._floor, self._memory = (max(0, floor[0] - 10**9), floor[1]), memory",
        ),
        f"are missing|{UNEQUAL}",
        20,
    ),
    "has two sessions with a peer": Mutant(
        replace_with(Sessions, "_of_peer", lambda *_: []), "two sessions with one", first_seed=6
    ),
    "never forgives": Mutant(
        replace_with(PolicyMemory, "until_ns", lambda *_: 2**62),
        f"time has come|{UNEQUAL}",
        first_seed=73,
    ),
    "leaves a gap": Mutant(
        in_resume("_take", "_last_ns, page.reached_ns", "_last_ns, progress.time_end_ns"),
        "has passed over",
        first_seed=6,
    ),
    "never looks back": Mutant(
        edit(
            Synchronizer,
            "__init__",
            "self._due.append(_Due(is_wide=True, interval_ns=config.wide_interval_ns))",
            "pass",
        ),
        UNEQUAL,
        6,
    ),
}

TRANSFERS = {
    "says stored without storing": Mutant(
        in_transfer("_persist", "await patiently(store)", all_new("accepted.batch")), LOST, 1
    ),
    "answers before it stores": Mutant(
        in_transfer(
            "_persist",
            "self._take(self._receiving.persisted, accepted, await patiently(store))",
            "self._spawn(store())\n    "
            f"self._take(self._receiving.persisted, accepted, {all_new('accepted.batch')})",
        ),
        LOST,
        size=3,
    ),
    "never reads again": Mutant(
        in_transfer("_go_on", "if self._receiving.reading:", "if not self._answered:"),
        f"{UNEQUAL}|circles",
    ),
    "reads although it must not": Mutant(
        in_transfer("_go_on", "if self._receiving.reading:", "if True:"),
        "too much waits",
        first_seed=2,
    ),
    "never reports a broken stream": Mutant(
        in_transfer(
            "_read",
            "except PeerError as error:\n",
            "except PeerError as error:\n        await asyncio.Event().wait()\n",
        ),
        "after its stream has failed|names of sessions are kept",
        2,
    ),
    "leaves the tasks of a transfer": Mutant(
        in_transfer(
            "_stop",
            "for task in self._tasks:\n        task.cancel()\n"
            "    await asyncio.gather(*self._tasks, return_exceptions=True)\n",
            "",
            "del self._reader, self._ended",
            "pass",
        ),
        "tasks are left|stream has failed|step",
        first_seed=4,
    ),
    "goes on after the end": Mutant(
        in_transfer(
            "run",
            "await self._close()",
            "await self._close()\n            await asyncio.sleep(3600)",
        ),
        f"{UNEQUAL}|stream has failed|circles",
        size=3,
    ),
}

SESSIONS = {
    "never frees a session": Mutant(
        in_exchange("driving", "self.sessions.end(session)", "pass"), f"{LEFT}|{UNEQUAL}|refused", 1
    ),
    "frees a session on success only": Mutant(
        in_exchange("driving", "finally:", "else:"), f"{LEFT}|{UNEQUAL}", first_seed=3
    ),
    "lets a session wait for ever": Mutant(
        in_exchange("keep", "self.work.silence_s", "10**6"), "waits too long", first_seed=4
    ),
    "leaves the timer of a claimed session": Mutant(
        in_exchange("claim", "if session.timer is not None:", "if False:"),
        "that are over",
        first_seed=1,
        size=2,
    ),
    "forgets a session by half": Mutant(
        in_exchange("_forget", "self.sessions.end(session)", "pass"),
        f"nothing ends|waits too long|{LEFT}",
        24,
    ),
    "waits for a silent peer for ever": Mutant(
        together(
            *(
                edit(module, "in_time", "asyncio.timeout(limit_s)", "asyncio.timeout(None)")
                for module in (reconciliation, exchange)
            )
        ),
        "waited",
        first_seed=5,
    ),
    "takes every sum for its own": Mutant(
        edit(Search, "sum", "self._total.digest()", "bytes(32)"),
        "are missing",
        first_seed=2,
        size=3,
    ),
    "counts in its sums what its peer lacks": Mutant(
        edit(Search, "_common", "if first < end", "if first > end"),
        "accuses an honest peer",
        size=2,
    ),
    "takes what both list for its own alone": Mutant(
        edit(Search, "_settle", "only_own[both] = False", "only_own[both] = True"), "are none", 64
    ),
    "compares sums that begin at its own time": Mutant(
        edit(
            Reconciliation,
            "start",
            "max(each.compared_from for each in offers)",
            "offers[0].compared_from",
        ),
        "from other times|accuses",
        11,
    ),
    "leaves the transfer out": Mutant(
        edit(
            Exchange,
            "initiate",
            "if session.state is SessionState.TRANSFERRING:",
            "if False:",
        ),
        f"calls itself in sync|{UNEQUAL}|waits too long",
        first_seed=1,
        size=2,
    ),
}

_HOLDS = "self.sums.get(said.span) == (said.count, said.fingerprint)"

STATEMENTS = {
    "states equality whatever was transferred": Mutant(
        in_statements("statements_of", "resolved=resolved", "resolved=True"),
        "states equality",
        first_seed=1,
    ),
    "states counts without what came": Mutant(
        in_statements("measure", "=result.to_receive", "=result.to_receive[:0]"),
        "states equality",
        first_seed=1,
    ),
    "dates statements later than it read": Mutant(
        in_statements("measure", "report.opened_ns", "report.opened_ns + 10**9"),
        "dated too late",
    ),
    "never withdraws a statement": Mutant(
        in_coverage("_holds", _HOLDS, "True"), "is equal over", first_seed=1
    ),
    "withdraws no statement after a late message": Mutant(
        in_coverage("_holds", _HOLDS, "self.sums[said.span][0] >= said.count"),
        "is equal over",
        1,
    ),
    "keeps statements after commits were lost": Mutant(
        in_coverage("_holds", _HOLDS, "self.sums[said.span][0] <= said.count"),
        "is equal over",
        707,
    ),
}

OTHERS = {
    "misses its wake-up": Mutant(
        in_schedule("_wake_at", "if time_ns is not None:", "if False:"),
        f"{UNEQUAL}|nothing is left",
        first_seed=1,
    ),
    "wakes up without a pause": Mutant(
        in_schedule("_wake_at", "call_later(delay_s,", "call_later(0,"),
        "circles|too much is under way",
    ),
    "answers no operator": Mutant(
        in_schedule("_run", "not cause.done.done()", "False"), "circles|nothing is left", 31
    ),
    "never ends a session for the schedule": Mutant(
        in_schedule("_run", "peer.busy = False", "pass"), f"{UNEQUAL}|circles"
    ),
    "counts a page before it is stored": Mutant(
        in_fetches(
            "store",
            "await self.writer.store(admitted.batch, source)",
            f"{all_new('admitted.batch')} if source is Source.RESUME else "
            "await self.writer.store(admitted.batch, source)",
        ),
        "has passed over",
        first_seed=6,
    ),
    "hides the error of a resume": Mutant(
        in_resume(
            "_fetch",
            "return str(error)",
            "return ''",
        ),
        "has passed over",
        first_seed=6,
    ),
    "resumes without a pause": Mutant(
        replace_with(fetch, "asyncio", asyncio_with("sleep", sleep_not)), "circles", 10
    ),
    "leaves out of its index what it writes": Mutant(
        in_index("_ids_of", "found.append(ids)", "pass"), LACKS
    ),
    "passes over a commit that it could not read": Mutant(
        in_index(
            "_follow",
            "await asyncio.sleep(self._limits.backoff_s)",
            "self._place = self._waiting.popleft().place",
        ),
        LACKS,
        132,
    ),
    "prunes its index and leaves the floor": Mutant(
        in_index("_insert", "self._floor_ns = max(self._floor_ns, floor_ns)", "pass"),
        f"{LACKS}|{UNEQUAL}",
        first_seed=1,
    ),
    "does not notice that commits were lost": Mutant(
        in_index(
            "lost",
            "self._last_position, self._own.newest = 0, START\n    self._lost.set()\n"
            "    self._index = self._last_report_ns = None\n",
            "pass\n",
        ),
        f"{LACKS}|keeps what its database has lost",
        16,
    ),
    "opens a view of an index that is behind": Mutant(
        in_index(
            "_memory_at",
            "self._place[0] >= place[0])",
            "True)",
            "if self._index is None or self._place[0] < place[0]:",
            "if self._index is None:",
        ),
        LACKS,
        26,
    ),
    "forgets what came while it warmed up": Mutant(
        in_index("_warm", "self._woken.set()", "self._woken.set(), self._waiting.clear()"),
        LACKS,
        first_seed=17,
    ),
    "looks up messages and stores none": Mutant(
        in_fetches(
            "store",
            "await self.writer.store(admitted.batch, source)",
            "await self.writer.store(admitted.batch, source) if source is Source.RESUME else "
            f"{all_new('admitted.batch')}",
        ),
        "misses .* SDS messages",
    ),
    "takes one page of a look-up": Mutant(
        in_lookup(
            "fetch",
            "async for page in pages:",
            "async for page in pages:\n                if stored:\n                    break",
        ),
        "misses .* SDS messages",
        first_seed=6,
    ),
    "calls found what a peer lacks": Mutant(
        in_lookup(
            "fetch",
            "_without(wanted, left)",
            "_without(wanted, left if error else refused)",
            "() if error else _without(left, refused)",
            "()",
        ),
        "calls found",
    ),
    "hides the error of a look-up": Mutant(
        in_lookup("fetch", "() if error else _without(left", "_without(left", "error=error,\n", ""),
        "misses .* SDS messages",
        first_seed=4,
    ),
    "looks up what it holds": Mutant(
        in_lookup("_missing", "await self._sds.doubtful(wanted)", "entries, ()"),
        "SDS messages that it holds",
        size=2,
    ),
}

NODE_MUTANTS = CORES | TRANSFERS | SESSIONS | STATEMENTS | OTHERS

# Faults that show with the days

DAYS = 36

_ENDED = Exchange.ended


def _hoard(exchange: Exchange, report: SessionReport) -> None:
    """Keep every session for as long as the node runs."""
    _ENDED(exchange, report)
    exchange.__dict__.setdefault("hoard", []).append((report, [[] for _ in range(20)]))


def _drop_nothing(*_tables: object, **_given: object) -> PrunePlan:
    """Leave all partitions where they are."""
    return PrunePlan(())


YEAR_MUTANTS = {
    "keeps what it knew of each session": Mutant(
        replace_with(Exchange, "ended", _hoard), "memory of n0 .* grows", size=DAYS
    ),
    "drops no partition": Mutant(
        replace_with(node, "plan_prune", _drop_nothing),
        "(messages|commits) of .* grows",
        size=DAYS,
    ),
}
