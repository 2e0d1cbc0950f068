"""Postgres servers on directories of their own, a primary with its standby, and how they break.

They run the programs that an embedded server runs, unless the environment variable
`TEST_POSTGRES_BIN` names a directory with others.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg import sql

from chaos.ports import ReservedPort
from chaos.tasks import eventually
from store.db.migrate import upgrade
from store.embedded import binaries
from store.embedded.binaries import Installation, account_for
from store.embedded.datadir import DATABASE, DataDir, make_cluster
from store.embedded.process import Launch
from store.embedded.supervisor import ServerProcess

SUPERUSER: Final = "postgres"
ROLE: Final = "storenode"
PROGRAMS_VARIABLE: Final = "TEST_POSTGRES_BIN"

_VERSION_TIMEOUT_S: Final = 60
_STANDBY_NAME: Final = "second"
_HBA: Final = """\
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""
SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "60",
    "shared_buffers": "64MB",
    "wal_keep_size": "256MB",
    "hot_standby": "on",
}


class ClusterServer:
    """A server on a directory of its own; the thread that starts it must outlive it."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.data = DataDir(directory)
        self.data.path.mkdir(exist_ok=True)
        # Chosen once: the connection strings of nodes name it before and after a restart.
        self.leased_port = ReservedPort()
        self._settings = settings
        self._installation = choose_programs()
        self._account = account_for(self.data.cluster)
        self._server: ServerProcess | None = None

    def create(self) -> None:
        """Make an empty cluster with the database and the role of nodes."""
        copy_cluster(self.data.path, self._installation)
        (self.data.cluster / "pg_hba.conf").write_text(_HBA)

    def copy(self, primary: ClusterServer) -> None:
        """Make a standby by a base backup of a running server."""
        found = binaries.reachable(self._installation, Launch(self._account))
        self.data.cluster.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(self.data.cluster, self._account.pw_uid, self._account.pw_gid)
        source = f"host=127.0.0.1 port={primary.port} user={SUPERUSER}"
        launch = Launch(self._account, self.data.cluster)
        command = [found.program("pg_basebackup"), "--pgdata", launch.path, "--dbname", source]
        launch.run([*command, "--checkpoint=fast", "--wal-method=stream"])
        (self.data.cluster / "standby.signal").touch()
        self.set(
            primary_conninfo=f"{source} application_name={_STANDBY_NAME}",
            synchronous_standby_names="",
        )

    def set(self, **settings: str) -> None:
        """Write settings for the next start."""
        with (self.data.cluster / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def reload(self, **settings: str) -> None:
        """Write settings, and wait until the running server obeys them."""
        self.set(**settings)
        self.ask("select pg_reload_conf()")
        self.ask("checkpoint")  # The checkpointer, which lets commits wait, has read them then.

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        found = binaries.reachable(self._installation, Launch(self._account))
        account = account_for(self.data.cluster)
        self._server = ServerProcess(self.data, account, found, self._settings, self.port)
        assert self._server.await_ready(), self._server.wait()

    @property
    def port(self) -> int:
        """The port on which it listens, or will."""
        return self.leased_port.number

    @property
    def process(self) -> psutil.Process:
        """The postmaster."""
        assert self._server is not None, "the server was not started"
        return psutil.Process(self._server.child.pid)

    @property
    def url(self) -> str:
        """URL of the nodes' database."""
        return self.url_of(ROLE)

    def url_of(self, role: str, database: str = DATABASE) -> str:
        """Return the libpq URL of a role and a database."""
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """Shut it down as `pg_ctl stop -m fast` does; nothing to do when it does not run."""
        if self._server is not None:
            self._server.child.send_signal(signal.SIGINT)
            self._server.wait()
            self._server = None

    def kill(self) -> None:
        """End all its processes at one moment, as when its machine loses power."""
        assert self._server is not None, "the server was not started"
        kill_machine(self.process)
        self._server.wait()
        self._server = None

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser in the nodes' database."""
        with psycopg.connect(self.url_of(SUPERUSER), autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement), values)
            return cursor.fetchall() if cursor.description else []


