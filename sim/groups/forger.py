"""Somebody who publishes something else under genuine IDs, and what must hold of that.

A forged message reaches everybody who the genuine one reaches, and some earlier: it leaves at the
same moment, over a network that loses and delays; and once more later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sim.dice import happens
from sim.limits import NS_PER_MS, NS_PER_S
from storenode.sds.aio.transport import Fetched
from storenode.sds.codec import SdsMessage, encode_message

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

_NAME: Final = "mallory"
_LATER_S: Final = 10
_MOST_OFF_MS: Final = 2_000
"""How far the clock of a forged message may be from the genuine one's."""


class Forgeries:
    """What was forged: (message ID, content) -> message."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, bytes], SdsMessage] = {}

    def add(self, message: SdsMessage) -> None:
        """Something is forged."""
        self._made[message.message_id, message.content or b""] = message

    def find(self, message_id: str, content: bytes | None) -> SdsMessage | None:
        """The forged message with this content; None for a genuine one."""
        return self._made.get((message_id, content or b""))

    def among(self, entries: Iterable[tuple[str, bytes]]) -> set[str]:
        """The IDs under which something forged is held."""
        return {message_id for message_id, content in entries if self.find(message_id, content)}


class Forger:
    """Forges a share of all messages, once at the moment when they leave and once later."""

    def __init__(self, world: GroupWorld) -> None:
        self._world = world
        self._seen: set[str] = set()

    def saw(self, message: Fetched) -> None:
        """A message leaves its sender."""
        world = self._world
        genuine = world.judge.read(message.payload)
        known = genuine.message_id in self._seen
        if known or not genuine.content or not message.hint:
            return
        self._seen.add(genuine.message_id)
        if world.judge.forgeries.find(genuine.message_id, genuine.content) is None and happens(
            world.dice, world.faults_now.forged
        ):
            self._publish(genuine)
            later_ns = int(world.dice.uniform(0, _LATER_S) * NS_PER_S)
            world.timeline.after(later_ns, lambda: self._publish(genuine))

    def _publish(self, genuine: SdsMessage) -> None:
        world, dice = self._world, self._world.dice
        off_ms = int(dice.uniform(-_MOST_OFF_MS, _MOST_OFF_MS))
        false = replace(
            genuine,
            content=b"forged %d" % world.next_number(),
            sender_id=dice.choice((genuine.sender_id, _NAME)),
            lamport=(genuine.lamport or 0) + dice.choice((0, off_ms)),
            history=dice.choice((genuine.history, genuine.history[:1], ())),
            bloom_filter=None,
            repair_request=(),
        )
        world.mark("a message was forged")
        world.judge.forgeries.add(false)
        now_ns = world.timeline.now_ns - dice.choice((0, 1, 500)) * NS_PER_MS
        world.spread(_NAME, encode_message(false), now_ns)
