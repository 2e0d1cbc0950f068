"""The course of a soak: start, load, one fault after the other, calm, and the check."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from chaos.checker.clients import Follower, NoAnswerError, ask, scan
from chaos.checker.logs import Log
from chaos.checker.stores import Served
from chaos.checker.violation import Violation
from chaos.node import NodeFailedError
from chaos.soak.growth import Sampler
from chaos.soak.nemesis import Planned, plan
from chaos.soak.scenario import NAMES, PARTICIPANTS, PATIENCE_S, SoakWorld
from chaos.waiter import StuckError
from store.embedded.process import EmbeddedPostgresError

_STUCK: Final = (
    StuckError,
    NoAnswerError,
    NodeFailedError,
    EmbeddedPostgresError,
    AssertionError,
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


@dataclass(slots=True)
class Summary:
    """The outcome of a run.

    Attributes:
        faults: what was injected, with times in seconds of the run, and the seconds until all nodes
            were in sync again, None: never.
        lost_as_allowed: messages whose acknowledgement no longer binds.
        stored: the number of messages at each node in the end.
        outcomes: how often publishers were given each outcome.
        peaks: the most that each process used of each measure.
    """

    seed: int
    seconds: float = 0.0
    faults: list[dict[str, object]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    published: int = 0
    acknowledged: int = 0
    lost_as_allowed: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    participants: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as an object."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "violations": list(map(str, self.violations)), "ok": not self.violations}


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
            world = SoakWorld(stack, self._directory, options.seed)
            self.summary.left_out = world.left_out
            sampler = Sampler(partial(_targets, world), lambda: len(world.history.published))
            try:
                await world.start(options.minutes, options.interval_s)
                sampling = asyncio.create_task(sampler.run())
                stack.callback(sampling.cancel)
                await self._inject_faults(world)
                await self._check(world, sampler)
            except _STUCK as error:
                self._break("stuck", f"{type(error).__name__}: {error}")
        self.summary.seconds = time.monotonic() - self._begun_s
        return self.summary

    async def _inject_faults(self, world: SoakWorld) -> None:
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

    async def _inject(self, world: SoakWorld, planned: Planned) -> None:
        fault, name = planned.fault, planned.victim
        begun_s = time.monotonic()
        what = await fault.begin(world, name, world.rng)
        self._note(f"{fault.name}, {name}: {what}")
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
            self._break("not in sync", f"after {fault.name}, {name}: {error}")
        self.summary.faults.append(
            {
                "fault": fault.name,
                "victim": name,
                "what": what,
                "begun_s": begun_s - self._begun_s,
                "ended_s": ended_s - self._begun_s,
                "recovered_s": recovered_s,
            }
        )

    async def _check(self, world: SoakWorld, sampler: Sampler) -> None:
        self._note("no more load; waiting until all is equal")
        await world.stop_publishers()
        logs = await self._end_participants(world)
        await self._attempt("stores are not equal", partial(_wait_until_equal, world))
        await self._attempt("followers are behind", partial(_wait_for_followers, world))
        self._note("checking")
        summary, history = self.summary, world.history
        holdings = await world.read_holdings(PATIENCE_S)
        summary.violations += world.check(holdings, logs)
        summary.violations += sampler.check()
        summary.violations += [Violation("strange answer", each) for each in world.failures()]
        summary.published, summary.acknowledged = len(history.published), len(history.acks)
        served = {message.claimed for each in holdings for message in each.scanned}
        summary.lost_as_allowed = sum(
            history.may_be_lost(digest) for digest in history.acks.keys() - served
        )
        summary.stored = {each.node: len(each.scanned) for each in holdings}
        summary.outcomes = dict(world.outcomes())
        summary.participants = {
            "sent": sum(len(each.sent) for each in logs),
            "reported lost": sum(len(each.lost) for each in logs),
        }
        summary.peaks = sampler.peaks()
        for name, machine in world.machines.items():
            code, report = await machine.run_command("db", "check")
            if code != 0:
                summary.violations.append(Violation("db check", f"node {name}: {report}"))

    async def _end_participants(self, world: SoakWorld) -> list[Log]:
        """Wait until every log is whole, or its losses are reported; then end all participants."""
        await world.stop_talk()
        what = "messages that participants lack or have not published"
        await self._attempt("not in step", partial(world.waiter.until_none, what, world.count_due))
        return await world.read_logs()

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


def _targets(world: SoakWorld) -> dict[str, tuple[int, set[int]]]:
    return {
        f"node {name}": (machine.node.pid, machine.ports())
        for name, machine in world.machines.items()
    }


def _is_synced(world: SoakWorld, participant: str) -> bool:
    return world.participants[participant].look().synced


async def _wait_until_equal(world: SoakWorld) -> None:
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


async def _wait_for_followers(world: SoakWorld) -> None:
    """Wait until every follower has what its node holds."""
    for name, follower in world.followers.items():
        stored = {each.claimed for each in await _scan(world, name)}
        await world.waiter.until_none(
            f"messages that the follower of node {name} lacks",
            partial(_count_lacking, follower, stored),
        )


async def _scan(world: SoakWorld, name: str) -> list[Served]:
    return await ask(world.endpoint(name), partial(scan, timeout_s=PATIENCE_S), PATIENCE_S)


def _count_lacking(follower: Follower, stored: set[bytes]) -> int:
    return len(stored - follower.stored)
