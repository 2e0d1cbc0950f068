"""The faults of a soak, and their schedule by a seed.

A fault lasts for as long as the block of its context manager, whose value describes what was done;
after the block every process that should run does. Nodes and participants then recover from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.checker.history import Pruned
from chaos.network import WireState
from chaos.soak.postgres import Pair
from chaos.soak.world import DAY_NS, FAILING_OVER, NAMES, PARTICIPANTS, PATIENCE_S, SoakWorld

_NS_PER_S: Final = 1_000_000_000
_DAY_S: Final = 86_400
_JUMPS_S: Final = (-2 * 3_600, -90, 90, 2 * 3_600, 400 * _DAY_S)
_DELAYS_S: Final = (0.1, 0.3, 1.0)
_FIRST_RETENTION_DAYS: Final = 8
_LEAST_RETENTION_DAYS: Final = 3
_MAX_LENGTH_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and the nodes or participants that it can befall."""

    victims: tuple[str, ...]
    injected: Callable[[SoakWorld, str, Random], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of a schedule: its victim, the earliest time of its begin, and its length."""

    name: str
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
        name = deck.pop()
        length_s = min(_MAX_LENGTH_S, every_s / 3) * rng.uniform(0.4, 1.0)
        victim = rng.choice(FAULTS[name].victims)
        yield Planned(name, victim, number * every_s + every_s / 4, length_s)


@asynccontextmanager
async def _node_killed(world: SoakWorld, name: str, _rng: Random) -> AsyncIterator[str]:
    world.nodes[name].kill()
    yield "SIGKILL"
    await world.start_node(name)


@asynccontextmanager
async def _postgres_killed(world: SoakWorld, name: str, _rng: Random) -> AsyncIterator[str]:
    machine = world.machines[name]
    await machine.kill_postgres()
    yield "SIGKILL to " + ("all its processes" if machine.server else "the postmaster")
    await machine.start_postgres()


@asynccontextmanager
async def _failover(world: SoakWorld, name: str, _rng: Random) -> AsyncIterator[str]:
    pair = world.machines[name].database
    assert isinstance(pair, Pair)
    await asyncio.to_thread(pair.first.kill)
    await asyncio.to_thread(pair.promote)
    yield "SIGKILL to the primary, standby promoted"
    # The old primary becomes the standby, for which commits wait again.
    await asyncio.to_thread(pair.rebuild)
    await asyncio.to_thread(pair.synchronous)


@asynccontextmanager
async def _partition(world: SoakWorld, name: str, rng: Random) -> AsyncIterator[str]:
    clients, silent = rng.random() < 0.5, rng.random() < 0.5
    for wire in world.network.wires_of(name, clients=clients):
        wire.set(WireState.LOSSY if silent else WireState.CLOSED)
    who = "peers and clients" if clients else "peers"
    yield f"{who}, {'nothing passes' if silent else 'connections refused'}"
    world.network.heal()


@asynccontextmanager
async def _slow_link(world: SoakWorld, name: str, rng: Random) -> AsyncIterator[str]:
    delay_s = rng.choice(_DELAYS_S)
    for wire in world.network.wires_of(name, clients=True):
        wire.delay_s = delay_s
    yield f"{delay_s * 1000:.0f} ms each way, peers and clients"
    world.network.heal()


@asynccontextmanager
async def _clock_jump(world: SoakWorld, name: str, rng: Random) -> AsyncIterator[str]:
    jump_s = rng.choice(_JUMPS_S)
    world.machines[name].set_clock(jump_s * _NS_PER_S)
    shown = f"{jump_s // _DAY_S:+} days" if abs(jump_s) >= _DAY_S else f"{jump_s:+,} s"
    yield f"{shown}, the node's clock alone"
    world.machines[name].set_clock(0)


@asynccontextmanager
async def _disk_full(world: SoakWorld, name: str, rng: Random) -> AsyncIterator[str]:
    disk, spare_kib = world.machines[name].disk, rng.choice((0, 64, 2_048))
    assert disk is not None
    disk.fill(spare_kib * 1024)
    yield f"{spare_kib:,} KiB left"
    disk.free()


@asynccontextmanager
async def _retention(world: SoakWorld, name: str, _rng: Random) -> AsyncIterator[str]:
    machine, history, store = world.machines[name], world.history, world.store(name)
    before = sum(each.store == store for each in history.pruned)
    days = max(_LEAST_RETENTION_DAYS, _FIRST_RETENTION_DAYS - before)
    dropped, code = 0, 1
    # A reader may see the drop before the command has ended.
    begun_ns = time.time_ns()
    may_go_ns = _dropped_before_ns(begun_ns + _DAY_S * _NS_PER_S, days)
    history.pruned.append(Pruned(store, may_go_ns, 0))
    async with asyncio.timeout(PATIENCE_S):
        while code:
            limits = ("--retention", f"{days}d", "--retention-confirm")
            code, report = await machine.run_command("db", "prune", *limits)
            dropped += len(report.get("dropped", ()))
    history.pruned[-1] = Pruned(
        store,
        _dropped_before_ns(time.time_ns(), days),
        _dropped_before_ns(begun_ns, days),
    )
    yield f"{days} days, {dropped} partitions dropped"


def _dropped_before_ns(now_ns: int, days: int) -> int:
    """Return the begin of the oldest day that is kept: a day goes when it ended so long ago."""
    return (now_ns - days * DAY_NS) // DAY_NS * DAY_NS


@asynccontextmanager
async def _node_replaced(world: SoakWorld, name: str, _rng: Random) -> AsyncIterator[str]:
    world.nodes[name].kill()
    world.history.replaced[world.store(name)] = time.monotonic()
    yield f"{world.store(name)} is gone"
    await world.machines[name].destroy()
    await world.install(name)
    await world.start_node(name)


@asynccontextmanager
async def _participant_away(world: SoakWorld, name: str, _rng: Random) -> AsyncIterator[str]:
    await world.participants[name].leave()
    yield "left its channel"
    await world.participants[name].join(world.tasks)


FAULTS: Final[Mapping[str, Fault]] = {
    "node-killed": Fault(NAMES, _node_killed),
    "postgres-killed": Fault(NAMES, _postgres_killed),
    "failover": Fault((FAILING_OVER,), _failover),
    "partition": Fault(NAMES, _partition),
    "slow-link": Fault(NAMES, _slow_link),
    "clock-jump": Fault(NAMES, _clock_jump),
    "disk-full": Fault(("c",), _disk_full),
    "retention": Fault(NAMES, _retention),
    "node-replaced": Fault(("b",), _node_replaced),
    "participant-away": Fault(tuple(PARTICIPANTS), _participant_away),
}
"""The faults by name, as given on the command line."""
