"""The machines that a run is about: those of the project, unless a test puts others in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconcile.index import Index
from reconcile.layered import LayeredView
from reconcile.session import Session
from reconcile.summary import SummaryView
from store.domain.door import Door
from store.domain.retention_clock import RetentionClock
from store.sync.resume.core import Resume
from store.sync.schedule.core import Schedule
from store.sync.session.registry import Sessions
from store.sync.transfer.core import Transfer
from store.sync.transfer.policy_memory import PolicyMemory

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
