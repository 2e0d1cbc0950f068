"""The course of a soak: start, load, one fault after the other, calm, and the check."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from chaos.checker.clients import Follower, NoAnswerError, ask, read_holding, scan
from chaos.checker.growth import Rule, check_growth
from chaos.checker.logs import Log, check_logs
from chaos.checker.stores import Holding, Served, check_stores
from chaos.checker.violation import Violation
from chaos.node import NodeFailedError
from chaos.soak.machine import PATIENCE_S
from chaos.soak.nemesis import Planned, plan
from chaos.soak.sampler import Sampler
from chaos.soak.summary import FaultRecord, Summary
from chaos.soak.world import NAMES, PARTICIPANTS, World
from chaos.waiter import StuckError
from store.embedded.process import EmbeddedPostgresError

RULE: Final = Rule(warm_up_s=60.0, least_s=120.0)
"""A node fills its caches and pools in its first minute."""

_STUCK: Final = (
    StuckError,
    NoAnswerError,
    NodeFailedError,
    EmbeddedPostgresError,
    psycopg.Error,
    TimeoutError,
    subprocess.TimeoutExpired,
)
"""Errors that end a run early: a process that must run does not, or does not answer."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run; ``interval_s`` is the pause between two batches of a publisher."""

    minutes: float
    every_s: float
    seed: int
    faults: Sequence[str]
    interval_s: float


