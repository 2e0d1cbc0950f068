"""The faults of a soak, and their schedule by a seed.

A fault begins, lasts and ends; nodes and participants then recover from it. Each has a name and the
nodes or participants that it can befall. ``begin`` returns a description of what was done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.checker.history import Pruned, Replaced
from chaos.network import WireState
from chaos.soak.scenario import DAY_NS, NAMES, PARTICIPANTS, SoakWorld
from tests.support.small_disk import SmallDisk

_NS_PER_S: Final = 1_000_000_000
_DAY_S: Final = 86_400
_JUMPS_S: Final = (-2 * 3_600, -90, 90, 2 * 3_600, 400 * _DAY_S)
_DELAYS_S: Final = (0.1, 0.3, 1.0)
_FIRST_RETENTION_DAYS: Final = 8
_LEAST_RETENTION_DAYS: Final = 3
_MAX_LENGTH_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. ``end`` undoes it; afterwards every process that should run does."""

    name: str
    victims: tuple[str, ...]
    begin: Callable[[SoakWorld, str, Random], Awaitable[str]]
    end: Callable[[SoakWorld, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of a schedule: its victim, the earliest time of its begin, and its length."""

    fault: Fault
    victim: str
    at_s: float
    length_s: float


def plan(seed: int, names: Sequence[str], minutes: float, every_s: float) -> Iterator[Planned]:
    """Yield one fault for every ``every_s`` of a run, each kind once before any comes again.

    Each begins after a quarter of its time and lasts a third of it at most; the rest is calm.
    """
    rng = Random(f"{seed}/plan")
    deck: list[str] = []
    every_s = min(every_s, minutes * 60)
    for number in range(int(minutes * 60 / every_s) if names else 0):
        if not deck:
            deck = rng.sample(list(names), len(names))
        fault = FAULTS[deck.pop()]
        length_s = min(_MAX_LENGTH_S, every_s / 3) * rng.uniform(0.4, 1.0)
        yield Planned(fault, rng.choice(fault.victims), number * every_s + every_s / 4, length_s)


async def _kill_node(world: SoakWorld, name: str, _rng: Random) -> str:
    await world.nodes[name].kill()
    return "SIGKILL"


async def _start_node(world: SoakWorld, name: str) -> None:
    await world.start_node(name)


async def _kill_postgres(world: SoakWorld, name: str, _rng: Random) -> str:
    machine = world.machines[name]
    await machine.kill_postgres()
    return "SIGKILL to " + ("all its processes" if machine.server else "the postmaster")


async def _start_postgres(world: SoakWorld, name: str) -> None:
    await world.machines[name].start_postgres()


async def _fail_over(world: SoakWorld, name: str, _rng: Random) -> str:
    await asyncio.to_thread(world.machines[name].fail_over)
    return "SIGKILL to the primary, standby promoted"


async def _rebuild(world: SoakWorld, name: str) -> None:
    await asyncio.to_thread(world.machines[name].rebuild)


async def _cut_off(world: SoakWorld, name: str, rng: Random) -> str:
    clients, silent = rng.random() < 0.5, rng.random() < 0.5
    for wire in world.network.wires_of(name, clients=clients):
        wire.set(WireState.LOSSY if silent else WireState.CLOSED)
    who = "peers and clients" if clients else "peers"
    return f"{who}, {'nothing passes' if silent else 'connections refused'}"


async def _slow_down(world: SoakWorld, name: str, rng: Random) -> str:
    delay_s = rng.choice(_DELAYS_S)
    for wire in world.network.wires_of(name, clients=True):
        wire.delay_s = delay_s
    return f"{delay_s * 1000:.0f} ms each way, peers and clients"


async def _heal(world: SoakWorld, _name: str) -> None:
    world.network.heal()


async def _set_clock(world: SoakWorld, name: str, rng: Random) -> str:
    jump_s = rng.choice(_JUMPS_S)
    world.machines[name].set_clock(jump_s * _NS_PER_S)
    shown = f"{jump_s // _DAY_S:+} days" if abs(jump_s) >= _DAY_S else f"{jump_s:+,} s"
    return f"{shown}, the node's clock alone"


async def _correct_clock(world: SoakWorld, name: str) -> None:
    world.machines[name].set_clock(0)


def _disk(world: SoakWorld, name: str) -> SmallDisk:
    disk = world.machines[name].disk
    assert disk is not None
    return disk


async def _fill_disk(world: SoakWorld, name: str, rng: Random) -> str:
    spare_kib = rng.choice((0, 64, 2_048))
    _disk(world, name).fill(spare_kib * 1024)
    return f"{spare_kib:,} KiB left"


async def _free_disk(world: SoakWorld, name: str) -> None:
    _disk(world, name).free()


async def _prune(world: SoakWorld, name: str, _rng: Random) -> str:
    machine, history, store = world.machines[name], world.history, world.store(name)
    before = sum(each.store == store for each in history.pruned)
    days = max(_LEAST_RETENTION_DAYS, _FIRST_RETENTION_DAYS - before)
    dropped = 0

    async def is_done() -> bool:
        nonlocal dropped
        code, report = await machine.run_command(
            "db", "prune", "--retention", f"{days}d", "--retention-confirm"
        )
        dropped += len(report.get("dropped", ()))
        return code == 0

    # A reader may see the drop before the command has ended.
    begun_ns = time.time_ns()
    may_go_ns = _dropped_before_ns(begun_ns + _DAY_S * _NS_PER_S, days)
    history.pruned.append(Pruned(store, may_go_ns, 0))
    await world.waiter.until(f"retention at node {name}", is_done)
    history.pruned[-1] = Pruned(
        store,
        _dropped_before_ns(time.time_ns(), days),
        _dropped_before_ns(begun_ns, days),
    )
    return f"{days} days, {dropped} partitions dropped"


def _dropped_before_ns(now_ns: int, days: int) -> int:
    """Return the begin of the oldest day that is kept: a day goes when it ended so long ago."""
    return (now_ns - days * DAY_NS) // DAY_NS * DAY_NS


async def _destroy(world: SoakWorld, name: str, _rng: Random) -> str:
    await world.nodes[name].kill()
    world.history.replaced.append(Replaced(world.store(name), time.monotonic()))
    return f"{world.store(name)} is gone"


async def _replace(world: SoakWorld, name: str) -> None:
    await world.machines[name].destroy()
    await world.install(name)
    await world.start_node(name)


async def _leave(world: SoakWorld, name: str, _rng: Random) -> str:
    await world.participants[name].leave()
    return "left its channel"


async def _join(world: SoakWorld, name: str) -> None:
    await world.participants[name].join(world.tasks)


async def _do_nothing(_world: SoakWorld, _name: str) -> None:
    return


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Fault("node-killed", NAMES, _kill_node, _start_node),
        Fault("postgres-killed", NAMES, _kill_postgres, _start_postgres),
        Fault("failover", ("a",), _fail_over, _rebuild),
        Fault("partition", NAMES, _cut_off, _heal),
        Fault("slow-link", NAMES, _slow_down, _heal),
        Fault("clock-jump", NAMES, _set_clock, _correct_clock),
        Fault("disk-full", ("c",), _fill_disk, _free_disk),
        Fault("retention", NAMES, _prune, _do_nothing),
        Fault("node-replaced", ("b",), _destroy, _replace),
        Fault("participant-away", tuple(PARTICIPANTS), _leave, _join),
    )
}
"""The faults by name, as given on the command line."""
