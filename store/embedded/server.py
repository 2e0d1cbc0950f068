"""One life of the server process: from its launch to its exit."""

import contextlib
import pwd
import signal
import socket
import subprocess
import time
from dataclasses import dataclass

from store.embedded.binaries import Installation
from store.embedded.datadir import DataDir, child_view
from store.embedded.limits import (
    KILL_TIMEOUT_S,
    OUTPUT_DRAIN_S,
    POLL_INTERVAL_S,
    QUIT_TIMEOUT_S,
)
from store.embedded.process import KERNEL_SIGNALS_PARENT_DEATH, OutputPump, WatchPipe, complaint
from store.embedded.settings import command_settings

_READY = "ready"
_PORT_TAKEN = ("Address already in use", "could not create any TCP/IP sockets")
_PREDECESSOR_LEAVING = ("pre-existing shared memory block",)


@dataclass(frozen=True)
class Plan:
    """What every life of one cluster's server has in common."""

    data: DataDir
    account: pwd.struct_passwd | None
    binaries: Installation
    extra: dict[str, str]
    watch_by_pipe: bool = not KERNEL_SIGNALS_PARENT_DEATH


class Server:
    """A server process that was just launched; the thread that makes it must outlive it."""

    def __init__(self, plan: Plan, port: int) -> None:
        self.port = port
        self.launched_at_s = time.monotonic()
        self._data = plan.data
        self._stuck: str | None = None
        self._watch = WatchPipe(wanted=plan.watch_by_pipe)
        try:
            self._child = self._launch(plan)
        except BaseException:
            self._watch.dismiss()
            raise
        assert self._child.stdout is not None
        self._pump = OutputPump(self._child.stdout, plan.data.log)

    @property
    def pid(self) -> int:
        """The process ID of the postmaster."""
        return self._child.pid

    def await_ready(self, silence_s: float) -> bool:
        """Wait until the server accepts connections; False when it exits first.

        One that says nothing for `silence_s` seconds is ended by force.
        """
        heard, deadline = -1, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(POLL_INTERVAL_S)
                return False
            found = self._data.pid_file()
            if found and found.pid == self.pid and found.status == _READY:
                return True
            if self._pump.bytes_read != heard:
                heard, deadline = self._pump.bytes_read, time.monotonic() + silence_s
            if time.monotonic() > deadline:
                self._stuck = f"it said nothing for {silence_s:g} s while starting"
                self.end_by_force()
                return False

    def wait(self) -> None:
        """Wait for the exit of the postmaster, and for that of the processes it may leave."""
        self._child.wait()
        self._pump.join(OUTPUT_DRAIN_S)
        self._watch.dismiss()

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
        """The reason of the exit: a signal's name or the server's last complaint."""
        if self._stuck is not None:
            return self._stuck
        status = self._child.returncode
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return complaint(self._pump.tail())

    def lost_its_port(self) -> bool:
        """Whether it ended because somebody else listens on its port."""
        return any(each in self._pump.tail() for each in _PORT_TAKEN)

    def met_its_predecessor(self) -> bool:
        """Whether it ended because processes of the previous server had not yet gone."""
        return any(each in self._pump.tail() for each in _PREDECESSOR_LEAVING)

    def _launch(self, plan: Plan) -> subprocess.Popen[bytes]:
        settings = command_settings(plan.extra, self.port, plan.data.mark())
        with child_view(plan.data.cluster, plan.account) as (launch, path):
            command = [plan.binaries.program("postgres"), "-D", path, *settings]
            return launch.popen(command, stdin=subprocess.DEVNULL, watch_fd=self._watch.reading)


def choose_port(preferred: int | None) -> int:
    """The preferred port if it is free on the loopback interface, else any free one."""
    for port in (preferred or 0, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As Postgres does, or the port of a server that just ended would look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")
