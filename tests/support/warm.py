"""Processes of the installed command that need not import it: forked from one that has.

To import a node takes longer than all else that it does until it serves, and tests start more than
a thousand nodes and commands. Each is a process of its own all the same, with a session,
descriptors and an environment of its own. What differs from an executed file is its command line
in the list of processes, and that its interpreter is not taken apart when it ends.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.fork_server import LENGTH

COMMAND: Final = str(Path(sys.executable).with_name("storenode"))
"""The installed command, as an operator runs it."""

_SERVER: Final = str(Path(__file__).with_name("fork_server.py"))
_OWN: Final = "STORENODE_"
"""How the names of settings begin that a process reads when it runs, not when it is imported."""


class _Forker:
    """The process that forks, begun when it is first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: Mapping[str, str] = {}

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return True if what was imported would be the same in an environment."""
        with self._lock:
            self._begun()
        return _imported_in(environment) == self._environment

    def fork(self, asked: dict[str, Any], standard: Sequence[int]) -> tuple[int, int]:
        """Return a new process: its ID, and the pipe that will tell how it ended."""
        reading, pipe = os.pipe()
        body = json.dumps(asked).encode()
        try:
            with self._lock:
                connection = self._begun()
                socket.send_fds(connection, [LENGTH.pack(len(body))], [*standard, pipe])
                connection.sendall(body)
        finally:
            os.close(pipe)
        (pid,) = LENGTH.unpack(os.read(reading, LENGTH.size))
        return pid, reading

    def close(self) -> None:
        """End it, and with it what it has forked."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()

    def _begun(self) -> socket.socket:
        if self._connection is None:
            self._connection, end = socket.socketpair()
            with end:
                number = end.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, _SERVER, str(number)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[number],
                    start_new_session=True,
                )
            self._environment = _imported_in(os.environ)
        return self._connection


def _imported_in(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if not name.startswith((_OWN, "PYTEST_"))
    }


class _Forked(subprocess.Popen[Any]):
    """A process that another one has forked for this one, in a session of its own."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:  # noqa: ANN401
        cwd, env = rest[4:6]
        pipes = rest[9:15]
        given = [
            number if number != -1 else own for own, number in enumerate((pipes[0], *pipes[3::2]))
        ]
        asked = {"args": list(args), "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        self._ended = threading.Lock()
        self.pid, self._status_pipe = _forker.fork(asked, given)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, **_: object) -> int | None:
        return self._status(0)

    def _wait(self, timeout: float | None) -> int:
        code = self._status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _status(self, timeout_s: float | None) -> int | None:
        """Return the exit code, None when it has not ended in time."""
        if self.returncode is not None:
            return self.returncode
        waiting = select.poll()
        waiting.register(self._status_pipe, select.POLLIN)
        if not waiting.poll(None if timeout_s is None else 1_000 * timeout_s):
            return None
        with self._ended:
            if self.returncode is None:
                (status,) = LENGTH.unpack(os.read(self._status_pipe, LENGTH.size))
                os.close(self._status_pipe)
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


_forker = _Forker()
_used = False


def use() -> None:
    """Fork from now on where that is the same; what measures a process executes it."""
    global _used  # noqa: PLW0603 - one for the run of tests
    _used = True


def close() -> None:
    """Execute again, and end the process that forks."""
    global _used  # noqa: PLW0603
    _used = False
    _forker.close()


def popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    **options: Any,  # noqa: ANN401 - as of Popen
) -> subprocess.Popen[Any]:
    """Start a process that ends with this one; the installed command is forked where possible."""
    if _used and command[0] == COMMAND and _forker.suits(env):
        return _Forked(command, env=env, **options)
    return subprocess.Popen(tied(command), env=env, **options)


def tied(command: Sequence[str]) -> list[str]:
    """Return a command line that becomes the given one, and ends with this process.

    In another thread than the main one it is the given one: the kernel would end it with that
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return list(command)
    return [sys.executable, "-I", "-S", _SERVER, str(os.getpid()), *command]
