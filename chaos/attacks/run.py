"""An attack on a node of its own, and its cost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from chaos.attacks.attacker import load_attacks
from chaos.attacks.honest import PAUSE_S, HonestClient
from chaos.attacks.registry import Target
from chaos.node import NodeProcess
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway

MIB: Final = 1024 * 1024
_SAMPLE_S: Final = 0.05
_MAX_SAMPLES: Final = 24
_SETTLE_S: Final = 1.0
_ORPHANS_END_S: Final = 30.0
_OPTIONS: Final = ("--log-level", "error", "--sync-interval", "0", "--gossip", "on")


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
    memory_mib: Sequence[int] = ()
    """Samples at equal distances, so that a slow leak shows in a long run."""

    def as_json(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(asdict(self))


async def run_attack(
    attacks: Mapping[str, int],
    seed: int,
    python: Path | None = None,
    before: Sequence[str] = (),
    *,
    database_url: str | None = None,
    pause_s: float = PAUSE_S,
) -> Outcome:
    """Start a node, and run all ``attacks`` at once.

    Args:
        attacks: the count of each attack, by name.
        seed: decides the random choices of the attacks.
        python: the interpreter of another environment whose node is attacked.
        before: words before the node's command line.
        database_url: an empty database; by default the node has its own.
        pause_s: pause between two calls of a kind of the honest client.
    """
    attacked = load_attacks()
    options = [*_OPTIONS, *(each for name in attacks for each in attacked[name].options)]
    if database_url is not None:
        options += ["--database-url", database_url]
    async with run_node(options, program_of(python), before) as node:
        with contextlib.ExitStack() as stack:
            gateway = None
            if any(attacked[name].on_gateway for name in attacks):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="storenode-")))
                more = (*GENEROUS, "--relay", "router")
                gateway = stack.enter_context(running_gateway(folder, node.ready["listen"], *more))
            return await _attack(node, gateway, attacks, seed, pause_s)


def program_of(python: Path | None) -> Sequence[str]:
    """Return the command ``storenode`` beside an interpreter, by default of this environment."""
    return (str((python or Path(sys.executable)).with_name("storenode")),)


def target_of(node: NodeProcess) -> Target:
    """Return the addresses of a node."""
    return Target(
        node.ready["listen"], node.ready["peer"], node.ready["metrics"], node.ready.get("http", "")
    )


@asynccontextmanager
async def run_node(
    options: Sequence[str], program: Sequence[str], before: Sequence[str] = ()
) -> AsyncIterator[NodeProcess]:
    """Run a node in a temporary directory, and kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="storenode-chaos-") as directory:
        node = NodeProcess(
            "node",
            Path(directory),
            options,
            program=program,
            enter=lambda line: [*before, *line],
        )
        await node.start()
        try:
            yield node
        finally:
            family = psutil.Process(node.pid).children(recursive=True) if node.running else []
            await node.kill()
            # Its Postgres ends later, and uses the directory until then.
            await asyncio.to_thread(psutil.wait_procs, family, _ORPHANS_END_S)


async def _attack(
    node: NodeProcess,
    gateway: GatewayProcess | None,
    attacks: Mapping[str, int],
    seed: int,
    pause_s: float,
) -> Outcome:
    target = target_of(node)
    if gateway is not None:
        addresses = gateway.address("tcp"), gateway.address("ws")
        target = replace(target, gateway=addresses[0], gateway_ws=addresses[1])
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
    record = honest.record
    return Outcome(
        name=", ".join(attacks),
        count=sum(attacks.values()),
        growth_mib=round((gauge.peak - gauge.before) / MIB, 1),
        processor_s=round(spent_s, 1),
        slowest_s=round(record.slowest_s, 2),
        calls=record.calls,
        failures=dict(record.failures),
        alive=node.running and (gateway is None or gateway.process.poll() is None),
        saw="; ".join(saw),
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
            with contextlib.suppress(psutil.Error):
                used = self._process.memory_info().rss
                self.peak = max(self.peak, used)
                if number % distance == 0:
                    self.samples.append(used)
            if len(self.samples) > _MAX_SAMPLES:
                del self.samples[1::2]
                distance *= 2
            await asyncio.sleep(_SAMPLE_S)


async def _attacker(given: dict[str, Any]) -> str:
    deadline_s = load_attacks()[given["name"]].deadline_s
    attacker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.attacks.attacker"),
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
