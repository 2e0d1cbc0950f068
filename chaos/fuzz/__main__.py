"""Send broken requests to every method of a node, made from the descriptors of reflection.

The node has an embedded Postgres and default options; a count and a seed decide what is sent. A run
fails when a call ends INTERNAL, UNKNOWN or DATA_LOSS, when the node dies, logs an error, does not
serve an honest client, or has more memory at the end than after a tenth of the requests by more
than its caches explain. A finding is printed with what was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import psutil

from chaos.attacks.honest import HonestClient
from chaos.attacks.peers import opening
from chaos.attacks.run import run_node, target_of
from chaos.fuzz.caller import Caller, Method, Results, list_methods
from chaos.node import PROGRAM, NodeProcess
from chaos.waiter import Waiter

MIB: Final = 1024 * 1024
MOST_GROWTH_MIB: Final = 256
"""The index, the topics, and what gossip and the allocator keep grow with what is stored."""

MOST_SHOWN: Final = 5

_AT_ONCE: Final = 48
_HONEST_CALLS: Final = 6
_PATIENCE_S: Final = 120.0
_CHANNELS: Final = 4
_ROUND: Final = 5_000
_OPTIONS: Final = ("--log-level", "warning", "--log-format", "json", "--gossip", "on")


@dataclass(slots=True)
class Result:
    """The outcome of a run: ``faults`` are sentences, memory is in MiB of the node's process."""

    calls: Results = field(default_factory=Results)
    faults: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def growth_mib(self) -> float:
        """The growth from a tenth of the requests to the end."""
        memory = self.memory_mib
        return memory[-1] - memory[len(memory) // 10] if memory else 0.0


async def fuzz(
    count: int,
    seed: str,
    only: Sequence[str] = (),
    program: Sequence[str] = PROGRAM,
    options: Sequence[str] = (),
) -> Result:
    """Send requests to a node of its own.

    Args:
        count: the number of requests.
        seed: decides what is sent.
        only: parts of the paths of methods; by default all methods.
        program: the node's command.
        options: further options of the node.
    """
    async with run_node((*_OPTIONS, *options), program) as node:
        return await _fuzz(node, count, seed, only)


async def _fuzz(node: NodeProcess, count: int, seed: str, only: Sequence[str]) -> Result:
    result, began_s = Result(), time.monotonic()
    addresses = (node.ready["listen"], node.ready["admin"])
    found = [
        each for address in addresses for each in await asyncio.to_thread(list_methods, address)
    ]
    chosen = [each for each in found if not only or any(part in each.path for part in only)]
    async with AsyncExitStack() as stack:
        channels = {
            address: [
                # Else channels with the same address and options share one connection.
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
                )
                for _ in range(_CHANNELS)
            ]
            for address in addresses
        }
        caller = Caller(channels, seed)
        result.calls = caller.results
        for each in chosen:
            if each.path.endswith("/Reconcile"):
                caller.add_sample(each, opening())
        process = psutil.Process(node.pid)
        numbers = itertools.count()
        while result.calls.requests < count and not result.faults:
            await _round(caller, chosen, numbers, min(_ROUND, count - result.calls.requests))
            result.faults += await _after(node)
            if node.running:
                result.memory_mib.append(process.memory_info().rss / MIB)
            result.faults += result.calls.findings
            sys.stderr.write(f"{result.calls.requests:,} requests, {result.memory_mib[-1:]} MiB\n")
    if result.growth_mib > MOST_GROWTH_MIB:
        result.faults.append(f"the node's memory grew by {result.growth_mib:,.0f} MiB")
    result.seconds = time.monotonic() - began_s
    return result


async def _round(
    caller: Caller, chosen: Sequence[Method], numbers: itertools.count[int], requests: int
) -> None:
    results = caller.results
    last = results.requests + requests

    async def work() -> None:
        while results.requests < last:
            number = next(numbers)
            await caller.call(chosen[number % len(chosen)], number)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


async def _after(node: NodeProcess) -> list[str]:
    """Return what is wrong with the node."""
    if not node.running:
        return [f"the node died: {node.log_tail()}"]
    lines = [line for line in node.log_path.read_text().splitlines() if line.strip()]
    wrong = [line for line in lines if not line.startswith("{") or _is_error(line)]
    if wrong:
        return [f"the node logged: {line[:2_000]}" for line in wrong[:5]]
    honest, ended = HonestClient(target_of(node)), asyncio.Event()
    asking = asyncio.create_task(honest.run(ended))
    await Waiter(_PATIENCE_S).until("an honest client", lambda: honest.calls >= _HONEST_CALLS)
    ended.set()
    await asking
    failures = [f"an honest call failed: {what}" for what in honest.failures]
    return failures + [str(each) for each in await honest.judge()]


def _is_error(line: str) -> bool:
    fields: dict[str, Any] = json.loads(line)
    return fields.get("level") in ("error", "critical") or "exception" in fields


def main() -> int:
    """Run, and print the outcome."""
    given = _arguments()
    result = asyncio.run(fuzz(given.count, given.seed, given.method))
    calls = result.calls
    codes = ", ".join(f"{count:,} {code}" for code, count in calls.codes.most_common())
    print(
        f"seed {given.seed}: {calls.requests:,} requests in {result.seconds:,.0f} s; calls:"
        f" {codes}; memory {result.memory_mib[0]:.0f} to"
        f" {result.memory_mib[-1]:.0f} MiB; faults: {len(result.faults)}"
    )
    for each in result.faults[:MOST_SHOWN]:
        print(each)
    return int(bool(result.faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="make fuzz")
    parser.add_argument("--count", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument(
        "--seed", default=str(random.randrange(10**6)), help="anything; default: a random one"
    )
    parser.add_argument(
        "--method", action="append", default=[], help="a part of its path; repeatable; default: all"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
