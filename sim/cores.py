"""The machines that a run is about: those of the project, unless a test puts others in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconcile.index import Index
from reconcile.session import Session
from reconcile.summaries.layered import LayeredView
from reconcile.summaries.summary import SummaryView
from store.domain.door import Door
from store.domain.policy_memory import PolicyMemory
from store.domain.resume import Resume
from store.domain.retention_clock import RetentionClock
from store.domain.schedule import Schedule
from store.domain.sessions import Sessions
from store.domain.transfer import Transfer

if TYPE_CHECKING:
    from sim.process import Process, Service


@dataclass(frozen=True, slots=True)
class Cores:
    """How each machine is made.

    ``services``: further parts of every process, such as another protocol between nodes.
    """

    session: Callable[..., Session] = Session
    transfer: Callable[..., Transfer] = Transfer
    sessions: Callable[..., Sessions] = Sessions
    memory: Callable[..., PolicyMemory] = PolicyMemory
    schedule: Callable[..., Schedule] = Schedule
    resume: Callable[..., Resume] = Resume
    door: Callable[..., Door] = Door
    index: Callable[..., Index] = Index
    layered: Callable[..., LayeredView] = LayeredView
    summary: Callable[..., SummaryView] = SummaryView
    retention_clock: Callable[..., RetentionClock] = RetentionClock
    services: tuple[Callable[[Process], Service], ...] = ()
