"""Everything that a run consists of, for those who tell the story and those who show it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.demo.ledger import Ledger
from store.demo.limits import MAX_STORY_LINES

if TYPE_CHECKING:
    from store.demo.auditor import Auditor
    from store.demo.cluster import Cluster
    from store.demo.conversation import Conversation
    from store.demo.network import Network
    from store.demo.people import People
    from store.demo.tasks import Tasks
    from store.demo.watch import Session, Watch


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened, ``at_s`` seconds after the beginning."""

    at_s: float
    text: str
    chapter: bool = False


@dataclass(frozen=True, slots=True)
class Incident:
    """What a node lacked when a fault was over, and how it came back.

    ``ways`` counts, by source, what the node stored from then until it had everything, messages
    that were new meanwhile included. ``whole`` is False when something did not come in time.
    """

    node: str
    what: str
    lacked: int
    ways: Counter[str]
    seconds: float
    whole: bool


@dataclass(slots=True)
class Scene:
    """One run. What is None is not there yet."""

    tasks: Tasks
    network: Network
    ledger: Ledger = field(default_factory=Ledger)
    cluster: Cluster | None = None
    auditor: Auditor | None = None
    watch: Watch | None = None
    people: People | None = None
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=MAX_STORY_LINES))
    conversation: Conversation | None = None
    sessions: int = 0
    last_session: Session | None = None
    incidents: list[Incident] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    """Nodes that a fault is about just now, and which: "cut off", "killed", "starting"."""
    listeners: list[Callable[[Line], None]] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began_s

    @property
    def chapter(self) -> str:
        """What goes on now."""
        return next((line.text for line in reversed(self.lines) if line.chapter), "")

    def tell(self, text: str, *, chapter: bool = False) -> None:
        """Something happened, or with ``chapter`` something new begins."""
        line = Line(self.elapsed_s, text, chapter)
        self.lines.append(line)
        for listener in self.listeners:
            listener(line)

    def met(self, session: Session) -> None:
        """A reconciliation has ended; those that moved nothing are only counted."""
        self.sessions += 1
        self.last_session = session
        if session.moved:
            self.tell(str(session))
