"""The course of a run: start, load, one fault after the other, calm, and the reckoning."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from bench.soak.checker.asking import NoAnswerError, held, scan, scan_hashes
from bench.soak.checker.flatness import Rule, check_flat
from bench.soak.checker.following import Follower
from bench.soak.checker.participants import check_participants
from bench.soak.checker.stores import Holding, check_stores
from bench.soak.checker.verdict import Violation
from bench.soak.load import Clients, Participant, participants, settle
from bench.soak.machines import PATIENCE_S, StuckError, wait_until
from bench.soak.plan import Planned, plan
from bench.soak.sampling import Sampler
from bench.soak.summary import Befallen, Summary
from bench.soak.world import NAMES, World, open_world
from store.embedded.process import EmbeddedPostgresError
from tests.support.node import NodeFailed

Say = Callable[[str], None]
RULE = Rule(warm_up_s=60.0, least_s=120.0)
"""A node fills its caches and pools in its first minute."""

_STUCK = (
    StuckError,
    NoAnswerError,
    NodeFailed,
    EmbeddedPostgresError,
    psycopg.Error,
    TimeoutError,
    subprocess.TimeoutExpired,
)
"""What ends a run before its time, since a process that must run does not, or does not answer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run: ``interval_s`` is the pause between two batches of a publisher."""

    minutes: float
    every_s: float
    seed: int
    faults: Sequence[str]
    interval_s: float


class Soak:
    """One run, in a directory that is there and empty."""

    def __init__(self, wanted: Wanted, directory: Path, say: Say) -> None:
        self._wanted = wanted
        self._directory = directory
        self._say = say
        self._begun_s = time.monotonic()
        self.summary = Summary(wanted.seed)

    def run(self) -> Summary:
        """Run to the end; every process that was started is gone then."""
        wanted = self._wanted
        with ExitStack() as stack:
            self._note("starting three nodes")
            world = open_world(stack, self._directory, wanted.seed, wanted.minutes)
            self.summary.left_out = world.left_out
            clients = Clients(world, wanted.seed, wanted.interval_s)
            talking = stack.enter_context(participants(world, self._directory / "participants"))
            sampler = Sampler(
                lambda: _targets(world, talking), lambda: len(world.history.published)
            )
            stack.enter_context(sampler.running())
            stack.enter_context(clients.running())
            try:
                self._under_fire(world, talking)
                self._reckon(world, clients, talking, sampler)
            except _STUCK as error:
                self._broken("stuck", f"{type(error).__name__}: {error}")
        self.summary.seconds = time.monotonic() - self._begun_s
        return self.summary

    def _under_fire(self, world: World, talking: Sequence[Participant]) -> None:
        wanted, begun_s = self._wanted, time.monotonic()
        names = [name for name in wanted.faults if name not in world.left_out]
        for planned in plan(wanted.seed, names, wanted.minutes, wanted.every_s):
            time.sleep(max(0.0, begun_s + planned.at_s - time.monotonic()))
            try:
                world.synced()
            except StuckError as error:
                # No further fault: what is missing is for the reckoning to name.
                self._broken("not in sync", f"before {planned.fault.name}: {error}")
                return
            self._befall(world, planned)
            for each in talking:
                if each.process.poll() is not None:
                    self._broken("ended", f"participant {each.name} has ended: see its log")
        time.sleep(max(0.0, begun_s + wanted.minutes * 60 - time.monotonic()))

    def _befall(self, world: World, planned: Planned) -> None:
        fault, name = planned.fault, planned.victim
        whom = f"node {name}" if name in NAMES else name
        begun_s = time.monotonic()
        what = fault.begin(world, name, world.dice)
        self._note(f"{fault.name}, {whom}: {what}")
        time.sleep(planned.hold_s)
        fault.end(world, name)
        ended_s = time.monotonic()
        recovered_s: float | None = None
        try:
            recovered_s = world.recovered(name)
            self._note(f"in sync {recovered_s:.1f} s after the end of it")
        except StuckError as error:
            self._broken("not in sync", f"after {fault.name}, {whom}: {error}")
        times_s = begun_s - self._begun_s, ended_s - self._begun_s, recovered_s
        self.summary.faults.append(Befallen(fault.name, name, what, *times_s))

    def _reckon(
        self,
        world: World,
        clients: Clients,
        talking: Sequence[Participant],
        sampler: Sampler,
    ) -> None:
        self._note("no more load; waiting until all is equal")
        clients.stop_publishing()
        loaded_s = time.monotonic() - self._begun_s
        for each in talking:
            each.stop()
        for late in settle(talking, PATIENCE_S):
            self._broken("not in step", late)
        logs = [each.log() for each in talking]
        # They would go on to say that they are there, and no two looks at nodes would be equal.
        for each in talking:
            each.close()
        self._attempt("stores are not equal", lambda: _equal(world))
        self._attempt("followers are behind", lambda: _followed(world, clients))
        self._note("checking")
        summary, history = self.summary, world.history
        holdings = [_holding(world, clients, name) for name in NAMES]
        summary.violations += check_stores(history, holdings)
        summary.violations += check_participants(logs)
        lives = sampler.lives()
        summary.violations += check_flat(lives, RULE)
        summary.violations += [Violation("strange answer", each) for each in clients.strange()]
        summary.published, summary.acknowledged = len(history.published), len(history.acks)
        served = {message.claimed for each in holdings for message in each.scanned}
        summary.lost_as_allowed = sum(
            history.may_be_lost(digest) for digest in history.acks.keys() - served
        )
        summary.held = {each.node: len(each.scanned) for each in holdings}
        for confirms, tally in clients.tallies.items():
            summary.add_tally(f"publishers, {confirms} confirmations", tally, loaded_s)
        summary.participants = _told(talking)
        summary.add_usage(lives, RULE)
        summary.violations += _checked(world)

    def _attempt(self, rule: str, work: Callable[[], None]) -> None:
        try:
            work()
        except StuckError as error:
            self._broken(rule, str(error))

    def _broken(self, rule: str, sentence: str) -> None:
        self.summary.violations.append(Violation(rule, sentence))
        self._note(f"{rule}: {sentence}")

    def _note(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._begun_s:6.0f}s  {text}")


def _targets(world: World, talking: Sequence[Participant]) -> dict[str, tuple[int, set[int]]]:
    nodes = {
        f"node {name}": (machine.node.process.pid, machine.ports())
        for name, machine in world.machines.items()
    }
    return nodes | {each.name: (each.process.pid, set[int]()) for each in talking}


def _equal(world: World) -> None:
    """Wait until all nodes hold the same, but for what retention dropped at any of them."""
    horizon_ns = max(world.history.may_go_ns(world.store(name)) for name in NAMES)

    def equal() -> bool:
        found = [_recent(world, name, horizon_ns) for name in NAMES]
        return all(each == found[0] for each in found)

    world.synced()
    wait_until("three equal stores", equal)


def _recent(world: World, name: str, horizon_ns: int) -> set[bytes]:
    published = world.history.published
    return {
        digest
        for digest in scan_hashes(world.machines[name].node.listen, PATIENCE_S)
        if digest not in published or published[digest].timestamp_ns >= horizon_ns
    }


def _followed(world: World, clients: Clients) -> None:
    """Wait until every follower has what its node holds."""
    for follower in clients.followers:
        address = world.machines[follower.node].node.listen
        there = scan_hashes(address, PATIENCE_S)
        wait_until(f"the follower of node {follower.node}", partial(_has, follower, there))


def _has(follower: Follower, wanted: set[bytes]) -> bool:
    return wanted.issubset(list(follower.hashes))


def _holding(world: World, clients: Clients, name: str) -> Holding:
    address = world.machines[name].node.listen
    (follower,) = [each for each in clients.followers if each.node == name]
    return Holding(
        name,
        world.store(name),
        scan(address, PATIENCE_S),
        held(address, list(world.history.published), PATIENCE_S),
        list(follower.hashes),
    )


def _checked(world: World) -> list[Violation]:
    """``storenode db check`` of every database."""
    found = []
    for name, machine in world.machines.items():
        code, report = machine.storenode("db", "check")
        if code != 0:
            found.append(Violation("db check", f"node {name}: {report}"))
    return found


def _told(talking: Sequence[Participant]) -> dict[str, object]:
    reasons = {re.sub(r"[\d.,]+", "N", why) for each in talking for why in each.not_stored}
    return {
        "said": sum(len(each.said) for each in talking),
        "lost by name": sum(len(each.lost) for each in talking),
        "refused at first": sum(sum(each.not_stored.values()) for each in talking),
        **({"refused for": sorted(reasons)} if reasons else {}),
    }
