"""What must hold of gossip, whatever happens, beyond what `sim.judge` demands.

1. What a node announces, as an inventory or a leaf, its store holds.
2. A store that is honest has confirmed only what it holds; nobody confirms its own messages.
3. A peer that lies counts once in the life of a node, in however many names it comes.
4. An event is read only with as many confirmations as every event needs. (A node may not know yet
   that a publisher wants more; the database does.)
5. No honest node cuts another one off.
6. In the end nothing is unread that enough neighbours hold, and nothing waits for what is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sim.judge import Violation
from sim.process import Process
from store.gossip.events import (
    Confirm,
    CutOff,
    Expire,
    FrameOut,
    Inventory,
    Read,
    SyncLeaves,
    Waiting,
)

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

LIAR: Final = "liar-"
"""The names of liars, and of their stores, begin so; the liar's number follows."""


class GossipJudge:
    """Looks on, and raises `Violation`."""

    def __init__(self, world: GossipWorld) -> None:
        self._world = world
        self._voices: dict[tuple[Process, bytes, str], str] = {}

    def sends(self, process: Process, frame: FrameOut) -> None:
        """A node sends a frame (rule 1)."""
        if isinstance(frame, Inventory | SyncLeaves):
            process.judge.acknowledge(process.database, frame.ids)

    def wrote(
        self,
        process: Process,
        effects: Sequence[Confirm | Read | Expire | Waiting],
    ) -> None:
        """A node has written something about unread events (rules 2, 3 and 4)."""
        for effect in effects:
            if isinstance(effect, Confirm):
                for digest in effect.ids:
                    self._confirmed(process, effect.store_id, digest)
                    self._count_liars(process, effect.store_id, digest)

    def read_early(self, store_id: str, digest: bytes, stores: int) -> None:
        """An event is called read with fewer confirmations than it needs (rule 4)."""
        needed = self._world.gossip.config.max_confirms
        if stores < needed:
            raise Violation(
                f"{store_id} takes {digest.hex()[:12]} for read with {stores} of {needed}"
            )

    def cut_off(self, process: Process, effect: CutOff) -> None:
        """A node cuts a peer off (rule 5)."""
        if effect.fault and not effect.peer.startswith(LIAR):
            process.judge.accused(process.name, f"{effect.peer} is cut off: {effect.reason}")

    def _confirmed(self, process: Process, store_id: str, digest: bytes) -> None:
        if store_id.startswith(LIAR):
            return
        if store_id == process.database.store_id:
            raise Violation(f"{store_id} confirms its own message")
        database = self._world.store(store_id)
        if database is None:
            raise Violation(
                f"{process.name} counts a confirmation of {store_id}, which is no store"
            )
        process.judge.acknowledge(database, [digest])

    def _count_liars(self, process: Process, store_id: str, digest: bytes) -> None:
        if store_id.startswith(LIAR):
            voice = process, digest, store_id.split("/", maxsplit=1)[0]
            before = self._voices.setdefault(voice, store_id)
            if before != store_id:
                raise Violation(f"{before} has confirmed {digest.hex()[:12]} as {store_id} too")

    # The end

    def unsettled(self) -> str:
        """What is left to be done for unread and waiting events (rule 6); empty if nothing is."""
        for records in self._world.records.values():
            neighbours = self._world.neighbours(records.database)
            for digest, row in records.rows.items():
                holding = sum(digest in database.held for database in neighbours)
                if row.needed <= holding and digest in records.database.held:
                    return f"{records.database.store_id} has {digest.hex()[:12]} unread"
            for event, missing in records.waiting.items():
                if any(parent in records.database.held for parent in missing):
                    return f"{records.database.store_id} has {event.hex()[:12]} waiting"
        return ""