class Soak:
    """A run in an existing, empty directory; ``say`` prints a line."""

    def __init__(self, options: Options, directory: Path, say: Callable[[str], None]) -> None:
        self._options = options
        self._directory = directory
        self._say = say
        self._begun_s = time.monotonic()
        self.summary = Summary(options.seed)

    async def run(self) -> Summary:
        """Run to the end; all processes have ended then."""
        options = self._options
        async with AsyncExitStack() as stack:
            self._note("starting three nodes")
            world = World(stack, self._directory, options.seed)
            self.summary.left_out = world.left_out
            sampler = Sampler(partial(_targets, world), lambda: len(world.history.published))
            try:
                await world.start(options.seed, options.minutes, options.interval_s)
                sampling = asyncio.create_task(sampler.run())
                stack.callback(sampling.cancel)
                await self._inject_faults(world)
                await self._check(world, sampler)
            except _STUCK as error:
                self._break("stuck", f"{type(error).__name__}: {error}")
        self.summary.seconds = time.monotonic() - self._begun_s
        return self.summary

    async def _inject_faults(self, world: World) -> None:
        options, begun_s = self._options, time.monotonic()
        names = [name for name in options.faults if name not in world.left_out]
        for planned in plan(options.seed, names, options.minutes, options.every_s):
            await asyncio.sleep(begun_s + planned.at_s - time.monotonic())
            try:
                await world.wait_until_synced()
            except StuckError as error:
                # No further fault: the check names what is missing.
                self._break("not in sync", f"before {planned.fault.name}: {error}")
                return
            await self._inject(world, planned)
            if world.tasks.failure.done():
                self._break("ended", f"a client has failed: {world.tasks.failure.exception()!r}")
                return
        await asyncio.sleep(begun_s + options.minutes * 60 - time.monotonic())

    async def _inject(self, world: World, planned: Planned) -> None:
        fault, name = planned.fault, planned.victim
        victim = f"node {name}" if name in NAMES else name
        begun_s = time.monotonic()
        what = await fault.begin(world, name, world.rng)
        self._note(f"{fault.name}, {victim}: {what}")
        await asyncio.sleep(planned.length_s)
        await fault.end(world, name)
        ended_s = time.monotonic()
        recovered_s: float | None = None
        try:
            await world.wait_until_synced()
            if name in PARTICIPANTS:
                await world.waiter.until(f"{name} in sync", partial(_is_synced, world, name))
            recovered_s = time.monotonic() - ended_s
            self._note(f"in sync {recovered_s:.1f} s after the end of it")
        except StuckError as error:
            self._break("not in sync", f"after {fault.name}, {victim}: {error}")
        self.summary.faults.append(
            FaultRecord(
                fault.name,
                name,
                what,
                begun_s - self._begun_s,
                ended_s - self._begun_s,
                recovered_s,
            )
        )

    async def _check(self, world: World, sampler: Sampler) -> None:
        self._note("no more load; waiting until all is equal")
        await world.stop_publishers()
        loaded_s = time.monotonic() - self._begun_s
        logs = await self._end_participants(world)
        await self._attempt("stores are not equal", partial(_wait_until_equal, world))
        await self._attempt("followers are behind", partial(_wait_for_followers, world))
        self._note("checking")
        summary, history = self.summary, world.history
        holdings = [await _read(world, name) for name in NAMES]
        lives = sampler.lives()
        summary.violations += check_stores(history, holdings)
        summary.violations += check_logs(logs)
        summary.violations += check_growth(lives, RULE)
        summary.violations += [Violation("strange answer", each) for each in world.failures()]
        summary.published, summary.acknowledged = len(history.published), len(history.acks)
        served = {message.claimed for each in holdings for message in each.scanned}
        summary.lost_as_allowed = sum(
            history.may_be_lost(digest) for digest in history.acks.keys() - served
        )
        summary.stored = {each.node: len(each.scanned) for each in holdings}
        for confirms, answers in world.answers().items():
            summary.add_answers(f"publishers, {confirms} confirmations", answers, loaded_s)
        summary.participants = _summarize_participants(world)
        summary.add_usage(lives, RULE)
        for name, machine in world.machines.items():
            code, report = await machine.run_command("db", "check")
            if code != 0:
                summary.violations.append(Violation("db check", f"node {name}: {report}"))

    async def _end_participants(self, world: World) -> list[Log]:
        """Wait until every log is whole, or its losses are reported; then end all participants."""
        await world.crowd.stop_talk()
        what = "messages that participants lack or have not published"
        await self._attempt(
            "not in step", partial(world.waiter.until_none, what, world.crowd.count_due)
        )
        logs = [await each.read_log() for each in world.crowd]
        # Their sync messages would keep the stores from becoming equal.
        await world.crowd.leave()
        return logs

    async def _attempt(self, rule: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StuckError as error:
            self._break(rule, str(error))

    def _break(self, rule: str, sentence: str) -> None:
        self.summary.violations.append(Violation(rule, sentence))
        self._note(f"{rule}: {sentence}")

    def _note(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._begun_s:6.0f}s  {text}")


def _targets(world: World) -> dict[str, tuple[int, set[int]]]:
    return {
        f"node {name}": (machine.node.pid, machine.ports())
        for name, machine in world.machines.items()
    }


def _is_synced(world: World, participant: str) -> bool:
    return world.crowd[participant].look().synced


async def _wait_until_equal(world: World) -> None:
    """Wait until all nodes hold the same, except for what retention dropped at any of them."""
    horizon_ns = max(world.history.may_go_ns(world.store(name)) for name in NAMES)

    async def count_unequal() -> int:
        recent = [
            {each.claimed for each in await _scan(world, name) if each.timestamp_ns >= horizon_ns}
            for name in NAMES
        ]
        return len(set().union(*recent)) - len(set.intersection(*recent))

    await world.wait_until_synced()
    await world.waiter.until_none("messages that are not at all nodes", count_unequal)


async def _wait_for_followers(world: World) -> None:
    """Wait until every follower has what its node holds."""
    for name, follower in world.followers.items():
        stored = {each.claimed for each in await _scan(world, name)}
        await world.waiter.until_none(
            f"messages that the follower of node {name} lacks",
            partial(_count_lacking, follower, stored),
        )


async def _scan(world: World, name: str) -> list[Served]:
    return await ask(world.endpoint(name), partial(scan, timeout_s=PATIENCE_S), PATIENCE_S)


def _count_lacking(follower: Follower, stored: set[bytes]) -> int:
    return len(stored - follower.stored)


async def _read(world: World, name: str) -> Holding:
    follower = world.followers[name]
    return await read_holding(follower, world.store(name), world.history, PATIENCE_S)


def _summarize_participants(world: World) -> dict[str, object]:
    everyone = list(world.crowd)
    reasons = {re.sub(r"[\d.,]+", "N", reason) for each in everyone for reason in each.refusals}
    return {
        "sent": sum(len(each.sent) for each in everyone),
        "reported lost": sum(len(each.lost) for each in everyone),
        "refused at first": sum(each.refusals.total() for each in everyone),
        **({"refused for": sorted(reasons)} if reasons else {}),
    }
