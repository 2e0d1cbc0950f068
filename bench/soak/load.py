"""The clients: publishers and followers in a thread, participants in processes of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from bench.soak.checker.following import Follower
from bench.soak.checker.history import Ack, Published
from bench.soak.checker.participants import Entry, Log
from bench.soak.checker.publishing import Publisher, Tally
from bench.soak.machines import PATIENCE_S, ROOT, StuckError, wait_until
from bench.soak.world import NAMES, PARTICIPANTS, World

PACE_S: Final = 1.5
"""Mean seconds between two messages of a participant."""

_T = TypeVar("_T")


class Clients:
    """Publishers of three kinds at each node, and a follower of each, all in one event loop.

    The kinds wait for no confirmation, for one, and for that of every other store.
    """

    def __init__(self, world: World, seed: int, interval_s: float) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients")
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.tallies = {confirms: Tally() for confirms in range(len(NAMES))}
        self.followers = [Follower(name, world.client_links[name].address) for name in NAMES]
        self._publishers = [
            Publisher(
                f"{name}/{confirms}",
                world.client_links[name].address,
                partial(world.store, name),
                world.history,
                tally,
                Random(f"{seed}/{name}/{confirms}"),
                confirms,
                interval_s,
            )
            for name in NAMES
            for confirms, tally in self.tallies.items()
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish and follow for the length of a ``with`` block, or until `stop_publishing`."""
        self._thread.start()
        try:
            self._do(self._begin())
            yield
        finally:
            self._do(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def stop_publishing(self) -> None:
        """End the publishers once each is answered; followers go on."""
        self._do(self._stopped())

    def strange(self) -> list[str]:
        """Answers that no client should ever get."""
        found = [each for tally in self.tallies.values() for each in tally.strange]
        return found + [each for follower in self.followers for each in follower.strange]

    async def _begin(self) -> None:
        self._tasks = [asyncio.create_task(each.run(self._stop)) for each in self._publishers]
        self._following = [asyncio.create_task(each.run()) for each in self.followers]

    async def _stopped(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _end(self) -> None:
        for task in (*self._tasks, *self._following):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._following, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


class Participant:
    """A process of `bench.soak.participant`, and all that it has told in all of its lives."""

    def __init__(self, world: World, directory: Path, name: str) -> None:
        self.name = name
        self.channel = PARTICIPANTS[name]
        self.said: dict[str, str] = {}
        self.lost: set[str] = set()
        self.not_stored = Counter[str]()
        self.state: dict[str, Any] = {}
        self._world = world
        self._directory = directory
        number = list(PARTICIPANTS).index(name)
        order = NAMES[number % len(NAMES) :] + NAMES[: number % len(NAMES)]
        self._nodes = {world.client_links[node].address: node for node in order}
        self._told = Counter[str]()
        self._saved: set[str] = set()
        self._begin()

    def kill(self) -> None:
        """SIGKILL; what it has told before is read."""
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def resume(self) -> None:
        """Begin another life on the state of the last one."""
        before = self._told["joined"]
        self._begin()
        wait_until(f"participant {self.name} to join", lambda: self._told["joined"] > before)

    def stop(self) -> None:
        """Have it say nothing more."""
        self._ask("stop", "stopped")

    def looks(self) -> dict[str, Any]:
        """How it is now."""
        self._ask("state", "length")
        return self.state

    def log(self) -> Log:
        """What it has at the end."""
        path = self._directory / f"{self.name}.json"
        self._ask(str(path), "written")
        entries = [Entry(*row) for row in json.loads(path.read_text())]
        return Log(self.name, self.channel, self.said, entries, frozenset(self.lost))

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(60.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()

    def _begin(self) -> None:
        options = {
            "nodes": ",".join(self._nodes),
            "channel": self.channel,
            "name": self.name,
            "pace": PACE_S,
            "state": self._directory / f"{self.name}.db",
            # What was said and not saved in an earlier life has taken a number too.
            "first": self._told["says"],
        }
        line = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with (self._directory / f"{self.name}.log").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.soak.participant", *line],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self.process,), name=self.name)
        self._reader.start()

    def _ask(self, line: str, answer: str) -> None:
        before = self._told[answer]
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise StuckError(f"participant {self.name} has ended: {error}") from error
        wait_until(f"participant {self.name} to answer", lambda: self._told[answer] > before)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                # It was killed in the middle of the line, and so before it did what that says.
                return
            told = json.loads(line)
            self._take(told)
            self._told.update(told.keys())

    def _take(self, told: dict[str, Any]) -> None:
        if "joined" in told:
            # What had been said and was not saved when it was killed has never left it.
            kept = self._saved.union(told["own"])
            self.said = {name: said for name, said in self.said.items() if name in kept}
        elif "saved" in told:
            self._saved.add(told["saved"])
        elif "publishes" in told:
            self._world.history.publish(
                (bytes.fromhex(digest), Published(bytes.fromhex(mark), time_ns, self.name))
                for digest, mark, time_ns in told["publishes"]
            )
        elif "held" in told:
            store = self._world.store(self._nodes[told["node"]])
            held = [bytes.fromhex(digest) for digest in told["held"]]
            self._world.history.acknowledge(held, Ack(store, time.monotonic(), 0))
        elif "says" in told:
            self.said[told["says"]] = told["content"]
        elif "lost" in told:
            self.lost.update(told["lost"])
        elif "not_stored" in told:
            self.not_stored[told["reason"]] += 1
        elif "length" in told:
            self.state = told


@contextmanager
def participants(world: World, directory: Path) -> Iterator[Sequence[Participant]]:
    """All participants, for the length of a ``with`` block."""
    directory.mkdir()
    try:
        for name in PARTICIPANTS:
            world.participants[name] = Participant(world, directory, name)
        yield tuple(world.participants.values())
    finally:
        for each in world.participants.values():
            each.close()


def settle(made: Sequence[Participant], patience_s: float) -> list[str]:
    """Wait until every log is whole, or its losses are named; whose is not, and how it is."""
    deadline = time.monotonic() + patience_s

    def whole(each: Participant) -> bool:
        said = sum(len(other.said) for other in made if other.channel == each.channel)
        state = each.looks()
        return (
            state["length"] + len(each.lost) >= said
            and state["synced"]
            and not state["unpublished"]
        )

    late = []
    for each in made:
        try:
            wait_until(each.name, partial(whole, each), max(0.0, deadline - time.monotonic()))
        except StuckError:
            late.append(f"{each.name}: {each.state}")
    return late
