"""Three machines, everything that connects them, and what the whole run knows of them.

Node a has two servers, a primary and its synchronous standby. Node b has a server of its own. Node
c has an embedded one, on a small disk where that can be mounted. Each names both others as its
peers, every link goes through a proxy of its own, and so does that of the clients of each node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from bench.soak.checker.asking import held
from bench.soak.checker.history import History, Synced
from bench.soak.checker.publishing import publish_history
from bench.soak.machines import (
    PATIENCE_S,
    POLL_S,
    Machine,
    Replicated,
    StuckError,
    single,
    wait_until,
)
from tests.support.peer_proxy import PeerProxy, proxied
from tests.support.small_disk import CannotMountError, SmallDisk

if TYPE_CHECKING:
    from bench.soak.load import Participant

NAMES = ("a", "b", "c")
CHANNELS = ("kitchen", "garden")
PARTICIPANTS = {f"{channel}-{number}": channel for channel in CHANNELS for number in range(3)}
"""SDS participants by name, and the channel that each is in."""

OPTIONS = (
    *("--log-format", "json", "--log-level", "info"),
    *("--sync-interval", "10s"),
)
"""A quick schedule, so that a run sees many sessions; the rest is as a node has it by itself."""

_OPEN = ("--max-clock-drift", "off")
_DISK_MIB = 384
_DISK_MIB_PER_MINUTE = 24
_SMALL_LOG = ("--postgres-setting", "max_wal_size=64MB", "--postgres-setting", "min_wal_size=32MB")
_OLDEST_DAYS, _NEWEST_DAYS, _OLD_MESSAGES = 10.0, 2.0, 2_000
DAY_NS = 86_400 * 10**9


@dataclass
class World:
    """Everything that runs; made by `open_world`."""

    history: History
    dice: Random
    machines: dict[str, Machine] = field(default_factory=dict)
    peer_links: dict[tuple[str, str], PeerProxy] = field(default_factory=dict)
    client_links: dict[str, PeerProxy] = field(default_factory=dict)
    participants: dict[str, Participant] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    _seen: dict[str, set[bytes]] = field(default_factory=dict)

    def links(self, name: str, *, clients: bool) -> Iterator[PeerProxy]:
        """All ways to and from a node."""
        for pair, link in self.peer_links.items():
            if name in pair:
                yield link
        if clients:
            yield self.client_links[name]

    def store(self, name: str) -> str:
        """The store behind a node now."""
        return self.machines[name].store

    def synced(self, patience_s: float = PATIENCE_S) -> float:
        """Wait until every node holds all that has been acknowledged until now; for how long.

        Raises:
            StuckError: it took longer; the text names a message that is missing.
        """
        begun_s = time.monotonic()
        owed = self.history.acknowledged()
        for name in NAMES:
            missing = list(owed)
            while missing := self._missing(name, missing):
                if time.monotonic() > begun_s + patience_s:
                    raise StuckError(
                        f"node {name} lacks {len(missing):,} acknowledged messages after"
                        f" {patience_s:.0f} s, such as {missing[0].hex()}"
                    )
                time.sleep(POLL_S)
        now_s = time.monotonic()
        self.history.synced.append(Synced(begun_s, now_s))
        return now_s - begun_s

    def recovered(self, victim: str) -> float:
        """Wait until nodes are in sync, and a participant that was killed is; for how long.

        Raises:
            StuckError: it took longer than anything may.
        """
        begun_s = time.monotonic()
        self.synced()
        participant = self.participants.get(victim)
        if participant is not None:
            wait_until(f"participant {victim} to be synced", lambda: participant.looks()["synced"])
        return time.monotonic() - begun_s

    def _missing(self, name: str, owed: Sequence[bytes]) -> list[bytes]:
        """Those that a node has not been seen to hold, and should."""
        store = self.store(name)
        seen = self._seen.setdefault(store, set())
        may_go_ns = self.history.may_go_ns(store)
        rest = [
            digest
            for digest in owed
            if digest not in seen
            and self.history.published[digest].timestamp_ns >= may_go_ns
            and not self.history.may_be_lost(digest)
        ]
        seen |= held(self.machines[name].node.listen, rest, PATIENCE_S)
        return [digest for digest in rest if digest not in seen]


def open_world(stack: ExitStack, directory: Path, seed: int, minutes: float) -> World:
    """Start everything, with a history that every node holds; it ends with the stack."""
    world = World(History(), Random(f"{seed}/world"))
    for pair in permutations(NAMES, 2):
        world.peer_links[pair] = stack.enter_context(proxied())
    for name in NAMES:
        world.client_links[name] = stack.enter_context(proxied())
    disk = _small_disk(world, directory, minutes)
    if disk is not None:
        stack.callback(disk.close)
    for name, database in zip(NAMES, (Replicated, single, None), strict=True):
        place = directory / name
        place.mkdir(exist_ok=True)
        machine = Machine(name, place, database, disk if database is None else None)
        stack.callback(machine.close)
        world.machines[name] = machine
        machine.start(*_options(world, name), *_OPEN)
        world.client_links[name].target = machine.node.listen
        for caller, callee in world.peer_links:
            if callee == name:
                world.peer_links[caller, callee].target = machine.node.peer
    _make_history(world)
    return world


def _options(world: World, name: str) -> tuple[str, ...]:
    links = [link for (caller, _), link in world.peer_links.items() if caller == name]
    peers = [part for link in links for part in ("--peer", link.address)]
    return (*OPTIONS, *(_SMALL_LOG if name == "c" else ()), *peers)


def _small_disk(world: World, directory: Path, minutes: float) -> SmallDisk | None:
    place = directory / "c" / "disk"
    place.mkdir(parents=True)
    try:
        return SmallDisk(place, int(_DISK_MIB + minutes * _DISK_MIB_PER_MINUTE))
    except (CannotMountError, OSError) as error:
        world.left_out["disk-full"] = f"no disk could be mounted: {error}"
        return None


def _make_history(world: World) -> None:
    """Messages of the last days, for retention; then nodes as they are run, which take no such."""
    now_ns = time.time_ns()
    spans = (_OLDEST_DAYS - _NEWEST_DAYS) / _OLD_MESSAGES
    times_ns = [
        now_ns - int((_NEWEST_DAYS + number * spans) * DAY_NS) for number in range(_OLD_MESSAGES)
    ]
    address, store = world.machines["a"].node.listen, world.store("a")
    publish_history(address, store, world.history, world.dice, times_ns)
    world.synced()
    for name, machine in world.machines.items():
        machine.node.terminate()
        machine.start(*_options(world, name))
