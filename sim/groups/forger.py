"""A publisher of other contents under genuine IDs.

A forged message reaches everybody who the genuine one reaches, and some earlier: it leaves at the
same moment, over a network that loses and delays; and once more later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sim.limits import NS_PER_MS, NS_PER_S
from sim.network import Caller
from sim.rng import happens
from storenode.sds.aio.transport import Fetched
from storenode.sds.codec import SdsMessage, encode_message

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

_LATER_S: Final = 10
_MOST_OFF_MS: Final = 2_000
"""How far the clock of a forged message may be from the genuine one's."""


class Forger(Caller):
    """Forges a share of all messages, once at the moment when they leave and once later."""

    name = "mallory"

    def __init__(self, world: GroupWorld) -> None:
        self._world = world
        self._seen: set[str] = set()

    def saw(self, message: Fetched) -> None:
        """Note that a message leaves its sender."""
        world = self._world
        genuine = world.group_judge.read(message.payload)
        known = genuine.message_id in self._seen
        if known or not genuine.content or not message.hint:
            return
        self._seen.add(genuine.message_id)
        if not world.group_judge.forged_as(genuine.message_id, genuine.content) and happens(
            world.rng, world.faults_now.forged
        ):
            self._publish(genuine)
            later_ns = int(world.rng.uniform(0, _LATER_S) * NS_PER_S)
            world.timeline.after(later_ns, lambda: self._publish(genuine))

    def _publish(self, genuine: SdsMessage) -> None:
        world, rng = self._world, self._world.rng
        off_ms = int(rng.uniform(-_MOST_OFF_MS, _MOST_OFF_MS))
        false = replace(
            genuine,
            content=b"forged %d" % world.next_number(),
            sender_id=rng.choice((genuine.sender_id, self.name)),
            lamport=(genuine.lamport or 0) + rng.choice((0, off_ms)),
            history=rng.choice((genuine.history, genuine.history[:1], ())),
            bloom_filter=None,
            repair_request=(),
        )
        world.counts["a message was forged"] += 1
        world.group_judge.forged[false.message_id, false.content or b""] = false
        now_ns = world.timeline.now_ns - rng.choice((0, 1, 500)) * NS_PER_MS
        world.spread(self.name, encode_message(false), now_ns)
