"""A node as a process: `storenode run`.

It ends with this process, however that ends: a watchdog signals its death.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from store.embedded.process import Watchdog

READY_TIMEOUT_S: Final = 300.0
"""How long a node may take to start: on a busy machine several make their databases at once."""

STOP_TIMEOUT_S: Final = 20.0
"""How long a node may take to stop before it is killed."""

LOG_TAIL_LINES: Final = 12
"""Lines of a failed node's log that are shown."""

MAX_LOG_TAIL_BYTES: Final = 16 * 1024

_ANY_PORT: Final = "127.0.0.1:0"
# -P: what lies in the current directory must not stand in for our modules.
PROGRAM: Final = (sys.executable, "-P", "-m", "storenode.cli")
"""The command `storenode` of this environment."""

_LISTENERS: Final = ("--listen", "--peer-listen", "--admin-listen", "--metrics-listen")


class NodeFailedError(Exception):
    """A node that did not start, or ended by itself; ``tail`` is the end of its log."""

    def __init__(self, sentence: str, tail: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.tail = tail


class NodeProcess:
    """A node that can be started again after it has ended.

    Its ports are free ones, others after each start.

    Attributes:
        name: the node's name.
        options: options of ``storenode run``, from the next start on.
        ready: the addresses of its ready line; empty while it does not serve.
        log_path: the standard error of all runs.
        data_dir: its data directory; without ``--database-url`` it has a Postgres of its own.
        program: the command ``storenode``, as the first words of a command line.
        enter: changes a command line so that it runs where ``data_dir`` is mounted.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        options: Sequence[str] = (),
        *,
        program: Sequence[str] = PROGRAM,
        enter: Callable[[list[str]], list[str]] = list,
    ) -> None:
        self.name = name
        self.options = options
        self.ready: dict[str, str] = {}
        self.log_path = directory / f"{name}.log"
        self.data_dir = directory / name
        self._program = program
        self._enter = enter
        self._process: asyncio.subprocess.Process | None = None
        self._watchdog: Watchdog | None = None
        self._expected_to_end = False

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process ID, also after the process has ended."""
        assert self._process is not None, "the node was not started"
        return self._process.pid

    @property
    def command(self) -> list[str]:
        """The command line."""
        line = [*self._program, "run", "--data-dir", str(self.data_dir)]
        for listener in _LISTENERS:
            line += [listener, _ANY_PORT]
        return self._enter([*line, *self.options])

    async def start(self) -> None:
        """Start, and wait until it serves.

        Raises:
            NodeFailedError: It ended, or took too long.
        """
        self._expected_to_end = False
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(),
                # Ctrl-C at the terminal is for this process, which stops its nodes in order.
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._process.pid)
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise self._failed(f"did not serve within {READY_TIMEOUT_S:.0f} s") from None
        if not line.endswith(b"\n"):
            raise self._failed(f"{_ending(await self._wait())} while it started")
        self.ready = json.loads(line)

    async def watch(self) -> None:
        """Wait for the end of the process, which only `kill` and `stop` may bring about.

        Raises:
            NodeFailedError: It ended by itself.
        """
        code = await self._wait()
        if not self._expected_to_end:
            raise self._failed(_ending(code))

    async def kill(self) -> None:
        """End the process by SIGKILL."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End the process by SIGTERM, or by SIGKILL if that takes too long."""
        if not self.running:
            return
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> None:
        self._expected_to_end = True
        if self._process is None or self._process.returncode is not None:
            return
        self.ready = {}
        self._process.send_signal(number)
        await self._wait()

    async def _wait(self) -> int:
        assert self._process is not None
        assert self._watchdog is not None
        code = await self._process.wait()
        self._watchdog.dismiss()
        return code

    def _failed(self, what: str) -> NodeFailedError:
        return NodeFailedError(
            f"The node {self.name} {what}: see {self.log_path}.", self.log_tail()
        )

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_LOG_TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def _ending(code: int) -> str:
    """Return in words how a process ended, by its exit code or negative signal number."""
    return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def _environment() -> dict[str, str]:
    """Return the environment without settings of another node."""
    return {name: text for name, text in os.environ.items() if not name.startswith("STORENODE_")}
