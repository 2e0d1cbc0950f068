"""What befalls nodes and participants. A fault begins, lasts and ends; what it leaves, they mend.

Each has a name, those whom it can befall, and dice for the rest. ``Fault.begin`` returns words that
say what exactly was done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.soak.checker.history import Pruned, Replaced
from bench.soak.machines import Replicated, wait_until
from bench.soak.world import DAY_NS, NAMES, PARTICIPANTS, World
from tests.support.small_disk import SmallDisk

_NS_PER_S: Final = 1_000_000_000
_DAY_S: Final = 86_400
_JUMPS_S: Final = (-2 * 3_600, -90, 90, 2 * 3_600, 400 * _DAY_S)
_DELAYS_S: Final = (0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. ``end`` undoes it; afterwards every process that should run does."""

    name: str
    victims: tuple[str, ...]
    begin: Callable[[World, str, Random], str]
    end: Callable[[World, str], None]


def _kill_node(world: World, name: str, _dice: Random) -> str:
    world.machines[name].node.kill()
    return "SIGKILL"


def _kill_postgres(world: World, name: str, _dice: Random) -> str:
    machine = world.machines[name]
    machine.kill_postgres()
    return "SIGKILL to " + ("all its processes" if machine.database else "the postmaster")


def _fail_over(world: World, name: str, _dice: Random) -> str:
    _replicated(world, name).fail_over()
    return "SIGKILL to the primary, standby promoted"


def _replicated(world: World, name: str) -> Replicated:
    database = world.machines[name].database
    assert isinstance(database, Replicated)
    return database


def _part(world: World, name: str, dice: Random) -> str:
    clients, silent = dice.random() < 0.5, dice.random() < 0.5
    for link in world.links(name, clients=clients):
        if silent:
            link.silence()
        else:
            link.cut()
    who = "peers and clients" if clients else "peers"
    return f"{who}, {'nothing passes' if silent else 'connections refused'}"


def _slow(world: World, name: str, dice: Random) -> str:
    delay_s = dice.choice(_DELAYS_S)
    for link in world.links(name, clients=True):
        link.delay(delay_s)
    return f"{delay_s * 1000:.0f} ms each way, peers and clients"


def _heal(world: World, name: str) -> None:
    for link in world.links(name, clients=True):
        link.heal()


def _jump(world: World, name: str, dice: Random) -> str:
    jump_s = dice.choice(_JUMPS_S)
    world.machines[name].set_clock(jump_s * _NS_PER_S)
    shown = f"{jump_s // _DAY_S:+} days" if abs(jump_s) >= _DAY_S else f"{jump_s:+,} s"
    return f"{shown}, the node's clock alone"


def _disk(world: World, name: str) -> SmallDisk:
    disk = world.machines[name].disk
    assert disk is not None
    return disk


def _fill(world: World, name: str, dice: Random) -> str:
    spare_kib = dice.choice((0, 64, 2_048))
    _disk(world, name).fill(spare_kib * 1024)
    return f"{spare_kib:,} KiB left"


def _prune(world: World, name: str, _dice: Random) -> str:
    machine = world.machines[name]
    before = sum(each.store == machine.store for each in world.history.pruned)
    days = max(3, 9 - before - 1)
    noted: list[int] = []

    def done() -> bool:
        code, report = machine.storenode(
            "db", "prune", "--retention", f"{days}d", "--retention-confirm"
        )
        noted.append(len(report.get("dropped", ())))
        return code == 0

    # What may be gone is noted first: somebody may look before the command has ended.
    begun_ns = time.time_ns()
    world.history.pruned.append(
        Pruned(machine.store, _bound(begun_ns + _DAY_S * _NS_PER_S, days), 0)
    )
    wait_until(f"retention at node {name} to drop what it should", done)
    world.history.pruned[-1] = Pruned(
        machine.store, _bound(time.time_ns(), days), _bound(begun_ns, days)
    )
    return f"{days} days, {sum(noted)} partitions dropped"


def _bound(now_ns: int, days: int) -> int:
    """Partitions of a day go when they ended so many days ago."""
    return (now_ns - days * DAY_NS) // DAY_NS * DAY_NS


def _throw_away(world: World, name: str, _dice: Random) -> str:
    machine = world.machines[name]
    machine.node.kill()
    world.history.replaced.append(Replaced(machine.store, time.monotonic()))
    return f"{machine.store} is gone"


def _kill_participant(world: World, name: str, _dice: Random) -> str:
    world.participants[name].kill()
    return "SIGKILL"


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Fault("node-killed", NAMES, _kill_node, lambda world, name: world.machines[name].start()),
        Fault(
            "postgres-killed",
            NAMES,
            _kill_postgres,
            lambda world, name: world.machines[name].start_postgres(),
        ),
        Fault(
            "failover", ("a",), _fail_over, lambda world, name: _replicated(world, name).rebuild()
        ),
        Fault("partition", NAMES, _part, _heal),
        Fault("slow-link", NAMES, _slow, _heal),
        Fault("clock-jump", NAMES, _jump, lambda world, name: world.machines[name].set_clock(0)),
        Fault("disk-full", ("c",), _fill, lambda world, name: _disk(world, name).free()),
        Fault("retention", NAMES, _prune, lambda _world, _name: None),
        Fault(
            "node-replaced",
            ("b",),
            _throw_away,
            lambda world, name: world.machines[name].replace(),
        ),
        Fault(
            "participant-killed",
            tuple(PARTICIPANTS),
            _kill_participant,
            lambda world, name: world.participants[name].resume(),
        ),
    )
}
"""By name, as it is given on the command line."""
