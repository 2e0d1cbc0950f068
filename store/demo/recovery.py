"""Measures what a node lacks when a fault is over, and by which ways it comes back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from store.demo.scene import Incident

if TYPE_CHECKING:
    from store.demo.auditor import Auditor
    from store.demo.watch import Watch


class Recovery:
    """Make it just before the fault ends; what the node lacks then is what must come back."""

    def __init__(self, auditor: Auditor, watch: Watch, node: str, what: str) -> None:
        self.lacked = auditor.lacking(node)
        self._auditor = auditor
        self._watch = watch
        self._node = node
        self._what = what
        self._before = watch.sources[node].total
        self._began_s = time.monotonic()

    async def ended(self, patience_s: float) -> Incident:
        """Wait until all of it is there, or the time is up."""
        held = self._auditor.nodes[self._node].held
        whole = await self._auditor.until(lambda: self.lacked <= held, patience_s)
        seconds = time.monotonic() - self._began_s
        await self._watch.look()
        ways = self._watch.sources[self._node].total - self._before
        return Incident(self._node, self._what, len(self.lacked), ways, seconds, whole)