def start_server(directory: Path) -> ClusterServer:
    """Start a server with the schema."""
    server = ClusterServer(directory)
    server.create()
    server.start()
    upgrade(server.url)
    return server


class Pair:
    """A primary, its standby, and the URL that names both; a context manager.

    Postgres's account must get at ``directory``.
    """

    def __init__(self, directory: Path) -> None:
        self.first = ClusterServer(directory / "first")
        self.second = ClusterServer(directory / "second")

    @property
    def url(self) -> str:
        """The URL of both hosts; a node adds that it wants the one that takes writes."""
        hosts = f"127.0.0.1:{self.first.port},127.0.0.1:{self.second.port}"
        return f"postgresql://{ROLE}@{hosts}/{DATABASE}"

    def __enter__(self) -> Pair:
        try:
            self.first.create()
            self.first.start()
            upgrade(self.first.url)
            self.second.copy(self.first)
            self.second.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def synchronous(self, *, on: bool = True) -> None:
        """Let every commit of the primary wait for the standby's disk, or for none."""
        self.first.reload(synchronous_standby_names=_STANDBY_NAME if on else "")
        eventually(lambda: not on or self.replicating() == "sync")

    def replicating(self) -> str | None:
        """Return how the standby replicates: `sync`, `async`, or None while it is not connected."""
        query = "select sync_state from pg_stat_replication where state = 'streaming'"
        return next((state for (state,) in self.first.ask(query)), None)

    def cut(self) -> None:
        """Break the replication and keep it broken."""
        self.second.reload(primary_conninfo="")
        eventually(lambda: self.replicating() is None)

    def catch_up(self) -> None:
        """Wait until the standby shows what the primary has now."""
        ((reached,),) = self.first.ask("select pg_current_wal_flush_lsn()")
        query = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
        eventually(lambda: self.second.ask(query, reached) == [(True,)])

    def promote(self) -> None:
        """Make the standby the primary."""
        assert self.second.ask("select pg_promote(true, 60)") == [(True,)]

    def rebuild(self) -> None:
        """Make the first server, which has ended, the standby of the promoted one, and swap them.

        Both keep their ports, by which nodes find them.
        """
        shutil.rmtree(self.first.data.cluster)
        self.first.copy(self.second)
        self.first.start()
        self.first, self.second = self.second, self.first

    def stop(self) -> None:
        """Stop both."""
        for server in (self.second, self.first):
            server.stop()


def find_postmaster(node: int) -> psutil.Process:
    """Return the postmaster of the embedded Postgres of a node, by the node's process ID."""
    children = psutil.Process(node).children()
    (found,) = [each for each in children if each.name().startswith("postgres")]
    return found


def kill_machine(postmaster: psutil.Process) -> None:
    """End all processes of a server at one moment."""
    postmaster.suspend()
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes[1:]:
        process.suspend()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end with its parent
            process.kill()


def choose_programs() -> Installation:
    """Return the programs to run a new server with."""
    directory = os.environ.get(PROGRAMS_VARIABLE)
    if not directory:
        return binaries.choose(None)
    done = subprocess.run(
        [Path(directory, "postgres"), "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_VERSION_TIMEOUT_S,
    )
    return Installation(Path(directory), done.stdout.split()[2], movable=False)


def copy_cluster(directory: Path, installation: Installation | None = None) -> Path:
    """Copy an empty cluster, as its first start would make it, into a data directory of a node.

    To copy one costs a tenth of making it, and all that are copied have one system identifier.
    """
    made = _made(installation or binaries.choose(None))
    directory.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["cp", "-a", *made.iterdir(), directory], check=True)
    return directory


@cache
def _made(installation: Installation) -> Path:
    """Return a data directory with a cluster that was never started."""
    data = DataDir(Path(tempfile.mkdtemp(prefix="storenode-made-")))
    atexit.register(shutil.rmtree, data.path, ignore_errors=True)
    launch = Launch(account_for(data.cluster))
    make_cluster(data, launch, binaries.reachable(installation, launch))
    return data.path
