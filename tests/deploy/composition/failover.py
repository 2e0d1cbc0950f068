"""Tries failovers of the composition's databases by Patroni, and says what publishers saw.

As root, with `etcd`, `etcdctl`, `patroni`, `patronictl` and Postgres's programs in the path:
``python -m tests.deploy.composition.failover``. It takes about five minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from storenode.connection.channel import TlsIdentity
from tests.deploy.composition.arrangement import COMPOSE, Composition
from tests.faults.processes import until
from tests.support.cluster import kill_machine
from tests.support.ledger import Ledger, Publisher, check_node, publishing
from tests.support.node import clean_environment
from tests.support.polling import eventually

MEMBERS: Final = ("db-a-1", "db-a-2")
PATHS: Final = {
    "/var/lib/postgresql/data": "data",
    "/var/run/postgresql": "socket",
    "/etc/patroni": "patroni",
    "/usr/local/bin": "patroni",
    "/etcd-data": "etcd",
}
GOSU: Final = (
    '#!/bin/sh\nuser=$1; shift\nexec setpriv --reuid "$user" --regid "$user" --init-groups "$@"\n'
)
_EVENTS: Final = ("database_", "commits_lost")


class Databases:
    """The two servers of a store under Patroni, and etcd, as their services and images say."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.tools = composition.directory / "tools"
        self.tools.mkdir()
        (self.tools / "gosu").write_text(GOSU)
        (self.tools / "gosu").chmod(0o755)
        self._start_etcd()
        for member in MEMBERS:
            self._prepare(member)

    def start(self, member: str) -> None:
        """Start Patroni on a member, and with it Postgres."""
        place = self._composition.place(member)
        self._processes[member] = self._composition.launch(
            member,
            ["sh", str(place / "patroni/start.sh")],
            PATH=f"{self.tools}:{os.environ['PATH']}",
            PATRONI_POSTGRESQL_BIN_DIR=str(Path(shutil.which("pg_rewind") or "").parent),
        )

    def patroni(self, member: str) -> psutil.Process:
        """Return the process of Patroni."""
        return psutil.Process(self._processes[member].pid)

    def postmaster(self, member: str) -> psutil.Process:
        """Return the process of Postgres."""
        path = self._composition.place(member) / "data/node/postmaster.pid"
        return psutil.Process(int(path.read_text().split()[0]))

    def members(self, asked: str) -> dict[str, tuple[str, str, int]]:
        """Return role, state and timeline of each member, by one of them; empty without answer."""
        url = f"http://{self._composition.address(asked, 8008)}/cluster"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["members"]
        except OSError:
            return {}
        return {
            each["name"]: (each["role"], each["state"], each.get("timeline", 0)) for each in found
        }

    def is_whole(self, leader: str, standby: str) -> bool:
        """Return True if these two are leader and synchronous standby."""
        found = self.members(leader)
        return found.get(leader, ("",))[0] == "leader" and found.get(standby, ("", ""))[:2] == (
            "sync_standby",
            "streaming",
        )

    def times_synchronous(self, leader: str) -> int:
        """Return how often a leader has said that its standby may be promoted from now on."""
        return self._composition.log(leader).count("Synchronous standby status assigned to ['")

    def switch(self, leader: str, other: str) -> None:
        """Ask for a switchover."""
        asked = json.dumps({"leader": leader, "candidate": other}).encode()
        url = f"http://{self._composition.address(leader, 8008)}/switchover"
        with urllib.request.urlopen(url, asked):
            pass

    def leads(self, member: str) -> bool:
        """Return True if it says that it is the leader."""
        return self.members(member).get(member, ("",))[0] == "leader"

    def _start_etcd(self) -> None:
        composition = self._composition
        service = composition.services["etcd"]
        peers = f"http://{composition.address('etcd', 2380)}"
        own = (
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=etcd={peers}",
        )
        command = [self._in_place("etcd", part) for part in service["command"]]
        (composition.place("etcd") / "etcd").mkdir(parents=True, mode=0o700)
        composition.launch("etcd", [*command, *own])
        env = clean_environment(
            ETCDCTL_API="3", ETCDCTL_ENDPOINTS=composition.address("etcd", 2379)
        )
        test = service["healthcheck"]["test"][1:]
        eventually(
            lambda: subprocess.run(test, env=env, capture_output=True, check=False).returncode == 0
        )

    def _prepare(self, member: str) -> None:
        composition, place = self._composition, self._composition.place(member)
        composition.place_secrets(member)
        for name in PATHS.values():
            (place / name).mkdir(exist_ok=True)
        shutil.chown(place / "socket", "postgres", "postgres")
        for source in ("start.sh", "bootstrap.sh", "patroni.yml"):
            path = place / "patroni" / source
            path.write_text(self._in_place(member, (COMPOSE / "postgres" / source).read_text()))
            path.chmod(0o755)

    def _in_place(self, service: str, text: str) -> str:
        text = self._composition.in_place(service, text.replace("$PATRONI_NAME", service))
        for path, name in PATHS.items():
            text = text.replace(path, str(self._composition.place(service) / name))
        return text


