"""What a previous supervisor may have left behind: a server that runs, or a stale pid file."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from store.embedded.datadir import DataDir
from store.embedded.errors import EmbeddedPostgresError
from store.embedded.limits import KILL_TIMEOUT_S, POLL_INTERVAL_S, QUIT_TIMEOUT_S
from store.embedded.process import command_line


def clear_predecessor(data: DataDir, timeout_s: float, emit: Callable[..., None]) -> None:
    """Make sure that no server runs on the cluster; the lock must be held.

    A supervisor that was killed leaves a server that is shutting down by itself: it is waited for,
    and hurried if it takes longer than `timeout_s`. Only a server that carries the cluster's mark
    in its command line is signalled.

    Raises:
        EmbeddedPostgresError: A server that no supervisor started runs on the cluster, or ours
            does not end.
    """
    found = data.pid_file()
    if found is None:
        return
    if data.is_served_by(found.pid):
        emit("waiting", pid=found.pid)
        _stop(data, found.pid, timeout_s)
    line = command_line(found.pid)
    if line is None:
        _forget_zombie(data, found.pid)
        return
    if "postgres" in line or "postmaster" in line:
        raise EmbeddedPostgresError(
            f"Process {found.pid} is a Postgres server that may be using {data.cluster}: stop it,"
            f" or remove {data.cluster / 'postmaster.pid'} if it serves another directory."
        )
    # The ID was given to some other program, which Postgres would take for a server.
    data.forget_pid_file()


def _forget_zombie(data: DataDir, pid: int) -> None:
    """Remove the file of a server that ended and that nobody has waited for yet.

    Postgres takes it for a running one; in a container whose first process never waits, for ever.
    Remaining processes of that server are found by its shared memory, whose key comes from the
    cluster.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        data.forget_pid_file()


def _stop(data: DataDir, pid: int, timeout_s: float) -> None:
    steps = (
        (signal.SIGINT, timeout_s),
        (signal.SIGQUIT, QUIT_TIMEOUT_S),
        (signal.SIGKILL, KILL_TIMEOUT_S),
    )
    for number, patience_s in steps:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if _ended(data, pid, patience_s):
            return
    raise EmbeddedPostgresError(
        f"The Postgres server of a previous run, process {pid}, does not end: look at its disk,"
        " end it by hand, then start again."
    )


def _ended(data: DataDir, pid: int, timeout_s: float) -> bool:
    """Watch a process that is not our child, for which there is nothing to wait on everywhere."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while data.is_served_by(pid):
        if time.monotonic() > deadline:
            return False
        pause.wait(POLL_INTERVAL_S)
    return True
