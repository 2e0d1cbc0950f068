"""The machines that a run is about: those of the project, unless a test puts others in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconcile.index import Index
from reconcile.layered import LayeredView
from reconcile.summary import SummaryView
from store.domain.door import Door
from store.domain.retention_clock import RetentionClock

if TYPE_CHECKING:
    from sim.process import Process, Service


@dataclass(frozen=True, slots=True)
class Cores:
    """How each machine is made.

    ``services``: further parts of every process, such as another protocol between nodes.
    """

    door: Callable[..., Door] = Door
    index: Callable[..., Index] = Index
    layered: Callable[..., LayeredView] = LayeredView
    summary: Callable[..., SummaryView] = SummaryView
    retention_clock: Callable[..., RetentionClock] = RetentionClock
    services: tuple[Callable[[Process], Service], ...] = ()
