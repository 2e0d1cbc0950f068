"""Sudden deaths: of the process that runs the server, of the server, and of what they left."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from store.embedded import EmbeddedPostgres, EmbeddedPostgresError, EmbeddedSettings, running_url
from store.embedded import supervisor as supervisor_module
from store.embedded.datadir import DataDir
from tests.embedded.helpers import Events, insert, node, values, wait_gone
from tests.support.ports import ReservedPort


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
    monkeypatch.setattr(supervisor_module, "BY_FORCE", ((signal.SIGQUIT, 0), (signal.SIGKILL, 10)))
    events = Events()
    with EmbeddedPostgres(EmbeddedSettings(data_dir, stop_timeout_s=0.2), events) as server:
        assert events.wait_for("waiting")["pid"] == suspended.pid
        wait_gone(suspended.pid)
        assert values(server.url) == [1]


def test_a_server_that_ends_unasked_is_restarted_with_its_data(
    made_once: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, port, preferred = Events(), ReservedPort(), list[int | None]()

    def choose_port(last: int | None) -> int:
        preferred.append(last)
        return port.number

    monkeypatch.setattr(supervisor_module, "choose_port", choose_port)
    with EmbeddedPostgres(EmbeddedSettings(data_dir), events) as server:
        assert server.port == port.number
        url, last = server.url, events.wait_for("started")["pid"]
        insert(url, 2)
        for number in (signal.SIGTERM, signal.SIGKILL):
            assert isinstance(last, int)
            os.kill(last, number)
            exited = events.wait_for("exited")
            assert exited["pid"] == last
            if number is signal.SIGKILL:
                assert exited["reason"] == "killed by SIGKILL"
            restarted = events.wait_for("restarted")["pid"]
            assert restarted == server.pid != last
            assert server.url == url
            assert values(url) == [1, 2]
            last = restarted
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as again:
        assert again.url == url, "a later run has the same port"
    assert preferred == [DataDir(made_once).last_port(), *[port.number] * 3]


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
    monkeypatch.setattr(supervisor_module, "BY_FORCE", ((signal.SIGQUIT, 0), (signal.SIGKILL, 10)))
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


def test_a_pid_file_without_its_server_is_removed_and_a_foreign_server_is_left_alone(
    tmp_path: Path,
) -> None:
    data = DataDir(tmp_path)
    data.cluster.mkdir()
    pid_file = data.cluster / "postmaster.pid"

    def running(*name: str) -> subprocess.Popen[bytes]:
        """Start a program, and wait until the system shows its command line."""
        command = ["sh", "-c", "echo; read end", *name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def clear(pid: int) -> bool:
        """Leave a pid file, and return True if it was removed."""
        pid_file.write_text(f"{pid}\n{data.cluster}\n1\n5432\n\n127.0.0.1\n\nready   \n")
        supervisor_module.clear_predecessor(data, 1.0, lambda *_, **__: None)
        return not pid_file.exists()

    with running() as other:
        assert clear(other.pid), "the ID was given to another program"
        assert other.poll() is None
    assert not clear(other.pid), "Postgres itself sees that it has ended"
    # A program with such a name stands for a server that was started by hand.
    with running("postgres") as server:
        with pytest.raises(EmbeddedPostgresError, match=f"Process {server.pid} is a Postgres"):
            clear(server.pid)
        assert server.poll() is None


def test_a_taken_port_is_not_chosen_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        assert supervisor_module.choose_port(port) != port
    assert supervisor_module.choose_port(port) == port
