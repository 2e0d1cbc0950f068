"""The process that `tests.support.warm` asks for forks; run as a program, with a socket's number.

It imports what the installed command runs, once. Each request comes with the four descriptors of
standard input, output and error and of a pipe, which gets the new process's ID and, when that has
ended, its status as `os.wait` gives it. It ends with the process that asks, and what it has forked
ends with it.

With the ID of the parent and a command line, it becomes that command, which ends with the parent.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

LENGTH: Final = struct.Struct("!I")
"""Before each request: how long it is. In the pipe: an ID, or a status."""

DESCRIPTORS: Final = 4

_HEAVY: Final = ("demo", "pipeline")
"""Commands that few tests start, and that import much more."""

_LATE: Final = (
    *("alembic.command", "alembic.config", "sqlalchemy.dialects.postgresql.psycopg"),
    *("encodings.idna", "store.gateway.service", "store.http.app", "store.runtime.node"),
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.off",
)
"""What a node or a gateway imports while it starts."""


_PR_SET_PDEATHSIG: Final = 1


def tie(parent: int) -> None:
    """Let the kernel interrupt this process when its parent ends, or end if that has happened.

    Elsewhere than on Linux there is no such signal (prctl(2), PR_SET_PDEATHSIG).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve(connection: socket.socket) -> None:
    """Fork for every request; returns in the new process only."""
    _import()
    seen, wake = socket.socketpair()
    for end in (seen, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    pipes: dict[int, int] = {}
    parent = os.getpid()
    with selectors.DefaultSelector() as selector:
        for each in (connection, seen):
            selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is seen:
                    seen.recv(1_024)
                    _reap(pipes)
                    continue
                asked, descriptors = _receive(connection)
                *standard, pipe = descriptors
                if (pid := os.fork()) == 0:
                    selector.close()
                    for own in (connection, seen, wake):
                        own.close()
                    _become(asked, standard, [*pipes.values(), pipe], parent)
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


def _become(
    asked: dict[str, Any], standard: Sequence[int], foreign: Sequence[int], parent: int
) -> None:
    """Set this process up as one that executes the command's file and ends with its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    tie(parent)
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
    if len(sys.argv) > 2:
        tie(int(sys.argv[1]))
        os.execvp(sys.argv[2], sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])))
    _run()
