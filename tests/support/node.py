"""A real ``storenode run`` process for tests: started, waited for, stopped, killed."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import pytest

from tests.support import warm
from tests.support.ports import ReservedPort

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 180.0
LOG_TAIL_CHARS = 4_000

Scope = Literal["session", "module"]

LISTENERS = ("--listen", "--admin-listen", "--metrics-listen")
"""Options of the listeners that every node has."""

COMMAND = warm.COMMAND
"""The installed command, as an operator runs it."""

UV = str(Path(sys.executable).with_name("uv"))
"""The installer."""


class NodeStartError(Exception):
    """The node ended, or did not get ready in time; the text holds the end of its log."""


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment without settings of a node that the tester happens to run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STORENODE_")}
    return {**kept, **extra}


def with_defaults(args: Sequence[str], *defaults: str) -> tuple[str, ...]:
    """Return options, and before them the defaults of those that are not named.

    ``defaults``: names and values by turns.
    """
    named = {each.partition("=")[0] for each in args}
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    return (*(word for pair in pairs if pair[0] not in named for word in pair), *args)


@dataclass
class NodeProcess:
    """A node on a data directory; `start` may be called again, on the same ports, after it ended.

    ``args`` are further options of ``storenode run``; without ``database_url`` the node has a
    Postgres of its own. Every listener is on a free port of 127.0.0.1, which is kept for it while
    it is down, unless ``args`` say else. ``program`` is another installation of the command, and
    ``cwd`` where it runs.
    """

    data_dir: Path
    args: Sequence[str] = ()
    database_url: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    ready: dict[str, str] = field(default_factory=dict)
    ports: dict[str, ReservedPort] = field(default_factory=dict)
    """By option; another node that takes the place of this one is given them."""
    program: Sequence[str] = (COMMAND,)
    cwd: Path | None = None

    _process: subprocess.Popen[bytes] | None = None

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
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The file with the standard error of all runs."""
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def command(self) -> list[str]:
        """Return the command line; ``args`` may name other listeners."""
        line = [*self.program, "run", "--data-dir", str(self.data_dir)]
        for option in LISTENERS:
            if option not in self.args:
                line += [option, self.ports.setdefault(option, ReservedPort()).address]
        if self.database_url is not None:
            line += ["--database-url", self.database_url]
        return [*line, *self.args]

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert not self.running, "the node runs already"
        with self.log_path.open("ab") as log:
            self._process = warm.popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=clean_environment(**self.env),
                cwd=self.cwd,
                # A Ctrl-C at the tests' terminal must not race their own clean-up.
                start_new_session=True,
            )

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> NodeProcess:
        """Start and wait for the ready line.

        Raises:
            NodeStartError: it ended first or took longer; the process is gone then.
        """
        self.launch()
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait for the ready line of a launched process; raises as `start`."""
        assert self.process.stdout is not None
        line = read_line(self.process.stdout, timeout_s)
        if not line.endswith(b"\n"):
            code = self.process.poll()
            self.kill()
            raise NodeStartError(
                f"no ready line (exit code {code}); the log ends:\n{self.log_tail()}"
            )
        self.ready = json.loads(line)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        code = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL and wait, unless it has ended."""
        if self.running:
            self.process.kill()
        self.wait()

    def log(self) -> str:
        """Return everything that all runs wrote to standard error."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self) -> str:
        """Return the end of the log, for messages of failed tests."""
        return self.log()[-LOG_TAIL_CHARS:]

    def close(self) -> None:
        """Stop the node by SIGTERM, or by SIGKILL when that is not obeyed."""
        if self._process is None:
            return
        try:
            if self.running:
                self.terminate()
        finally:
            self.kill()


@contextmanager
def running_node(
    data_dir: Path, *args: str, database_url: str | None = None, **env: str
) -> Iterator[NodeProcess]:
    """Yield a node that serves, for the length of a ``with`` block."""
    node = NodeProcess(data_dir, args, database_url, env)
    try:
        yield node.start()
    finally:
        node.close()


def shared_node(name: str, *options: str, scope: Scope = "session") -> Any:  # noqa: ANN401 - pytest's
    """Return a fixture: a node with a store of its own that tests share."""

    @pytest.fixture(scope=scope)
    def node(
        tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
    ) -> Iterator[NodeProcess]:
        data_dir = tmp_path_factory.mktemp(name) / "node"
        with running_node(data_dir, *options, database_url=new_store()) as process:
            yield process

    return node


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
