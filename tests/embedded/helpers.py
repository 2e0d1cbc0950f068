"""Processes, accounts and events for the tests of the embedded Postgres."""

import json
import os
import pwd
import queue
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from store.embedded.binaries import SHARED_NAME, find_nss_wrapper

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0
AS_ROOT = os.geteuid() == 0
NAMELESS = 54_321
"""A user ID that no system has an entry for, as with `docker run --user 54321`."""


class Events:
    """Collects a supervisor's events and waits for one of them without polling."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[str, Mapping[str, object]]] = queue.Queue()

    def __call__(self, name: str, fields: Mapping[str, object]) -> None:
        self._queue.put((name, fields))

    def wait_for(self, name: str) -> Mapping[str, object]:
        while True:
            seen, fields = self._queue.get(timeout=PATIENCE_S)
            if seen == name:
                return fields

    def names(self) -> list[str]:
        seen = []
        with suppress(queue.Empty):
            while True:
                seen.append(self._queue.get_nowait()[0])
        return seen


class Node:
    """A process of its own with an embedded Postgres; `said` is the line that it printed."""

    def __init__(self, data_dir: Path, options: Mapping[str, object]) -> None:
        script = str(Path(__file__).with_name("node_process.py"))
        self.process = subprocess.Popen(
            [sys.executable, script, str(data_dir), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "no answer in time"
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextmanager
def node(data_dir: Path, **options: object) -> Iterator[Node]:
    running = Node(data_dir, options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()
        for pipe in (running.process.stdin, running.process.stdout):
            if pipe is not None:
                pipe.close()


def wait_gone(pid: int) -> None:
    """Wait until a process that need not be our child has ended, a zombie included."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return
        _, alive = psutil.wait_procs([process], timeout=PATIENCE_S)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def copy_owned(source: Path, target: Path) -> None:
    """Copy a directory with owners and modes as they are."""
    shutil.copytree(source, target)
    for path in [source, *source.rglob("*")]:
        about = path.lstat()
        shutil.chown(target / path.relative_to(source), about.st_uid, about.st_gid)


def insert(url: str, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table if not exists kept (value int)")
        connection.execute("insert into kept values (%s)", (value,))


def values(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("select value from kept order by value")]


def unprivileged() -> dict[str, object]:
    """Return the options for a node without privileges; as a user, that is what we are already."""
    if not AS_ROOT:
        return {}
    return {"uid": NAMELESS if find_nss_wrapper() else pwd.getpwnam(SHARED_NAME).pw_uid}


@contextmanager
def open_directory() -> Iterator[Path]:
    """Yield a directory that every account can reach; pytest's own are for their owner alone."""
    path = Path(tempfile.mkdtemp(prefix="storenode-test-", dir="/tmp"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
