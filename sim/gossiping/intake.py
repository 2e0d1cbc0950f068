"""What a node with gossip takes from clients: some want confirmations."""

from __future__ import annotations

from sim.gossiping.driver import Gossiping
from sim.intake import Intake
from sim.tasks import Steps
from store.messages.record import RecordBatch


class GossipIntake(Intake):
    """As `Intake`, and tells the gossip what clients publish."""

    def __init__(self, gossiping: Gossiping) -> None:
        super().__init__(gossiping.process)
        self._gossiping = gossiping

    def store(self, batch: RecordBatch) -> Steps[None]:
        """Make what was accepted durable; its publisher may want confirmations.

        Raises:
            Unavailable: nobody knows whether it is durable.
        """
        gossiping = self._gossiping
        ids = list(batch.hashes)
        min_confirms = gossiping.process.dice.choice(gossiping.world.gossip.min_confirms)
        gossiping.publishing(ids, min_confirms)
        yield from super().store(batch)
        gossiping.published(ids, min_confirms)
