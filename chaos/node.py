"""A node as a process: `storenode run`, started, waited for, stopped, killed.

It ends with this process, however that ends: a watchdog signals its death.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Self

from chaos.ports import ReservedPort
from store.embedded.process import Watchdog

READY_TIMEOUT_S: Final = 240.0
"""The time limit of a start: on a busy machine several nodes make their databases at once."""

STOP_TIMEOUT_S: Final = 180.0
LOG_TAIL_CHARS: Final = 4_000

LISTENERS: Final = ("--listen", "--admin-listen", "--metrics-listen")
"""Options of the listeners that every node has."""

# -P: what lies in the current directory must not stand in for our modules.
PROGRAM: Final = (sys.executable, "-P", "-m", "storenode.cli")
"""The command `storenode` of this environment."""

_LOOK_EVERY_S: Final = 0.1
_LAST_MOMENT_S: Final = 1.0


class NodeFailedError(Exception):
    """A node that did not start, or ended by itself; ``tail`` is the end of its log."""

    def __init__(self, sentence: str, tail: str) -> None:
        super().__init__(f"{sentence}\n{tail}")
        self.sentence = sentence
        self.tail = tail


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment without settings of another node."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STORENODE_")}
    return {**kept, **extra}


@dataclass
class NodeProcess:
    """A node on a data directory; `start` may be called again, on the same ports, after it ended.

    Every listener is on a free port of 127.0.0.1, which is kept for it while it is down, unless
    ``args`` name another.

    Attributes:
        data_dir: its data directory, beside which its log is.
        args: further options of ``storenode run``, from the next start on.
        database_url: its database; by default it has a Postgres of its own.
        env: variables of its environment.
        ready: the addresses of its ready line.
        ports: its ports by option; another node that takes its place is given them.
        program: the command ``storenode``, as the first words of a command line.
        cwd: where it runs.
        enter: changes a command line so that it runs where ``data_dir`` is mounted.
    """

    data_dir: Path
    args: Sequence[str] = ()
    database_url: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    ready: dict[str, str] = field(default_factory=dict)
    ports: dict[str, ReservedPort] = field(default_factory=dict)
    program: Sequence[str] = PROGRAM
    cwd: Path | None = None
    enter: Callable[[list[str]], list[str]] = list

    _process: subprocess.Popen[bytes] | None = None
    _watchdog: Watchdog | None = None
    _is_ended: bool = False
    """True once this process has ended it."""

    @property
    def listen(self) -> str:
        """HOST:PORT of the client listener."""
        return self.ready["listen"]

    @property
    def peer(self) -> str:
        """HOST:PORT of the peer listener."""
        return self.ready["peer"]

    @property
    def admin(self) -> str:
        """HOST:PORT of the admin listener."""
        return self.ready["admin"]

    @property
    def metrics(self) -> str:
        """HOST:PORT of the metrics listener."""
        return self.ready["metrics"]

    @property
    def http(self) -> str:
        """HOST:PORT of the HTTP listener, where there is one."""
        return self.ready["http"]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, running or ended."""
        assert self._process is not None, "the node was not started"
        return self._process

    @property
    def pid(self) -> int:
        """The process ID, also after the process has ended."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The file with the standard error of all runs."""
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def command(self) -> list[str]:
        """Return the command line."""
        line = [*self.program, "run", "--data-dir", str(self.data_dir)]
        for option in LISTENERS:
            if option not in self.args:
                line += [option, self.ports.setdefault(option, ReservedPort()).address]
        if self.database_url is not None:
            line += ["--database-url", self.database_url]
        return self.enter([*line, *self.args])

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert not self.running, "the node runs already"
        self._is_ended = False
        with self.log_path.open("ab") as log:
            self._process = self.spawn(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=clean_environment(**self.env),
                cwd=self.cwd,
                # Ctrl-C at the terminal is for this process, which stops its nodes in order.
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._process.pid)

    def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        **options: Any,  # noqa: ANN401 - as of Popen
    ) -> subprocess.Popen[bytes]:
        """Start a process."""
        return subprocess.Popen(command, env=env, **options)  # noqa: S603 - a program of this environment

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Start and wait for the ready line.

        Raises:
            NodeFailedError: It ended first or took longer; the process is gone then.
        """
        self.launch()
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait for the ready line of a launched process; raises as `start`."""
        assert self.process.stdout is not None
        line = read_line(self.process.stdout, timeout_s)
        if not line.endswith(b"\n"):
            # A process that ends closes its output a moment before.
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAST_MOMENT_S)
            code = self.process.poll()
            self.kill()
            raise self._failed(
                f"did not serve within {timeout_s:.0f} s"
                if code is None
                else f"{_ending(code)} while it started"
            )
        self.ready = json.loads(line)

    async def watch(self) -> None:
        """Wait for the end of the process, which only this process may bring about.

        Raises:
            NodeFailedError: It ended by itself.
        """
        while self.running:  # noqa: ASYNC110 - a process sends no event
            await asyncio.sleep(_LOOK_EVERY_S)
        if not self._is_ended:
            raise self._failed(_ending(self.wait()))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        code = self.process.wait(timeout_s)
        if self._watchdog is not None:
            self._watchdog.dismiss()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self._is_ended = True
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL and wait, unless it has ended."""
        self._is_ended = True
        if self.running:
            self.process.kill()
        self.wait()

    def log(self) -> str:
        """Return everything that all runs wrote to standard error."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self) -> str:
        """Return the end of the log."""
        return self.log()[-LOG_TAIL_CHARS:].strip()

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the node by SIGTERM, or by SIGKILL when that is not obeyed in time."""
        if self._process is None:
            return
        try:
            if self.running:
                self.terminate(timeout_s)
        finally:
            self.kill()

    def _failed(self, what: str) -> NodeFailedError:
        return NodeFailedError(
            f"The node {self.data_dir.name} {what}: see {self.log_path}.", self.log_tail()
        )


def read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """Read up to a line feed; shorter when the stream ends or the time is up."""
    deadline = time.monotonic() + timeout_s
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            # One byte at a time: what follows the line stays in the pipe.
            byte = os.read(stream.fileno(), 1)
            if not byte:
                break
            line += byte
    return line


def _ending(code: int) -> str:
    """Return a description of how a process ended, by its exit code or negative signal number."""
    return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
