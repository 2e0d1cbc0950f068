"""Machines with one fault each, such as somebody might make: the simulator must find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from reconcile.ids import SyncId, SyncIds
from reconcile.index import Index, IndexView
from reconcile.session import Ended, Session
from reconcile.session import Input as SessionInput
from reconcile.summaries.layered import LayeredView
from reconcile.summaries.summary import SummaryView
from sim import intake
from store.domain.admission import Admission, Verdict
from store.domain.environment import Random
from store.sync.index import views, warm_up
from store.sync.resume import driver as resume
from store.sync.resume.core import Advance, PageStored, Resume
from store.sync.resume.core import Effect as ResumeEffect
from store.sync.resume.core import Input as ResumeInput
from store.sync.schedule import driver as schedule
from store.sync.schedule.core import Kind, Schedule, ScheduleConfig
from store.sync.session import exchange
from store.sync.session.registry import Session as Entry
from store.sync.session.registry import Sessions
from store.sync.transfer import driver as transfer
from store.sync.transfer.core import Transfer
from store.sync.transfer.events import Effect, Input, Persist, Persisted
from store.sync.transfer.policy_memory import PolicyMemory
from tests.sim.planting import Mutant, Plant, replace_with


class EagerTransfer(Transfer):
    """Says that a message is stored as soon as it has come."""

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        if isinstance(given, Persisted):
            return []
        effects = super().step(now_ns, given)
        for effect in list(effects):
            if isinstance(effect, Persist):
                effects += super().step(now_ns, Persisted(effect.token, [True] * len(effect.batch)))
        return effects


class GreedyTransfer(Transfer):
    """Reads on, however much waits to be stored."""

    @property
    def reading(self) -> bool:
        return True


class ForgetfulSession(Session):
    """Leaves out one of the messages that it should ask for."""

    def step(self, now_ns: int, given: SessionInput) -> list[Any]:
        return [
            Ended(replace(effect.result, to_receive=effect.result.to_receive[1:]))
            if isinstance(effect, Ended)
            else effect
            for effect in super().step(now_ns, given)
        ]


class InventiveAdmission(Admission):
    """Changes a byte of what it lets in."""

    def admit(self, messages: Sequence[bytes]) -> None:
        super().admit(messages)
        payloads = self.admitted.batch.payloads
        if payloads and payloads[0]:
            payloads[0] = bytes([payloads[0][0] ^ 1]) + payloads[0][1:]


class HonouringAdmission(Admission):
    """Calls a message accepted that it has refused."""

    def admit(self, messages: Sequence[bytes]) -> None:
        super().admit(messages)
        self.admitted.verdicts = [
            Verdict.DUPLICATE if verdict is Verdict.REJECTED else verdict
            for verdict in self.admitted.verdicts
        ]


class EmptyIndex(Index):
    """Takes a warm-up for done that has read nothing."""

    def insert(self, ids: SyncIds) -> int:
        started, self._started = self._started, True
        return super().insert(ids if started else ids[:0])

    _started = False


class LossyIndex(Index):
    """Leaves out what does not come behind all that is there."""

    def insert(self, ids: SyncIds) -> int:
        if len(self) and len(ids):
            rows = self.view().rows
            last = rows.between(len(rows) - 1, len(rows)).at(0)
            ids = SyncIds.of(each for each in ids if each > last)
        return super().insert(ids)


class ShiftedView(LayeredView):
    """Has the index answer for a second before its floor."""

    def __init__(self, hot: IndexView, floor: SyncId, cold: SummaryView) -> None:
        super().__init__(hot, (max(0, floor[0] - 10**9), floor[1]), cold)


class LaxSessions(Sessions):
    """Lets a peer have several sessions at a time."""

    def _of_peer(self, node_id: str, store_id: str) -> list[Entry]:  # noqa: ARG002 - as overridden
        return []


class LastingMemory(PolicyMemory):
    """Never forgets a refusal."""

    def until_ns(self, now_ns: int, timestamp_ns: int, label: str) -> int:  # noqa: ARG002 - as overridden
        return 2**62


class HastyResume(Resume):
    """Takes the whole gap for filled when a page has come."""

    def step(self, now_ns: int, given: ResumeInput) -> list[ResumeEffect]:
        effects = super().step(now_ns, given)
        if isinstance(given, PageStored) and effects:
            return [Advance(self.progress.time_end_ns)]
        return effects


class NarrowSchedule(Schedule):
    """Forgets about the wide sessions."""

    def __init__(self, config: ScheduleConfig, rng: Random) -> None:
        super().__init__(config, rng)
        self._due = [due for due in self._due if due.kind is not Kind.WIDE]


def _admissions(admission: type[Admission]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        for module in (intake, transfer, resume):
            patch.setattr(module, "Admission", admission)

    return plant


CORES = {
    "acknowledges too early": Mutant(
        replace_with(exchange, "Transfer", EagerTransfer), "acknowledged .* does not hold"
    ),
    "takes more than it has room for": Mutant(
        replace_with(exchange, "Transfer", GreedyTransfer), "too much waits"
    ),
    "drops a difference": Mutant(
        replace_with(exchange, "Machine", ForgetfulSession), "are missing"
    ),
    "invents a message": Mutant(_admissions(InventiveAdmission), "nobody published so"),
    "accepts and does not store": Mutant(
        _admissions(HonouringAdmission), "acknowledged .* does not hold"
    ),
    "starts with an empty index": Mutant(
        replace_with(warm_up, "Index", EmptyIndex), "lacks .* that are durable"
    ),
    "loses late messages": Mutant(
        replace_with(warm_up, "Index", LossyIndex), "lacks .* that are durable"
    ),
    "misplaces the floor": Mutant(
        replace_with(views, "LayeredView", ShiftedView), "are missing|do not become equal"
    ),
    "has two sessions with a peer": Mutant(
        replace_with(exchange, "Sessions", LaxSessions), "two sessions with one"
    ),
    "never forgives": Mutant(
        replace_with(exchange, "PolicyMemory", LastingMemory),
        "time has come|do not become equal",
        30,
    ),
    "leaves a gap": Mutant(replace_with(resume, "Resume", HastyResume), "has passed over"),
    "never looks back": Mutant(
        replace_with(schedule, "Schedule", NarrowSchedule), "do not become equal", 1
    ),
}
