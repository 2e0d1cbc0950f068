"""Attack a node, and print the cost and what an honest client sees; see docs/security.md.

Each attack has a node of its own on an embedded Postgres, with default options. Everything uses
addresses of this machine, is bounded, and stops by itself. The exit code is 1 if a node has died,
logged an error or taken too much memory, if an honest client got something else than it is owed, or
if an attack failed or found a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import psutil

from chaos.attacks.catalog import ATTACKS, carry_out
from chaos.attacks.honest import PAUSE_S, HonestClient
from chaos.node import PROGRAM, NodeProcess

MIB: Final = 1024 * 1024
_SAMPLE_S: Final = 0.05
_SETTLE_S: Final = 1.0
_ORPHANS_END_S: Final = 30.0
_MOST_SHOWN: Final = 5
_SHOWN_CHARS: Final = 2_000
OPTIONS: Final = ("--log-level=warning", "--log-format=json", "--sync-interval=0", "--gossip=on")
"""Options of a node that is attacked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attack; ``growth_mib`` is the most memory above that before it.

    ``alive`` is True if the node still runs, ``saw`` describes what the attack has seen, and
    ``violations`` are what should not have happened, to the node or to the honest client.
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
    violations: Sequence[str]

    def __str__(self) -> str:
        failed = ", ".join(f"{count} {what}" for what, count in self.failures.items()) or "none"
        return (
            f"{self.name} ({self.count}): {'' if self.alive else 'the node DIED; '}"
            f"memory +{self.growth_mib:.0f} MiB, processor {self.processor_s:.1f} s; honest: "
            f"slowest {self.slowest_s:.2f} s, {self.calls} calls, failures: {failed}; "
            f"{'; '.join((self.saw, *self.violations))}"
        )


async def run_attack(name: str, count: int, seed: int) -> Outcome:
    """Start a node with a database of its own, and attack it."""
    async with run_node(OPTIONS) as node:
        return await attack_node(node, name, count, seed)


@asynccontextmanager
async def run_node(
    options: Sequence[str], program: Sequence[str] = PROGRAM
) -> AsyncIterator[NodeProcess]:
    """Run a node in a temporary directory, and kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="storenode-chaos-") as directory:
        args = ("--peer-listen", "127.0.0.1:0", *options)
        node = NodeProcess(Path(directory) / "node", args, program=program)
        await asyncio.to_thread(node.start)
        try:
            yield node
        finally:
            family = psutil.Process(node.pid).children(recursive=True) if node.running else []
            node.kill()
            # Its Postgres ends later, and uses the directory until then.
            await asyncio.to_thread(psutil.wait_procs, family, _ORPHANS_END_S)


async def attack_node(
    node: NodeProcess, name: str, count: int, seed: int, *, pause_s: float = PAUSE_S
) -> Outcome:
    """Run an attack on a node beside an honest client.

    Args:
        node: the node.
        name: the name of the attack.
        count: how many calls, connections or requests.
        seed: decides the random choices of the attack.
        pause_s: pause between two calls of a kind of the honest client.
    """
    honest, ended, logged = HonestClient(node.ready, pause_s), asyncio.Event(), len(node.log())
    asking = asyncio.create_task(honest.run(ended))
    await asyncio.sleep(_SETTLE_S)
    process = psutil.Process(node.pid)
    before, before_s = process.memory_info().rss, sum(process.cpu_times()[:2])
    peak = [before]
    watching = asyncio.create_task(_watch_memory(process, peak))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        attacking = partial(carry_out, name, node.ready, seed, count)
        saw, failure = await asyncio.get_running_loop().run_in_executor(pool, attacking)
    watching.cancel()
    spent_s = 0.0
    with suppress(psutil.Error):
        spent_s = sum(process.cpu_times()[:2]) - before_s
    ended.set()
    await asking
    growth_mib = round((peak[0] - before) / MIB, 1)
    violations = [failure] if failure else []
    if growth_mib > ATTACKS[name].max_mib:
        violations.append(f"more than {ATTACKS[name].max_mib:.0f} MiB of memory")
    violations += find_errors(node.log()[logged:])
    if node.running:
        violations += [str(each) for each in await honest.judge()]
    return Outcome(
        name=name,
        count=count,
        growth_mib=growth_mib,
        processor_s=round(spent_s, 1),
        slowest_s=round(max(honest.seconds, default=0.0), 2),
        calls=honest.calls,
        failures=dict(honest.failures),
        alive=node.running,
        saw=saw,
        violations=violations,
    )


def find_errors(log: str) -> list[str]:
    """Return the first lines of a log that report an error, or that no logger wrote."""
    lines = [line for line in log.splitlines() if line.strip() and _is_error(line)]
    return [f"the node logged {line[:_SHOWN_CHARS]}" for line in lines[:_MOST_SHOWN]]


def _is_error(line: str) -> bool:
    if not line.startswith("{"):
        return True
    fields: dict[str, object] = json.loads(line)
    return fields.get("level") in ("error", "critical") or "exception" in fields


async def _watch_memory(process: psutil.Process, peak: list[int]) -> None:
    """Keep the most memory of a process until it has ended, or this is cancelled."""
    with suppress(psutil.Error):
        while True:
            peak[0] = max(peak[0], process.memory_info().rss)
            await asyncio.sleep(_SAMPLE_S)


def main() -> int:
    """Run the attacks that are named, or all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make hostile")
    names = sorted(ATTACKS)
    parser.add_argument("--attack", action="append", choices=names, help="one of them; repeatable")
    parser.add_argument("--count", type=int, help="how many calls, connections or requests")
    parser.add_argument("--short", action="store_true", help="as in the tests")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    given, is_right = parser.parse_args(), True
    for name in given.attack or names:
        count = given.count or (ATTACKS[name].short if given.short else ATTACKS[name].count)
        outcome = asyncio.run(run_attack(name, count, given.seed))
        print(outcome, flush=True)
        is_right = is_right and outcome.alive and not outcome.violations
    return int(not is_right)


if __name__ == "__main__":
    raise SystemExit(main())
