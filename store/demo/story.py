"""The story: what happens to the nodes and the participants, in which order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.demo.auditor import Auditor
from store.demo.cluster import NODES, Cluster
from store.demo.conversation import LOST, READER, SCRIPT, Conversation
from store.demo.device import Device
from store.demo.limits import (
    BURST_CUT_OFF,
    BURST_OUTAGE,
    GAP_S,
    LINE_S,
    OUTAGE_S,
    PARTITION_S,
    READ_S,
    ROAM_AFTER,
    TALK_S,
)
from store.demo.people import (
    CAST,
    LEAVER,
    LISTENER,
    NEIGHBOUR,
    ROAMER,
    People,
    Person,
    ignore,
)
from store.demo.recovery import Recovery
from store.demo.scene import Scene
from store.demo.tap import Way
from store.demo.watch import Watch
from storenode.connection.channel import TlsIdentity
from storenode.sds.aio.node import StoreNode

CUT_OFF: Final = "n3"
KILLED: Final = "n2"
DEVICE: Final = "n1"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of a run.

    ``pace`` above 1 makes the phases shorter; ``patience_s`` bounds each wait for what was lost,
    and nothing is waited for beyond ``limit_s`` after the beginning. ``without`` names what is
    switched off: gossip, reconciliation, repair.
    """

    directory: Path
    pace: float
    patience_s: float
    limit_s: float
    without: Collection[str]


