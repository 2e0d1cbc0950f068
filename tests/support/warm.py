"""Processes of the installed command that need not import it: forked from one that has.

To import a node takes longer than all else that it does until it serves, and tests start more than
a thousand nodes and commands. Each is a process of its own nevertheless, with a session,
descriptors and an environment of its own. What differs from an executed file is its command line
in the list of processes, and that its interpreter is not taken apart when it ends.

Run as a program, with a socket's number, this is the process that forks. It imports what the
installed command runs, once. Each request comes with the four descriptors of standard input, output
and error and of a pipe, which gets the new process's ID and, when that has ended, its status as
`os.wait` gives it. It ends with the process that asks.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

COMMAND: Final = str(Path(sys.executable).with_name("storenode"))
"""The installed command, as an operator runs it."""

_SERVER: Final = __file__
_CLIENT: Final = str(Path(__file__).with_name("warm_command.py"))
_OWN: Final = "STORENODE_"
"""The prefix of the settings that a process reads when it runs, not when it is imported."""


class _Forker:
    """The process that forks, begun when it is first asked."""

    def __init__(self) -> None:
        self.is_used = False
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: Mapping[str, str] = {}
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def commands(self) -> str:
        """Return a directory with a ``storenode`` for scripts of a shell, which is forked."""
        with self._lock:
            self._begun()
        assert self._directory is not None
        return self._directory.name

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
        """End it, after what it has forked."""
        self.is_used = False
        if self._connection is not None and self._process and self._directory:
            self._connection.close()
            self._process.wait()
            self._directory.cleanup()

    def _begun(self) -> socket.socket:
        if self._connection is None:
            self._connection, end = socket.socketpair()
            self._directory = tempfile.TemporaryDirectory(prefix="warm-")
            with end, socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address := f"{self._directory.name}/socket")
                listener.listen(1_024)
                numbers = [end.fileno(), listener.fileno()]
                self._process = subprocess.Popen(
                    [sys.executable, _SERVER, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=numbers,
                    start_new_session=True,
                )
            command = Path(self._directory.name, "storenode")
            client = shlex.join([sys.executable, "-IS", _CLIENT, address, COMMAND])
            command.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
            command.chmod(0o755)
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
commands = _forker.commands


def use() -> None:
    """Fork from now on where that is the same; what measures a process executes it."""
    _forker.is_used = True


def close() -> None:
    """Execute again, and end the process that forks."""
    _forker.close()


def popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    **options: Any,  # noqa: ANN401 - as of Popen
) -> subprocess.Popen[Any]:
    """Start a process; the installed command is forked where possible."""
    if _forker.is_used and command[0] == COMMAND and _forker.suits(env):
        return _Forked(command, env=env, **options)
    return subprocess.Popen(command, env=env, **options)


# The process that forks

LENGTH: Final = struct.Struct("!I")
"""The format of a request's length, an ID or a status in the pipe."""

DESCRIPTORS: Final = 4
_HEAVY: Final = ("demo", "pipeline")
"""Commands that few tests start, and that import much more."""

_LATE: Final = (
    *("alembic.command", "alembic.config", "sqlalchemy.dialects.postgresql.psycopg"),
    *("encodings.idna", "store.gateway.service", "store.http.app", "store.runtime.node"),
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.off",
)
"""The modules that a node or a gateway imports while it starts."""


def serve(connection: socket.socket, listener: socket.socket) -> None:
    """Fork for every request; returns in the new process only."""
    _import()
    seen, wake = socket.socketpair()
    for end in (seen, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    pipes: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        for each in (connection, listener, seen):
            selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is seen:
                    seen.recv(1_024)
                    _reap(pipes)
                    continue
                if key.fileobj is listener:
                    with listener.accept()[0] as client:
                        asked, descriptors = _receive(client)
                else:
                    asked, descriptors = _receive(connection)
                *standard, pipe = descriptors
                if (pid := os.fork()) == 0:
                    selector.close()
                    for own in (connection, listener, seen, wake):
                        own.close()
                    _become(asked, standard, [*pipes.values(), pipe])
                    return
                for number in standard:
                    os.close(number)
                pipes[pid] = pipe
                os.write(pipe, LENGTH.pack(pid))


def _import() -> None:
    # As the command itself sets it before it imports the library.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    cli = importlib.import_module("storenode.cli.main").cli
    for name in cli.list_commands(None):
        if name not in _HEAVY:
            cli.get_command(None, name)
    for module in _LATE:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _reap(pipes: dict[int, int]) -> None:
    """Report the children that have ended."""
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = pipes.pop(pid)
        try:
            os.write(pipe, LENGTH.pack(status))
        except BrokenPipeError:
            pass  # nobody waits for it
        finally:
            os.close(pipe)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], Sequence[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, DESCRIPTORS)
    if not head:
        raise SystemExit
    (length,) = LENGTH.unpack(head)
    body = connection.recv(length, socket.MSG_WAITALL)
    return json.loads(body), descriptors


def _become(asked: dict[str, Any], standard: Sequence[int], foreign: Sequence[int]) -> None:
    """Set this process up as one that executes the command's file."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, given in enumerate(standard):
        os.dup2(given, number)
    for number in (*standard, *foreign):
        os.close(number)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = asked["args"]
    sys.path[0] = str(Path(asked["args"][0]).parent)


def _run() -> None:
    """Run the command, and end as an interpreter ends, but for giving back what it has imported.

    That would write to all the memory which this process has in common with others until then.
    """
    code: object = 1
    try:
        importlib.import_module("storenode.cli.main").main()
    except SystemExit as ending:
        code = ending.code
    except Exception:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
    _run()
