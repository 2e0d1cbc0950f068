"""The server process from its launch to its exit, and what a previous one left behind."""

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from store.embedded.binaries import Installation
from store.embedded.datadir import DataDir, child_view
from store.embedded.errors import EmbeddedPostgresError
from store.embedded.process import OutputPump, WatchPipe, command_line, complaint
from store.embedded.settings import command_settings

POLL_INTERVAL_S: Final = 0.02
"""The interval of looks at a server that starts, or at a process that is not a child."""

OUTPUT_DRAIN_S: Final = 5.0
"""The longest wait for the last process of a dead server, which ends its output."""

QUIT_TIMEOUT_S: Final = 10.0
KILL_TIMEOUT_S: Final = 10.0
"""The longest steps after an orderly shutdown: SIGQUIT, then SIGKILL."""

_READY = "ready"
_RETRYABLE = (
    "Address already in use",
    "could not create any TCP/IP sockets",
    "pre-existing shared memory block",
)


class ServerProcess:
    """A server process that was just launched; the thread that makes it must outlive it."""

    def __init__(
        self,
        data: DataDir,
        account: pwd.struct_passwd | None,
        binaries: Installation,
        extra: Mapping[str, str],
        port: int,
    ) -> None:
        self.port = port
        self.launched_at_s = time.monotonic()
        self._data = data
        self._stuck: str | None = None
        self._watch = WatchPipe()
        settings = command_settings(extra, port, data.mark())
        try:
            with child_view(data.cluster, account) as (launch, path):
                self._child = launch.popen(
                    [binaries.program("postgres"), "-D", path, *settings],
                    stdin=subprocess.DEVNULL,
                    watch_fd=self._watch.reading,
                )
        except BaseException:
            self._watch.close()
            raise
        assert self._child.stdout is not None
        self._pump = OutputPump(self._child.stdout, data.log)

    @property
    def pid(self) -> int:
        """The process ID of the postmaster."""
        return self._child.pid

    def await_ready(self, silence_s: float) -> bool:
        """Wait until the server accepts connections; False when it exits first.

        One that says nothing for `silence_s` seconds is ended by force.
        """
        seen_bytes, deadline = -1, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(POLL_INTERVAL_S)
                return False
            found = self._data.pid_file()
            if found and found.pid == self.pid and found.status == _READY:
                return True
            if self._pump.bytes_read != seen_bytes:
                seen_bytes, deadline = self._pump.bytes_read, time.monotonic() + silence_s
            if time.monotonic() > deadline:
                self._stuck = f"it said nothing for {silence_s:g} s while starting"
                self.end_by_force()
                return False

    def wait(self) -> None:
        """Wait for the exit of the postmaster, and for that of the processes it may leave."""
        self._child.wait()
        self._pump.join(OUTPUT_DRAIN_S)
        self._watch.close()

    def send(self, number: signal.Signals) -> None:
        """Send the postmaster a signal; nothing happens when it has ended."""
        # Popen checks first whether the child was waited for, so no reused ID is hit.
        self._child.send_signal(number)

    def end_by_force(self) -> None:
        """Cut the shutdown short, at last by SIGKILL; another thread may be in `wait`."""
        for number, patience_s in (
            (signal.SIGQUIT, QUIT_TIMEOUT_S),
            (signal.SIGKILL, KILL_TIMEOUT_S),
        ):
            self.send(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience_s)
                return

    def why_it_ended(self) -> str:
        """Return the reason of the exit: a signal's name or the server's last complaint."""
        if self._stuck is not None:
            return self._stuck
        status = self._child.returncode
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return complaint(self._pump.tail())

    def should_retry(self) -> bool:
        """Return True if it ended for a taken port or for processes of the previous server."""
        return any(each in self._pump.tail() for each in _RETRYABLE)


def choose_port(preferred: int | None) -> int:
    """Return the preferred port if it is free on the loopback interface, else any free one."""
    for port in (preferred or 0, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As Postgres does, or the port of a server that just ended would look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def clear_predecessor(data: DataDir, timeout_s: float, emit: Callable[..., None]) -> None:
    """Stop the server that a killed supervisor left, or remove its stale pid file.

    The lock must be held.

    A killed supervisor leaves a server that shuts down by itself: this waits for it, and forces it
    if it takes longer than `timeout_s`. Only a server that carries the cluster's mark
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
        _stop_predecessor(data, found.pid, timeout_s)
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
    """Remove the file of a server that ended and that its parent has not waited for.

    Postgres takes it for a running one; in a container whose first process never waits, for ever.
    Remaining processes of that server are found by its shared memory, whose key comes from the
    cluster.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        data.forget_pid_file()


def _stop_predecessor(data: DataDir, pid: int, timeout_s: float) -> None:
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
        if _await_end(data, pid, patience_s):
            return
    raise EmbeddedPostgresError(
        f"The Postgres server of a previous run, process {pid}, does not end: look at its disk,"
        " end it by hand, then start again."
    )


def _await_end(data: DataDir, pid: int, timeout_s: float) -> bool:
    """Poll a process that is not a child of this one; return False if it does not end."""
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while data.is_served_by(pid):
        if time.monotonic() > deadline:
            return False
        pause.wait(POLL_INTERVAL_S)
    return True