class Story:
    """Tells it once, a method for a chapter."""

    def __init__(self, scene: Scene, plan: Plan) -> None:
        self._scene = scene
        self._plan = plan
        self._cluster = Cluster(plan.directory, scene.network, plan.without)
        self._fault_s = 0.0

    async def tell(self) -> None:
        """From the start of the nodes until all should be equal.

        Raises:
            NodeFailed: a node did not start.
            NodeError: the device was refused.
        """
        await self._begin()
        await self._converse()
        await self._talk()
        await self._cut_off()
        await self._heal()
        await self._kill()
        await self._bring_back()
        await self._settle()

    async def _begin(self) -> None:
        scene, cluster = self._scene, self._cluster
        scene.tell("Three nodes start, each with a Postgres, and speak TLS", chapter=True)
        scene.cluster = cluster
        await cluster.start()
        for node in cluster.nodes.values():
            scene.tasks.start(node.watch())
        tls = cluster.tls
        wires = {name: await scene.network.wire(name) for name in NODES}
        addresses = {name: wire.address for name, wire in wires.items()}
        scene.auditor = self._auditor = Auditor(addresses, tls, scene.tasks)
        scene.watch = self._watch = Watch(cluster, scene.met)
        scene.tasks.start(self._watch.run())
        self._device = Device(cluster.addresses[DEVICE], tls, scene.ledger)
        scene.people = self._people = await self._invite(tls)

    async def _invite(self, tls: TlsIdentity) -> People:
        people = People(self._scene.tasks)
        for who in CAST:
            first = NODES.index(who.home)
            # The own node first, then the others in turn.
            wires = [
                await self._scene.network.person_wire(who.name, node)
                for node in NODES[first:] + NODES[:first]
            ]
            people.add(
                Person(
                    who,
                    [StoreNode(wire.address, tls=tls) for wire in wires],
                    self._plan.directory / f"{who.name}.db",
                    self._scene.ledger,
                    repairs="repair" not in self._plan.without,
                )
            )
        return people

    async def _converse(self) -> None:
        """Let a reader watch one gap, from the lost line until it is back."""
        scene, people = self._scene, self._people
        scene.tell(
            f"One conversation: {READER}'s link loses a line, and for a while each copy",
            chapter=True,
        )
        await people.join()
        reader = people[READER]
        await self._until(lambda: all(each.look().node for each in people))
        conversation = scene.conversation = Conversation(reader.passage.came, scene.tell)
        reader.on_event = conversation.note
        # SDS-Repair has its turn later: here a store node brings the line.
        reader.passage.loses_again = tuple(Way)
        for number in range(len(SCRIPT)):
            reader.loses_next = number == LOST
            await self._say(number)
            if number == LOST + 1:
                await self._until(lambda: conversation.gap is not None)
                await self._for(GAP_S)
                # A round of calls may be under way, by hint first and then by ID: where it has
                # asked by hint already, the line would come by its ID, which is not the rule.
                reader.passage.loses_again = [way for way in Way if way is not Way.HINT]
                scene.tell(f"{READER}'s link loses no more answers of store nodes")
        await self._until(lambda: conversation.whole)
        await self._for(READ_S)
        reader.passage.loses_again = ()
        reader.on_event = ignore
        conversation.over = True

    async def _say(self, number: int) -> None:
        """Let a line of the script be said and heard, by all but its reader."""
        name, text = SCRIPT[number]
        said = [await self._people[name].say(text)]
        members = self._people.members(self._people[READER].who.channel_id)
        heard_by = [each for each in members if each.who.name not in (name, READER)]
        await self._until(lambda: all(each.has_met(said) for each in heard_by))
        await self._for(LINE_S)

    async def _talk(self) -> None:
        self._scene.tell("Twelve participants talk; bad links lose a fifth", chapter=True)
        self._people.bad_links(lose=True)
        self._people.talk()
        self._readings = self._scene.tasks.start(self._device.run())
        await self._for(TALK_S)

    async def _cut_off(self) -> None:
        scene = self._scene
        scene.tell(f"{CUT_OFF} is cut off with those behind it; both sides go on", chapter=True)
        self._fault_s = time.monotonic()
        scene.troubles[CUT_OFF] = "cut off"
        scene.network.split(CUT_OFF, [who.name for who in CAST if who.home == CUT_OFF])
        scene.tell(f"a device has {BURST_CUT_OFF:,} readings for {DEVICE}")
        burst = scene.tasks.start(self._device.burst(BURST_CUT_OFF))
        await self._for(PARTITION_S * ROAM_AFTER)
        await self._roam()
        await self._for(PARTITION_S * (1 - ROAM_AFTER))
        await burst
        await self._seen()

    async def _roam(self) -> None:
        """Somebody goes to the other side, where the messages that they know of are at no node."""
        scene, people = self._scene, self._people
        neighbour, roamer, listener = people[NEIGHBOUR], people[ROAMER], people[LISTENER]
        for _ in range(3):
            await neighbour.say()
        told = tuple(neighbour.said)
        await self._until(lambda: roamer.has_met(told))
        scene.network.place(ROAMER, CUT_OFF, inside=False)
        await self._until(lambda: scene.network.node_at(roamer.look().node) not in ("", CUT_OFF))
        place = scene.network.node_at(roamer.status.node)
        scene.tell(f"{ROAMER} goes to {place}, where no node has {NEIGHBOUR}'s lines")
        await roamer.say()
        await self._until(lambda: listener.has_met(told))
        answered = sum(listener.passage.came.get(each) is Way.SDS_REPAIR for each in told)
        scene.tell(f"{LISTENER} asks for them; SDS-Repair brings {answered:,}")

    async def _heal(self) -> None:
        scene, away_s = self._scene, time.monotonic() - self._fault_s
        scene.tell(f"{CUT_OFF} is reached again, and all tell each other", chapter=True)
        await self._watch.look()
        recoveries = [self._recovery(CUT_OFF, f"cut off for {away_s:.0f} s")]
        recoveries += [
            self._recovery(name, f"{CUT_OFF} not reached") for name in NODES if name != CUT_OFF
        ]
        lacking = ", ".join(
            f"{name} lacks {len(each.lacked):,}"
            for name, each in zip([CUT_OFF, *NODES], recoveries, strict=False)
        )
        scene.tell(lacking)
        scene.network.heal()
        del scene.troubles[CUT_OFF]
        if "reconciliation" not in self._plan.without:
            await self._watch.synchronize(CUT_OFF, DEVICE)
        await self._recover(recoveries)

    async def _kill(self) -> None:
        scene = self._scene
        scene.tell(f"{KILLED} is killed; its participants go elsewhere", chapter=True)
        await self._people[LEAVER].leave()
        scene.tell(f"{LEAVER} closes the program")
        await self._watch.look()
        self._fault_s = time.monotonic()
        await self._cluster.nodes[KILLED].kill()
        scene.troubles[KILLED] = "killed"
        scene.tell(f"a device has {BURST_OUTAGE:,} readings for {CUT_OFF}")
        await self._device.burst(BURST_OUTAGE, self._cluster.addresses[CUT_OFF])
        await self._for(OUTAGE_S)
        await self._seen()

    async def _bring_back(self) -> None:
        scene, down_s = self._scene, time.monotonic() - self._fault_s
        scene.tell(f"{KILLED} is started again, with what is on its disk", chapter=True)
        scene.troubles[KILLED] = "starting"
        self._watch.sources[KILLED].restarted()
        recovery = self._recovery(KILLED, f"killed, down for {down_s:.0f} s")
        scene.tell(f"{KILLED} lacks {len(recovery.lacked):,}")
        await self._cluster.serve(KILLED)
        scene.tasks.start(self._cluster.nodes[KILLED].watch())
        del scene.troubles[KILLED]
        await self._people.rejoin(LEAVER)
        scene.tell(f"{LEAVER} opens the program again")
        await self._recover([recovery])

    async def _settle(self) -> None:
        """Nothing new is said, no link loses anything, and everybody has the time to catch up."""
        scene = self._scene
        scene.tell("Nobody says more; whoever lacks something gets it", chapter=True)
        self._readings.cancel()
        await self._people.be_silent()
        self._people.bad_links(lose=False)
        await self._until(self._complete)
        await self._people.remember()
        await self._people.leave()
        await self._until(lambda: self._auditor.equal)

    def _complete(self) -> bool:
        said = self._scene.ledger.said
        return self._people.settled and all(
            each.length == len(said[each.who.channel_id]) for each in self._people
        )

    def _recovery(self, node: str, what: str) -> Recovery:
        return Recovery(self._auditor, self._watch, node, what)

    async def _recover(self, recoveries: Sequence[Recovery]) -> None:
        ended = (each.ended(self._patience_s) for each in recoveries)
        self._scene.incidents += await asyncio.gather(*ended)

    async def _seen(self) -> None:
        """Wait until all that was acknowledged by now was seen in some node's feed."""
        acknowledged = frozenset(self._scene.ledger.acknowledged)
        await self._until(lambda: acknowledged <= self._auditor.all)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something, but not for ever: the verdict says what it comes to in the end."""
        await self._auditor.until(condition, self._patience_s)

    async def _for(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds / self._plan.pace, self._left_s))

    @property
    def _patience_s(self) -> float:
        return min(self._plan.patience_s, self._left_s)

    @property
    def _left_s(self) -> float:
        return max(self._plan.limit_s - self._scene.elapsed_s, 0.0)
