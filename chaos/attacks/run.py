"""Attacks on a node, their cost, and what an honest client gets meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from chaos.attacks.catalog import ATTACKS
from chaos.attacks.honest import PAUSE_S, HonestClient
from chaos.attacks.target import Target
from chaos.node import PROGRAM, NodeProcess
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway

MIB: Final = 1024 * 1024
_SAMPLE_S: Final = 0.05
_MAX_SAMPLES: Final = 24
_SETTLE_S: Final = 1.0
_ORPHANS_END_S: Final = 30.0
OPTIONS: Final = ("--log-level", "error", "--sync-interval", "0", "--gossip", "on")
"""Options of a node that is attacked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attack; ``growth_mib`` is the most memory above that before it.

    ``alive`` is True if the node still serves; ``saw`` has a sentence of each attack.
    """

    name: str
    count: int
    growth_mib: float
    processor_s: float
    slowest_s: float
    calls: int
    failures: dict[str, int]
    alive: bool
    saw: str
    violations: Sequence[str] = ()
    """The rules that what the honest client got has broken."""

    memory_mib: Sequence[int] = ()
    """Samples at equal distances, so that a slow leak shows in a long run."""

    def as_json(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(asdict(self))


async def run_attack(attacks: Mapping[str, int], seed: int) -> Outcome:
    """Start a node with a database of its own, and attack it; ``attacks`` as of `attack_node`."""
    options = [*OPTIONS, *(each for name in attacks for each in ATTACKS[name].options)]
    async with run_node(options) as node:
        if not any(ATTACKS[name].on_gateway for name in attacks):
            return await attack_node(node, attacks, seed)
        with gateway_before(node) as gateway:
            return await attack_node(node, attacks, seed, gateway)


@contextmanager
def gateway_before(node: NodeProcess) -> Iterator[GatewayProcess]:
    """Run a gateway in a temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix="storenode-") as directory,
        running_gateway(
            Path(directory), node.ready["listen"], *GENEROUS, "--relay", "router"
        ) as gateway,
    ):
        yield gateway


@asynccontextmanager
async def run_node(
    options: Sequence[str], program: Sequence[str] = PROGRAM
) -> AsyncIterator[NodeProcess]:
    """Run a node in a temporary directory, and kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="storenode-chaos-") as directory:
        node = NodeProcess("node", Path(directory), options, program=program)
        await node.start()
        try:
            yield node
        finally:
            family = psutil.Process(node.pid).children(recursive=True) if node.running else []
            await node.kill()
            # Its Postgres ends later, and uses the directory until then.
            await asyncio.to_thread(psutil.wait_procs, family, _ORPHANS_END_S)


def target_of(node: NodeProcess, gateway: GatewayProcess | None = None) -> Target:
    """Return the addresses of a node, and of the gateway before it."""
    ready = node.ready
    target = Target(ready["listen"], ready["peer"], ready["metrics"], ready.get("http", ""))
    if gateway is None:
        return target
    return replace(target, gateway=gateway.address("tcp"), gateway_ws=gateway.address("ws"))


async def attack_node(
    node: NodeProcess,
    attacks: Mapping[str, int],
    seed: int,
    gateway: GatewayProcess | None = None,
    *,
    pause_s: float = PAUSE_S,
) -> Outcome:
    """Run attacks at once on a node that runs, beside an honest client.

    Args:
        node: the node.
        attacks: the count of each attack, by name.
        seed: decides the random choices of the attacks.
        gateway: the gateway before the node, which is measured in place of the node.
        pause_s: pause between two calls of a kind of the honest client.
    """
    target = target_of(node, gateway)
    honest, ended = HonestClient(target, pause_s), asyncio.Event()
    asking = asyncio.create_task(honest.run(ended))
    await asyncio.sleep(_SETTLE_S)
    gauge = _Gauge(psutil.Process(node.pid if gateway is None else gateway.process.pid))
    watching = asyncio.create_task(gauge.watch())
    given = {"target": asdict(target), "seed": seed}
    saw = await asyncio.gather(
        *(_attacker({**given, "name": name, "count": count}) for name, count in attacks.items())
    )
    watching.cancel()
    spent_s = gauge.processor_s() - gauge.before_s
    ended.set()
    await asking
    return Outcome(
        name=", ".join(attacks),
        count=sum(attacks.values()),
        growth_mib=round((gauge.peak - gauge.before) / MIB, 1),
        processor_s=round(spent_s, 1),
        slowest_s=round(max(honest.seconds, default=0.0), 2),
        calls=honest.calls,
        failures=dict(honest.failures),
        alive=node.running and (gateway is None or gateway.process.poll() is None),
        saw="; ".join(saw),
        violations=[str(each) for each in await honest.judge()] if node.running else [],
        memory_mib=[round(each / MIB) for each in gauge.samples],
    )


class _Gauge:
    """The memory and processor time of a process, from now on."""

    def __init__(self, process: psutil.Process) -> None:
        self.samples: list[int] = []
        self._process = process
        self.before = self.peak = process.memory_info().rss
        self.before_s = self.processor_s()

    def processor_s(self) -> float:
        """Return user and system time so far; 0 if the process has ended."""
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    async def watch(self) -> None:
        """Record memory until cancelled or the process has ended."""
        distance = 1
        for number in itertools.count():
            if not self._process.is_running():
                return
            with suppress(psutil.Error):
                used = self._process.memory_info().rss
                self.peak = max(self.peak, used)
                if number % distance == 0:
                    self.samples.append(used)
            if len(self.samples) > _MAX_SAMPLES:
                del self.samples[1::2]
                distance *= 2
            await asyncio.sleep(_SAMPLE_S)


async def _attacker(given: dict[str, Any]) -> str:
    deadline_s = ATTACKS[given["name"]].deadline_s
    attacker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.attacks.catalog"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(deadline_s):
            said, _ = await attacker.communicate(json.dumps(given).encode() + b"\n")
    except TimeoutError:
        attacker.kill()
        await attacker.wait()
        return f"the attack was stopped after {deadline_s:.0f} s"
    if attacker.returncode:
        return f"the attack failed with code {attacker.returncode}"
    return said.decode().strip()
