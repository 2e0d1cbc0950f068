"""Run three nodes under load and faults, and check that all rules hold; see docs/soak.md.

The exit code is 0 if they do, and 1 if a rule is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import psycopg

from chaos.checker.clients import NoAnswerError
from chaos.checker.history import Violation
from chaos.node import NodeFailedError
from chaos.soak.growth import Sampler
from chaos.soak.nemesis import FAULTS, Planned, plan
from chaos.soak.world import PARTICIPANTS, PATIENCE_S, SoakWorld
from chaos.tasks import StuckError
from store.embedded.process import EmbeddedPostgresError
from storenode.cli.errors import mute_library

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


class Soak:
    """A run in an existing, empty directory.

    Attributes:
        violations: the rules that are broken.
        summary: what is printed in the end. ``faults``: what was injected, with times in seconds
            of the run, and the seconds until all nodes were in sync again, None: never.
            ``lost_as_allowed``: messages whose acknowledgement no longer binds. ``stored``: the
            number of messages at each node. ``outcomes``: how often publishers were given each
            outcome. ``peaks``: the most that each process used of each measure.
    """

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._begun_s = time.monotonic()
        self._faults: list[dict[str, object]] = []
        self.violations: list[Violation] = []
        self.summary: dict[str, Any] = {"seed": options.seed, "faults": self._faults}

    async def run(self) -> None:
        """Run to the end; all processes have ended then."""
        options = self._options
        async with AsyncExitStack() as stack:
            self._note("starting three nodes")
            world = SoakWorld(stack, self._directory, options.seed)
            self.summary["left_out"] = world.left_out
            sampler = Sampler(partial(_targets, world), lambda: len(world.history.published))
            try:
                await world.start(options.minutes, 1.0 / options.rate)
                sampling = asyncio.create_task(sampler.run())
                stack.callback(sampling.cancel)
                await self._inject_faults(world)
                await self._check(world, sampler)
            except _STUCK as error:
                self._break("stuck", f"{type(error).__name__}: {error}")
        self.summary["seconds"] = self._now_s()
        self.summary["violations"] = list(map(str, self.violations))
        self.summary["ok"] = not self.violations

    async def _inject_faults(self, world: SoakWorld) -> None:
        options, begun_s = self._options, time.monotonic()
        names = [name for name in options.fault or FAULTS if name not in world.left_out]
        for planned in plan(options.seed, names, options.minutes, options.every):
            await asyncio.sleep(begun_s + planned.at_s - time.monotonic())
            try:
                await world.wait_until_synced()
            except StuckError as error:
                # No further fault: the check names what is missing.
                self._break("not in sync", f"before {planned.name}: {error}")
                return
            await self._inject(world, planned)
            if world.tasks.failure.done():
                self._break("ended", f"a client has failed: {world.tasks.failure.exception()!r}")
                return
        await asyncio.sleep(begun_s + options.minutes * 60 - time.monotonic())

    async def _inject(self, world: SoakWorld, planned: Planned) -> None:
        name, victim, begun_s = planned.name, planned.victim, self._now_s()
        async with FAULTS[name].injected(world, victim, world.rng) as what:
            self._note(f"{name}, {victim}: {what}")
            await asyncio.sleep(planned.length_s)
        ended_s, recovered_s = self._now_s(), None
        try:
            await world.wait_until_synced()
            if victim in PARTICIPANTS:
                participant = world.participants[victim]
                await world.waiter.until_none(victim, lambda: not participant.look().synced)
            recovered_s = self._now_s() - ended_s
            self._note(f"in sync {recovered_s:.1f} s after the end of it")
        except StuckError as error:
            self._break("not in sync", f"after {name}, {victim}: {error}")
        self._faults.append(
            {
                "fault": name,
                "victim": victim,
                "what": what,
                "begun_s": begun_s,
                "ended_s": ended_s,
                "recovered_s": recovered_s,
            }
        )

    async def _check(self, world: SoakWorld, sampler: Sampler) -> None:
        self._note("no more load; waiting until all is equal")
        await world.settle()
        for each in world.given_up:
            self._break("not equal", str(each))
        self._note("checking")
        self.violations += await world.check(PATIENCE_S)
        self.violations += sampler.check()
        self.violations += [Violation("strange answer", each) for each in world.failures()]
        for name, machine in world.machines.items():
            code, report = await machine.run_command("db", "check")
            if code != 0:
                self.violations.append(Violation("db check", f"node {name}: {report}"))
        history, holdings, logs = world.history, world.holdings, world.logs
        served = {message.claimed for each in holdings for message in each.scanned}
        gone = history.acks.keys() - served
        self.summary |= {
            "published": len(history.published),
            "acknowledged": len(history.acks),
            "lost_as_allowed": sum(map(history.may_be_lost, gone)),
            "stored": {each.node: len(each.scanned) for each in holdings},
            "outcomes": sum((each.outcomes for each in world.publishers), Counter()),
            "participants": {
                "sent": sum(len(each.sent) for each in logs),
                "reported lost": sum(len(each.lost) for each in logs),
            },
            "peaks": sampler.peaks(),
        }

    def _break(self, rule: str, sentence: str) -> None:
        self.violations.append(Violation(rule, sentence))
        self._note(f"{rule}: {sentence}")

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _note(self, text: str) -> None:
        _say(f"{self._now_s():6.0f}s  {text}")


def _targets(world: SoakWorld) -> Mapping[str, tuple[int, set[int]]]:
    return {
        f"node {name}": (machine.node.pid, machine.ports())
        for name, machine in world.machines.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    options = _parser().parse_args(arguments)
    # Participants log every break that a fault causes.
    mute_library()
    # As Ctrl-C does: all processes are ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="storenode-soak-"))
    _say(f"seed {options.seed}, in {directory}")
    is_kept = True
    try:
        soak = Soak(options, directory)
        asyncio.run(soak.run())
        is_kept = options.keep or bool(soak.violations)
        found = json.dumps(soak.summary, indent=2)
        _say(found)
        if options.json is not None:
            options.json.write_text(found + "\n")
        return int(bool(soak.violations))
    except KeyboardInterrupt:
        _say("interrupted")
        is_kept = options.keep
        return 130
    finally:
        if is_kept:
            _say(f"logs and data are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, prog="make soak")
    parser.add_argument(
        "--minutes", type=_positive, default=20.0, help="length of the run; default: 20"
    )
    parser.add_argument(
        "--every", type=_positive, default=120.0, help="seconds from fault to fault; default: 120"
    )
    parser.add_argument(
        "--fault",
        action="append",
        choices=tuple(FAULTS),
        metavar="FAULT",
        help=f"only this kind; repeatable; default: all, {', '.join(FAULTS)}",
    )
    parser.add_argument(
        "--rate",
        type=_positive,
        default=2.0,
        help="batches a second of each of the nine publishers, of 1 to 10 messages; default: 2",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SystemRandom().randrange(10**6),
        help="repeats the faults of a run; default: by chance",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there too")
    parser.add_argument("--keep", action="store_true", help="keep logs and data in any case")
    return parser


def _positive(text: str) -> float:
    if (value := float(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
