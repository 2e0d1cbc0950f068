"""Sudden deaths: of the process that runs the server, of the server, and of what they left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from store.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    EmbeddedSettings,
    running_url,
)
from store.embedded import supervisor as supervisor_module
from tests.embedded.helpers import PATIENCE_S, Events, insert, node, reserve_port, values, wait_gone


@pytest.mark.parametrize("watch_by_pipe", [False, True], ids=["kernel", "watchdog"])
def test_the_server_goes_when_its_node_is_killed(data_dir: Path, *, watch_by_pipe: bool) -> None:
    with node(data_dir, watch_by_pipe=watch_by_pipe) as running:
        insert(running.said["url"], 2)
        running.kill()
        wait_gone(running.said["pid"])
    assert running_url(data_dir) is None
    assert "received fast shutdown request" in (data_dir / "postgres.log").read_text()
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert values(server.url) == [1, 2]


def test_a_node_that_follows_at_once_waits_for_the_old_server(data_dir: Path) -> None:
    with node(data_dir) as running:
        insert(running.said["url"], 2)
        running.kill()
        with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
            assert server.pid != running.said["pid"]
            assert values(server.url) == [1, 2]


@pytest.fixture
def suspended(data_dir: Path) -> Iterator[psutil.Process]:
    """Yield a server whose node was killed and which, being suspended, cannot act on that."""
    with node(data_dir) as running:
        server = psutil.Process(running.said["pid"])
        server.suspend()
        running.kill()
        yield server
        with suppress(psutil.NoSuchProcess):
            server.kill()


def test_a_server_that_outlived_its_node_is_stopped_first(
    data_dir: Path, suspended: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "QUIT_TIMEOUT_S", 0.2)
    events = Events()
    with EmbeddedPostgres(EmbeddedSettings(data_dir, stop_timeout_s=0.2), events) as server:
        assert events.wait_for("waiting")["pid"] == suspended.pid
        wait_gone(suspended.pid)
        assert values(server.url) == [1]


def test_a_server_that_ends_unasked_is_restarted_with_its_data(data_dir: Path) -> None:
    events, port = Events(), reserve_port(data_dir)
    with EmbeddedPostgres(EmbeddedSettings(data_dir), events) as server:
        assert server.port == port.number
        url, last = server.url, events.wait_for("started")["pid"]
        insert(url, 2)
        for number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL):
            assert isinstance(last, int)
            os.kill(last, number)
            exited = events.wait_for("exited")
            assert exited["pid"] == last
            if number is signal.SIGKILL:
                assert exited["reason"] == "killed by SIGKILL"
                events.wait_for("recovering")
            restarted = events.wait_for("restarted")["pid"]
            assert restarted == server.pid != last
            assert server.url == url
            assert values(url) == [1, 2]
            last = restarted


def test_stop_comes_through_while_the_server_cannot_restart(data_dir: Path) -> None:
    events = Events()
    server = EmbeddedPostgres(EmbeddedSettings(data_dir), events)
    server.start()
    assert server.pid is not None
    control = data_dir / "postgres" / "global" / "pg_control"
    control.rename(control.with_name("hidden"))
    os.kill(server.pid, signal.SIGKILL)
    assert events.wait_for("exited")["reason"] == "killed by SIGKILL"
    assert "pg_control" in str(events.wait_for("exited")["reason"])
    server.stop()
    control.with_name("hidden").rename(control)
    with server:
        assert values(server.url) == [1]


def test_a_server_that_hangs_is_stopped_by_force(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "QUIT_TIMEOUT_S", 0.2)
    server = EmbeddedPostgres(EmbeddedSettings(data_dir, stop_timeout_s=0.2))
    server.start()
    assert server.pid is not None
    process = psutil.Process(server.pid)
    process.suspend()
    server.stop()
    wait_gone(process.pid)
    with server:
        assert values(server.url) == [1]


def test_a_server_that_never_gets_ready_is_given_up(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(supervisor_module, "POLL_INTERVAL_S", 0.0)
        server = EmbeddedPostgres(EmbeddedSettings(data_dir, start_timeout_s=0.0))
        with pytest.raises(EmbeddedPostgresError, match="said nothing for 0 s while starting"):
            server.start()
    assert server.pid is None
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as again:
        assert values(again.url) == [1]


def test_stop_breaks_a_start_off(tmp_path: Path) -> None:
    def stop_at_once(name: str, _fields: object) -> None:
        if name == "initialised":
            # The same thread may do this, which makes the moment certain.
            server.stop()

    server = EmbeddedPostgres(EmbeddedSettings(tmp_path / "data"), stop_at_once)
    with pytest.raises(EmbeddedPostgresError, match="was stopped while it was starting"):
        server.start()
    assert server.pid is None
    with server:
        insert(server.url, 1)


def test_what_a_killed_initialisation_left_is_removed(data_dir: Path) -> None:
    left = data_dir / "postgres.new-half" / "cluster"
    left.mkdir(parents=True)
    (left / "PG_VERSION").write_text("18\n")
    (data_dir / "postgres.json-half").write_text("{")
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert values(server.url) == [1]
    assert not [*data_dir.glob("*half")]


def test_a_stale_pid_file_is_no_obstacle(data_dir: Path) -> None:
    pid_file = data_dir / "postgres" / "postmaster.pid"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(PATIENCE_S)
    _leave_pid_file(pid_file, ended.pid)
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert values(server.url) == [1]


def test_a_pid_file_whose_process_is_now_another_program_is_no_obstacle(data_dir: Path) -> None:
    owner = (data_dir / "postgres").stat().st_uid
    # The same account as the server's, or Postgres would not mistake it for one.
    other = subprocess.Popen(["sh", "-c", "read end"], stdin=subprocess.PIPE, user=owner)
    _leave_pid_file(data_dir / "postgres" / "postmaster.pid", other.pid)
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert values(server.url) == [1]
    assert other.poll() is None
    other.communicate(b"\n", timeout=PATIENCE_S)


def test_a_foreign_server_on_the_cluster_is_left_alone(data_dir: Path) -> None:
    # A program with such a name stands for a server that was started by hand.
    other = subprocess.Popen(["sh", "-c", "read end", "postgres"], stdin=subprocess.PIPE)
    _leave_pid_file(data_dir / "postgres" / "postmaster.pid", other.pid)
    with pytest.raises(EmbeddedPostgresError, match=f"Process {other.pid} is a Postgres server"):
        EmbeddedPostgres(EmbeddedSettings(data_dir)).start()
    assert other.poll() is None
    other.communicate(b"\n", timeout=PATIENCE_S)


def _leave_pid_file(path: Path, pid: int) -> None:
    path.write_text(f"{pid}\n{path.parent}\n1\n5432\n\n127.0.0.1\n\nready   \n")
    os.chown(path, path.parent.stat().st_uid, -1)
    path.chmod(0o600)