class Trial:
    """A node on these databases, a publisher, and what is seen of each fault."""

    def __init__(self, composition: Composition, databases: Databases) -> None:
        self.databases = databases
        self._composition = composition
        self.node = composition.address("node-a", 7420)
        self._watched = composition.address("node-a", 7422)
        self._token = (composition.secrets / "app.token").read_text().strip()
        self._tls = TlsIdentity(ca=(composition.secrets / "ca.pem").read_bytes())
        self.ledger = Ledger()

    @asynccontextmanager
    async def watched(self, what: str) -> AsyncIterator[None]:
        """Print the longest pause between acknowledgements, and the node's log."""
        begun = len(self._composition.log("node-a"))
        pauses = [0.0]
        watching = asyncio.create_task(self._watch(pauses))
        await self.ledger.more(200)
        pauses[:] = [0.0]
        yield
        await self.ledger.more(200)
        watching.cancel()
        tell(f"{what}: no acknowledgement for {max(pauses):.1f} s")
        for line in self._composition.log("node-a")[begun:].splitlines():
            if any(word in line for word in _EVENTS):
                tell(f"    {line[:260]}")
        tell(f"    {self.databases.members(MEMBERS[0]) or self.databases.members(MEMBERS[1])}")

    def refused(self) -> bool:
        """Return True if the node refuses a host."""
        with urllib.request.urlopen(f"http://{self._watched}/metrics") as answer:
            text = answer.read().decode()
        return "storenode_database_hosts_refused 1.0" in text

    def publisher(self) -> Publisher:
        """Return a client that goes on until it is answered."""
        return Publisher(
            self.node, self.ledger, Random(1), messages=5, token=self._token, tls=self._tls
        )

    async def check(self) -> None:
        """Check that everything that was acknowledged is stored, once."""
        stored = await check_node(self.node, self.ledger, self._token, self._tls)
        tell(
            f"{len(self.ledger.acknowledged)} messages acknowledged, of them"
            f" {len(self.ledger.acknowledged - stored)} lost; {len(stored)} stored"
        )

    async def _watch(self, pauses: list[float]) -> None:
        while True:
            since = time.monotonic()
            await self.ledger.more(1)
            pauses.append(time.monotonic() - since)


def tell(sentence: str) -> None:
    """Print at once."""
    sys.stdout.write(sentence + "\n")
    sys.stdout.flush()


async def _killed(trial: Trial, leader: str, other: str) -> None:
    """Cut the power of the leader's machine, and start it again."""
    databases = trial.databases
    async with trial.watched(f"Patroni and Postgres of {leader} killed, {other} promoted"):
        postmaster = databases.postmaster(leader)
        databases.patroni(leader).kill()
        kill_machine(postmaster)
        await until(lambda: databases.leads(other))
    async with trial.watched(f"{leader} started again"):
        databases.start(leader)
        await until(lambda: databases.is_whole(other, leader))


async def _postgres_killed(trial: Trial, leader: str, other: str) -> None:
    """Kill Postgres alone: Patroni starts it where it was."""
    databases = trial.databases
    async with trial.watched(f"Postgres of {leader} killed"):
        before = databases.times_synchronous(leader)
        kill_machine(databases.postmaster(leader))
        # Patroni goes on telling for seconds what was so before.
        await until(lambda: databases.times_synchronous(leader) > before or databases.leads(other))
        await until(lambda: databases.is_whole(leader, other) or databases.is_whole(other, leader))


async def _frozen(trial: Trial, leader: str, other: str) -> None:
    """Freeze Patroni alone: its Postgres goes on as a primary while the other is promoted."""
    databases = trial.databases
    patroni = databases.patroni(leader)
    patroni.suspend()
    try:
        async with trial.watched(f"Patroni of {leader} frozen, its Postgres not"):
            await until(lambda: databases.leads(other))
            await until(trial.refused)
            tell("two servers take writes; the node refuses one")
    finally:
        # Frozen it could not be ended, nor end its Postgres.
        patroni.resume()
    async with trial.watched(f"Patroni of {leader} goes on"):
        await until(lambda: databases.is_whole(other, leader))


async def _switched(trial: Trial, leader: str, other: str) -> None:
    """Ask for a switchover, as an operator does."""
    databases = trial.databases
    async with trial.watched(f"switchover from {leader} to {other}"):
        await asyncio.to_thread(databases.switch, leader, other)
        await until(lambda: databases.is_whole(other, leader))


async def _try_all(directory: Path) -> None:
    faults: list[Callable[[Trial, str, str], Any]] = [
        _killed,
        _postgres_killed,
        _frozen,
        _switched,
    ]
    with Composition(directory, MEMBERS) as composition:
        databases = Databases(composition)
        databases.start(MEMBERS[0])
        await until(lambda: databases.leads(MEMBERS[0]))
        databases.start(MEMBERS[1])
        await until(lambda: databases.is_whole(*MEMBERS))
        composition.start("node-a")
        trial = Trial(composition, databases)
        async with publishing([trial.publisher()]):
            for fault in faults:
                leader = next(each for each in MEMBERS if databases.leads(each))
                await fault(trial, leader, next(each for each in MEMBERS if each != leader))
        await trial.check()


def main() -> None:
    """Try all faults, one after the other."""
    directory = Path(tempfile.mkdtemp(prefix="storenode-patroni-"))
    directory.chmod(0o711)
    tell(f"logs are in {directory}")
    asyncio.run(_try_all(directory))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
