"""A Postgres server as a child of this process, for as long as it is wanted.

    stopped  --start()-->  starting
    starting --ready-->    ready        --exit before the first ready-->  stopped, start() raises
    ready    --exit-->     pausing      --the pause is over-->            starting
    any      --stop()-->   stopped

One thread, the keeper, starts the server, waits for it and starts it again when it exits unasked.
It has the port of the one before it if that is still free, also in a later run.
"""

import contextlib
import logging
import os
import pwd
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from store.embedded import binaries
from store.embedded.binaries import NAME, SHARED_NAME, Installation, account_for
from store.embedded.datadir import (
    DataDir,
    libpq_url,
    make_cluster,
    remove_leftovers,
    reset_password,
)
from store.embedded.process import (
    POLL_INTERVAL_S,
    EmbeddedPostgresError,
    Launch,
    OutputPump,
    ProgramFailedError,
    Watchdog,
    command_line,
    ignore_libpq_variables,
    is_full_disk,
)
from storenode.common.backoff import Backoff

_LOG = logging.getLogger(__name__)

_MEMORY_MIB: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024**2
_CACHE_MIB: Final = max(128, min(_MEMORY_MIB // 8, 1024))
"""The page cache of Postgres. Pages that are only in the system's cache cost a scan about as much
again."""

DEFAULTS: Final[Mapping[str, str]] = {
    "shared_buffers": f"{_CACHE_MIB}MB",
    "max_connections": "60",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # An idle server wakes as seldom. What need not wait for the disk is written as late, too.
    "autovacuum_naptime": "3min",
    "bgwriter_delay": "5s",
    "wal_writer_delay": "5s",
    # Messages are inserted and never updated: what a vacuum has to do then is to freeze pages and
    # mark them visible, often enough that an index-only scan stays one.
    "autovacuum_vacuum_insert_scale_factor": "0.1",
    "autovacuum_analyze_scale_factor": "0.02",
}
"""Settings that those of a node may replace."""

_OURS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_destination": "stderr",
    "logging_collector": "off",
}
_MANAGED: Final = _OURS.keys() | {
    *("config_file", "data_directory", "external_pid_file", "hba_file", "ident_file"),
    *("port", "storenode.cluster"),
}
"""Settings without which the supervisor would lose its server."""

START_TIMEOUT_S: Final = 60.0
"""The time without output after which a starting server counts as stuck; a long recovery reports
its progress."""

STOP_TIMEOUT_S: Final = 30.0
"""The time after which an orderly shutdown is cut short."""


def refuse_managed(extra: Mapping[str, str]) -> None:
    """Check the names of extra settings.

    Raises:
        EmbeddedPostgresError: One of them is the supervisor's.
    """
    for name in extra:
        if name.lower() in _MANAGED:
            raise EmbeddedPostgresError(
                f"The setting {name} of the embedded Postgres is managed by the node: leave it out"
                " of the extra settings, or run a Postgres of your own with --database-url."
            )


OUTPUT_DRAIN_S: Final = 5.0
"""The longest wait for the last process of a dead server, which ends its output."""

BY_FORCE: Final = ((signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""The steps after an orderly shutdown, and how long each may take, in seconds."""

_PASSING: Final = ("could not create any TCP/IP sockets", "pre-existing shared memory block")
"""Reasons that pass: a port that was taken meanwhile, and processes of the previous server."""


class ServerProcess:
    """A server process that was just launched; it ends when this process does."""

    def __init__(
        self,
        data: DataDir,
        account: pwd.struct_passwd | None,
        programs: Installation,
        extra: Mapping[str, str],
        port: int,
    ) -> None:
        self.port = port
        self.launched_at_s = time.monotonic()
        self._data = data
        self._stuck: str | None = None
        launch = Launch(account, data.cluster)
        command = [programs.program("postgres"), "-D", launch.path, "-c", data.mark()]
        # They override those of the cluster.
        for name, value in {**DEFAULTS, **extra, **_OURS, "port": str(port)}.items():
            command += ["-c", f"{name}={value}"]
        self.child = launch.popen(command, stdin=subprocess.DEVNULL)
        try:
            self._watchdog = Watchdog(self.child.pid)
        except BaseException:
            self.child.kill()
            raise
        assert self.child.stdout is not None
        self._pump = OutputPump(self.child.stdout, data.log)

    def await_ready(self) -> bool:
        """Wait until the server accepts connections; False when it exits first.

        One that says nothing for `START_TIMEOUT_S` is ended by force.
        """
        seen_bytes, deadline = -1, 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(POLL_INTERVAL_S)
                return False
            found = self._data.pid_file()
            if found and found.pid == self.child.pid and found.status == "ready":
                return True
            if self._pump.bytes_read != seen_bytes:
                seen_bytes, deadline = self._pump.bytes_read, time.monotonic() + START_TIMEOUT_S
            if time.monotonic() > deadline:
                self._stuck = f"it said nothing for {START_TIMEOUT_S:g} s while starting"
                self.end_by_force()
                return False

    def wait(self) -> str:
        """Wait for the exit of the postmaster, and for that of the processes it may leave.

        Returns:
            The reason of the exit: a signal's name or the server's last complaint.
        """
        status = self.child.wait()
        self._pump.join(OUTPUT_DRAIN_S)
        self._watchdog.dismiss()
        if self._stuck is not None:
            return self._stuck
        return f"killed by {signal.Signals(-status).name}" if status < 0 else self._pump.complaint()

    def end_by_force(self) -> None:
        """Cut the shutdown short, at last by SIGKILL; another thread may be in `wait`."""
        for number, patience_s in BY_FORCE:
            self.child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(patience_s)
                return


def choose_port(preferred: int | None) -> int:
    """Return the preferred port if it is free on the loopback interface, else any free one."""
    for port in (preferred or 0, 0):
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            # As Postgres does, or the port of a server that just ended would look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def clear_predecessor(data: DataDir, emit: Callable[..., None]) -> None:
    """Stop the server that a killed supervisor left, or remove its stale pid file.

    The lock must be held.

    A killed supervisor leaves a server that shuts down by itself: this waits for it, and forces it
    if it takes longer than `STOP_TIMEOUT_S`. Only a server that carries the cluster's mark
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
        for number, patience_s in ((signal.SIGINT, STOP_TIMEOUT_S), *BY_FORCE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, number)
            deadline_s = time.monotonic() + patience_s
            while data.is_served_by(found.pid) and time.monotonic() < deadline_s:
                time.sleep(POLL_INTERVAL_S)
            if not data.is_served_by(found.pid):
                break
        else:
            raise EmbeddedPostgresError(
                f"The Postgres server of a previous run, process {found.pid}, does not end: look at"
                " its disk, end it by hand, then start again."
            )
    # The program alone: a node that was given the ID since has options and paths of that name.
    program = Path((command_line(found.pid) or [""])[0]).name
    if program.startswith(("postgres", "postmaster")):
        raise EmbeddedPostgresError(
            f"Process {found.pid} is a Postgres server that may be using {data.cluster}: stop it,"
            f" or remove {data.pid_path} if it serves another directory."
        )
    # Postgres takes for a running server a program that was given the ID since, and a server that
    # its parent has not waited for; in a container whose first process never waits, for ever.
    # Remaining processes of that server are found by its shared memory, whose key comes from the
    # cluster.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(found.pid, 0)
        data.pid_path.unlink(missing_ok=True)


STABLE_RUN_S: Final = 30.0
"""A server that was ready for this long is restarted with the shortest pause again."""

_Launcher = Callable[[int], ServerProcess]
OnEvent = Callable[[str, Mapping[str, object]], None]


class EmbeddedPostgres:
    """A Postgres server in a data directory, started and stopped with this object.

    All methods may be called from any thread; they block, so an event loop calls them through
    `asyncio.to_thread`. `settings` are those of Postgres, by name. `port` is that on 127.0.0.1,
    None while the server is stopped; `version` is as in "18.4", None before the first start.
    `on_event` is called, from any thread, with one of these names and fields:

    - `initialised` (version, seconds): a new cluster was made
    - `waiting` (pid): the server of a killed supervisor has still to end
    - `started`, `restarted` (pid, port, version, seconds): ready
    - `exited` (pid, reason): unasked; a restart follows
    - `stopped`: by `stop`

    A listener must not call `start` or `stop`, whose caller may be waiting for the listener.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] = MappingProxyType({}),
        on_event: OnEvent = lambda _name, _fields: None,
    ) -> None:
        self._settings = dict(settings)
        self._on_event = on_event
        self._data = DataDir(data_dir.absolute())
        self._calls = threading.RLock()
        self._hand_over = threading.Lock()
        self._stopping = threading.Event()
        self._ready = Future[None]()
        self._keeper: threading.Thread | None = None
        self._server: ServerProcess | None = None
        self._password: str | None = None
        self.port: int | None = None
        self.version: str | None = None

    def start(self) -> str:
        """Start the server unless it runs, making its cluster first if there is none.

        Returns:
            A libpq URL of the database, with the role's password.

        Raises:
            EmbeddedPostgresError: It cannot be started; nothing is left running or locked.
        """
        with self._calls:
            if self._keeper is not None:
                return self.url
            self._stopping.clear()
            self._ready = Future()
            refuse_managed(self._settings)
            ignore_libpq_variables()
            try:
                self._data.prepare()
                self._data.lock()
                try:
                    launch = self._prepared()
                except (OSError, ProgramFailedError) as error:
                    raise self._explained(_text_of(error), "") from error
                self._keeper = threading.Thread(
                    target=self._keep, args=(launch,), name="postgres-keeper", daemon=True
                )
                self._keeper.start()
                self._ready.result()
            except BaseException:
                self._end_keeper()
                self._data.unlock()
                raise
            return self.url

    def stop(self) -> None:
        """Shut the server down, quickly but in order, and give the directory back.

        It is ended by force when it does not end within `STOP_TIMEOUT_S`. Stopping what does not
        run does nothing; a `start` that is under way in another thread is broken off.
        """
        self._ask_to_stop()
        with self._calls:
            if self._keeper is None:
                return
            self._end_keeper()
            self._data.unlock()
            self._emit("stopped")

    @property
    def url(self) -> str:
        """The libpq URL of the database; after a restart on another port, the new one.

        Raises:
            EmbeddedPostgresError: The server was not started.
        """
        password, port = self._password, self.port
        if password is None or port is None:
            raise EmbeddedPostgresError(
                f"The embedded Postgres in {self._data.path} was not started: call start() first."
            )
        return libpq_url(password, port)

    @property
    def pid(self) -> int | None:
        """The process ID of the postmaster; None while none runs."""
        server = self._server
        return server.child.pid if server else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _prepared(self) -> _Launcher:
        """Make the cluster ready, and return what launches its server on a port."""
        data = self._data
        major = data.cluster_major()
        chosen = binaries.choose(major)
        account = account_for(data.cluster)
        if account is not None and account.pw_name == SHARED_NAME:
            _LOG.warning(
                "Postgres runs as %s, whose other processes can read the database: install"
                " libnss-wrapper or create the account %s before the first start",
                SHARED_NAME,
                NAME,
            )
        launch = Launch(account, stopped=self._stopping)
        installation = binaries.reachable(chosen, launch)
        self.version = installation.version
        remove_leftovers(data)
        if major is None:
            begun = time.monotonic()
            make_cluster(data, launch, installation)
            seconds = round(time.monotonic() - begun, 3)
            self._emit("initialised", version=installation.version, seconds=seconds)
        else:
            clear_predecessor(data, self._emit)
        self._password = data.read_password() or reset_password(data, launch, installation)
        # Without LZ4 it would be pglz, at ten times the cost; pages of hashes do not shrink. Not in
        # postgresql.conf: a build without LZ4, which may come later, would not start by that.
        lz4, settings = "wal_compression=lz4", self._settings
        question = [installation.program("postgres"), "-C", "wal_compression", "-c", lz4]
        with contextlib.suppress(ProgramFailedError):
            # Only with -C as its first argument does Postgres answer root too.
            launch._replace(account=None).run([*question, "-D", str(data.cluster)])
            settings = {"wal_compression": "lz4", **settings}
        return partial(ServerProcess, data, account, installation, settings)

    def _keep(self, launch: _Launcher) -> None:
        """Run one server after the other until the keeper must stop or the first does not start."""
        backoff = Backoff(0.1, 10.0)
        give_up_s = time.monotonic() + START_TIMEOUT_S
        try:
            while not self._stopping.is_set():
                begun_s = time.monotonic()
                pid, reason = self._run_server(launch)
                if self._stopping.is_set():
                    break
                if self._ready.done():
                    self._emit("exited", pid=pid, reason=reason)
                elif time.monotonic() > give_up_s or not any(each in reason for each in _PASSING):
                    error = self._explained(reason, f" and read {self._data.log}")
                    self._ready.set_exception(error)
                    break
                if time.monotonic() - begun_s > STABLE_RUN_S:
                    backoff.reset()
                self._stopping.wait(backoff.take())
        finally:
            self.port = None
            if not self._ready.done():
                self._ready.set_exception(self._explained("", ""))

    def _run_server(self, launch: _Launcher) -> tuple[int | None, str]:
        """Run a server from its launch to its exit; return its process ID, and why it ended."""
        try:
            with self._hand_over:
                server = self._server = launch(choose_port(self._data.last_port()))
                if self._stopping.is_set():
                    server.child.send_signal(signal.SIGINT)
            is_ready = server.await_ready()
            if self._stopping.is_set():
                # One that came before Postgres handles it may have been ignored.
                server.child.send_signal(signal.SIGINT)
            elif is_ready:
                self.port = server.port
                is_first = not self._ready.done()
                self._emit(
                    "started" if is_first else "restarted",
                    pid=server.child.pid,
                    port=server.port,
                    version=self.version,
                    seconds=round(time.monotonic() - server.launched_at_s, 3),
                )
                if is_first:
                    self._ready.set_result(None)
            return server.child.pid, server.wait()
        except OSError as error:
            if self._server is not None:
                self._server.end_by_force()
                self._server.wait()
            return None, _text_of(error)
        finally:
            with self._hand_over:
                self._server = None

    def _ask_to_stop(self) -> None:
        with self._hand_over:
            self._stopping.set()
            if self._server is not None:
                self._server.child.send_signal(signal.SIGINT)

    def _end_keeper(self) -> None:
        if self._keeper is None:
            return
        self._ask_to_stop()
        self._keeper.join(STOP_TIMEOUT_S)
        server = self._server
        if server is not None and self._keeper.is_alive():
            server.end_by_force()
        self._keeper.join()
        self._keeper = None

    def _explained(self, reason: str, more: str) -> EmbeddedPostgresError:
        path = self._data.path
        what = f"The embedded Postgres in {path} does not start ({reason}): mend that{more}"
        if self._stopping.is_set():
            what = f"The embedded Postgres in {path} was stopped while it started: find out by whom"
        elif is_full_disk(reason):
            what = f"The disk that holds {path} is full ({reason}): free some space"
        return EmbeddedPostgresError(f"{what}, then start again.")

    def _emit(self, name: str, **fields: object) -> None:
        try:
            self._on_event(name, fields)
        except Exception:  # noqa: BLE001 - the keeper's end would be the server's
            _LOG.exception("a listener of the embedded Postgres failed on the event %s", name)


def running_url(data_dir: Path) -> str | None:
    """Return the URL of the server that another process runs in this directory, or None.

    Raises:
        EmbeddedPostgresError: This user cannot read the directory.
    """
    data = DataDir(data_dir.absolute())
    ignore_libpq_variables()
    try:
        password, found = data.read_password(), data.pid_file()
        if password is None or found is None or found.port is None or found.status == "stopping":
            return None
        return libpq_url(password, found.port) if data.is_served_by(found.pid) else None
    except OSError as error:
        raise EmbeddedPostgresError(
            f"{error.filename} is not readable for this user ({error.strerror}): run the command as"
            " the user that runs the node."
        ) from error


def _text_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error)
