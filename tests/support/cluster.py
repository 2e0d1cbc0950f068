"""A primary Postgres server and its standby, and the tools to break and promote them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg import sql

from store.db.migrate import upgrade
from store.embedded import binaries
from store.embedded.binaries import account_for
from store.embedded.datadir import DATABASE, DataDir
from store.embedded.process import Launch
from store.embedded.supervisor import ServerProcess
from tests.support import programs
from tests.support.places import quick_directory
from tests.support.polling import eventually
from tests.support.ports import ReservedPort
from tests.support.postgres import ROLE, SUPERUSER, copy_cluster

_STANDBY_NAME: Final = "second"
_HBA: Final = """\
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""
_SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "60",
    "shared_buffers": "64MB",
    "wal_keep_size": "256MB",
    "hot_standby": "on",
}


class ClusterServer:
    """A server on a directory of its own; the thread that starts it must outlive it."""

    def __init__(self, directory: Path) -> None:
        self.data = DataDir(directory)
        self.data.path.mkdir()
        # Chosen once: the connection strings of nodes name it before and after a restart.
        self.leased_port = ReservedPort()
        self._installation = programs.chosen()
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
        self._server = ServerProcess(self.data, account, found, _SETTINGS, self.port)
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
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{DATABASE}"

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
        url = f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{DATABASE}"
        with psycopg.connect(url, autocommit=True) as connection:
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

    Without a ``directory`` of its own it has a quick one, whose logs are copied to ``kept`` at the
    end.
    """

    def __init__(self, kept: Path, directory: Path | None = None) -> None:
        self._places = ExitStack()
        # Not below a directory of pytest's: Postgres's account must get there.
        self.directory = directory or self._places.enter_context(quick_directory(kept))
        self.first = ClusterServer(self.directory / "first")
        self.second = ClusterServer(self.directory / "second")

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
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

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

    def close(self) -> None:
        """Stop both and remove what they left."""
        for server in (self.second, self.first):
            server.stop()
        self._places.close()


def kill_machine(postmaster: psutil.Process) -> None:
    """End all processes of a server at one moment."""
    postmaster.suspend()
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes[1:]:
        process.suspend()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end with its parent
            process.kill()
