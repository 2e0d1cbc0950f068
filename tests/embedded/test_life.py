"""A server of the node's own: its life, its deaths, its output, and what it refuses."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil
import psycopg
import pytest

from chaos.ports import ReservedPort
from store.embedded import EmbeddedPostgres, EmbeddedPostgresError, binaries, process, running_url
from store.embedded import supervisor as supervisor_module
from store.embedded.datadir import DataDir, make_cluster
from store.embedded.process import (
    MAX_REASON_CHARS,
    Launch,
    OutputPump,
    ProgramFailedError,
    complaint,
)
from tests.embedded.helpers import (
    AS_ROOT,
    NAMELESS,
    Events,
    copy_owned,
    insert,
    node,
    open_directory,
    unprivileged,
    values,
    wait_gone,
)

SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "data_checksums": "on",
    "server_encoding": "UTF8",
    "timezone": "UTC",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "33",
    "work_mem": "9MB",
}
FOREIGN_VARIABLES: Final = {
    "PGSSLMODE": "require",
    "PGHOSTADDR": "203.0.113.7",
    "PGSERVICE": "no-such-service",
    "PGOPTIONS": "-c no_such_setting=1",
    "PGREQUIREAUTH": "none",
}
"""Variables of libpq, which are meant for other servers."""

Served = tuple[EmbeddedPostgres, Path]
"""A running server and its data directory."""


def _one(url: str, query: str) -> tuple[object, ...]:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def test_a_new_directory_becomes_a_database_that_stays(tmp_path: Path, made_once: Path) -> None:
    events = Events()
    server = EmbeddedPostgres(tmp_path / "deep" / "data", on_event=events)
    url = server.start()
    assert url == server.url == server.start()
    assert f"@127.0.0.1:{server.port}/storenode" in url
    other = json.loads((made_once / "postgres.json").read_text())
    assert other["password"] not in url
    insert(url, 7)
    server.stop()
    assert server.pid is None
    assert server.port is None
    assert values(server.start()) == [7]
    server.stop()
    server.stop()
    assert events.names() == ["initialised", "started", "stopped", "started", "stopped"]


@pytest.fixture(scope="module")
def served(made_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a server with settings of its own, whose process has variables of libpq."""
    data_dir = tmp_path_factory.mktemp("served") / "data"
    copy_owned(made_once, data_dir)
    settings = {"max_connections": "33", "work_mem": "9MB"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FOREIGN_VARIABLES.items():
            patch.setenv(name, value)
        with EmbeddedPostgres(data_dir, settings) as server:
            yield server, data_dir


def test_the_settings_are_those_of_a_durable_store(served: Served) -> None:
    server, _ = served
    query = "select " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    assert _one(server.url, query) == (*SETTINGS.values(),)
    assert _one(server.url, "show server_version") == (server.version,)
    collation = "select datcollate from pg_database where datname='storenode'"
    assert _one(server.url, collation) == ("C",)
    (compression,) = _one(server.url, "show wal_compression")
    assert compression in {"lz4", "off"}


def test_a_cluster_starts_with_programs_that_lack_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(launch: Launch, command: Sequence[str], **options: Any) -> str:  # noqa: ANN401
        return "" if "-C" in command else run(launch, command, **options)

    run, data = Launch.run, DataDir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Launch, "run", accept)
        make_cluster(data, Launch(binaries.account_for(data.cluster)), binaries.choose(None))
    with EmbeddedPostgres(tmp_path) as server:
        insert(server.url, 1)


def test_the_role_owns_its_database_and_nothing_else(served: Served) -> None:
    url = served[0].url
    rights = "rolsuper or rolcreaterole or rolcreatedb or rolreplication"
    asked = f"select {rights} from pg_roles where rolname = current_user"
    owner = "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"
    assert _one(url, asked) == (False,)
    assert _one(url, owner) == ("storenode",)
    with psycopg.connect(url) as connection:
        connection.execute("create schema own")
        connection.execute("listen own")


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": "wrong"},
        {"password": None},
        {"dbname": "postgres"},
        {"user": "postgres"},
        {"user": "postgres", "password": None, "dbname": "postgres"},
    ],
)
def test_no_other_account_gets_in(served: Served, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(served[0].url)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**{**right, **wrong})


def test_secrets_files_and_the_process_are_for_their_owner_alone(served: Served) -> None:
    server, data_dir = served
    assert server.pid is not None
    password = str(psycopg.conninfo.conninfo_to_dict(server.url)["password"])
    process = psutil.Process(server.pid)
    assert password not in " ".join(process.cmdline())
    assert password not in (data_dir / "postgres.log").read_text()
    for path in data_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    uid = process.uids().effective
    if AS_ROOT and binaries.find_nss_wrapper() is not None:
        others = {each.pid for each in psutil.process_iter() if each.uids().effective == uid}
        assert uid in binaries.UNUSED_IDS
        assert others <= {each.pid for each in (process, *process.children(recursive=True))}
    assert (data_dir / "postgres").stat().st_uid == uid != (0 if AS_ROOT else -1)
    assert (data_dir / "postgres.json").stat().st_uid == os.geteuid()


def test_a_start_mends_what_a_crash_or_an_operator_left(data_dir: Path) -> None:
    half = data_dir / "postgres.new-half" / "cluster"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    (data_dir / "postgres.json-half").write_text("{")
    (data_dir / "postgres.json").unlink()  # the password is lost
    data_dir.chmod(0o777)
    with EmbeddedPostgres(data_dir) as server:
        assert values(server.url) == [1]
    assert not [*data_dir.glob("*half")]
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o775


def test_another_process_finds_the_running_server(data_dir: Path) -> None:
    assert running_url(data_dir / "nothing") is None
    assert running_url(data_dir) is None
    with node(data_dir) as running:
        assert running_url(data_dir) == running.said["url"]
        assert values(running.said["url"]) == [1]
        assert running.stop() == 0
    assert running_url(data_dir) is None


def test_stopping_waits_for_no_client_and_no_listener(data_dir: Path) -> None:
    def fail(name: str, _fields: object) -> None:
        raise ValueError(name)

    server = EmbeddedPostgres(data_dir, on_event=fail)
    with pytest.raises(EmbeddedPostgresError, match=r"was not started: call start\(\)"):
        _ = server.url
    with psycopg.connect(server.start()) as connection:
        connection.execute("select 1")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")


def test_the_server_goes_when_its_node_is_killed(data_dir: Path) -> None:
    with node(data_dir) as running:
        insert(running.said["url"], 2)
        running.kill()
        wait_gone(running.said["pid"])
    assert running_url(data_dir) is None
    assert "received fast shutdown request" in (data_dir / "postgres.log").read_text()
    with EmbeddedPostgres(data_dir) as server:
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
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 0.2)
    events = Events()
    with EmbeddedPostgres(data_dir, on_event=events) as server:
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
    with EmbeddedPostgres(data_dir, on_event=events) as server:
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
    with EmbeddedPostgres(data_dir) as again:
        assert again.url == url, "a later run has the same port"
    assert preferred == [DataDir(made_once).last_port(), *[port.number] * 3]


def test_stop_comes_through_while_the_server_cannot_restart(data_dir: Path) -> None:
    events = Events()
    server = EmbeddedPostgres(data_dir, on_event=events)
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
    monkeypatch.setattr(supervisor_module, "STOP_TIMEOUT_S", 0.2)
    server = EmbeddedPostgres(data_dir)
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
        patch.setattr(supervisor_module, "START_TIMEOUT_S", 0.0)
        server = EmbeddedPostgres(data_dir)
        with pytest.raises(EmbeddedPostgresError, match="said nothing for 0 s while starting"):
            server.start()
    assert server.pid is None
    with EmbeddedPostgres(data_dir) as again:
        assert values(again.url) == [1]


@pytest.mark.parametrize("moment", ["initdb", "initialised"])
def test_stop_ends_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def stop_at_once(name: str, _fields: object) -> None:
        if name == moment:
            server.stop()  # in the same thread, which makes the moment certain

    def begin(launch: Launch, command: Sequence[str], **options: int) -> subprocess.Popen[bytes]:
        child = popen(launch, command, **options)
        stop_at_once(Path(command[0]).name, None)
        return child

    popen = Launch.popen
    server = EmbeddedPostgres(tmp_path / "data", on_event=stop_at_once)
    with monkeypatch.context() as patch:
        patch.setattr(Launch, "popen", begin)
        with pytest.raises(EmbeddedPostgresError, match="was stopped while it started"):
            server.start()
    assert server.pid is None
    assert (tmp_path / "data" / "postgres").exists() == (moment == "initialised")
    with server:
        insert(server.url, 1)


def test_a_pid_file_without_its_server_is_removed_and_a_foreign_server_is_left_alone(
    tmp_path: Path,
) -> None:
    data = DataDir(tmp_path)
    data.cluster.mkdir()
    pid_file = data.cluster / "postmaster.pid"

    def running(name: str) -> subprocess.Popen[bytes]:
        """Start a program with an option of a node, and wait for its command line."""
        command = [name, "-c", "echo; read end", "--postgres-setting=jit=on"]
        process = subprocess.Popen(
            command, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def clear(pid: int) -> bool:
        """Leave a pid file, and return True if it was removed."""
        pid_file.write_text(f"{pid}\n{data.cluster}\n1\n5432\n\n127.0.0.1\n\nready   \n")
        supervisor_module.clear_predecessor(data, lambda *_, **__: None)
        return not pid_file.exists()

    with running("/srv/postgres/bin/storenode") as other:
        assert clear(other.pid), "the ID was given to another program, such as a node"
        assert other.poll() is None
    assert not clear(other.pid), "Postgres itself sees that it has ended"
    assert not clear(10**12), "no ID of a process"
    # A program with such a name stands for a server that was started by hand.
    with running("/opt/my programs/postgres") as server:
        with pytest.raises(EmbeddedPostgresError, match=f"Process {server.pid} is a Postgres"):
            clear(server.pid)
        assert server.poll() is None


def test_a_command_that_looks_for_a_node_keeps_none_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, flock = os.open(tmp_path / "storenode.lock", os.O_CREAT), fcntl.flock
    flock(asked, fcntl.LOCK_SH)

    def lock_after_the_command(fd: int, how: int) -> None:
        if how & fcntl.LOCK_SH:
            flock(asked, fcntl.LOCK_UN)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_after_the_command)
    data = DataDir(tmp_path)
    data.lock()
    data.unlock()
    os.close(asked)


def test_a_taken_port_is_not_chosen_again() -> None:
    port = ReservedPort()
    with socket.create_server(("127.0.0.1", port.number)):
        assert supervisor_module.choose_port(port.number) != port.number
    assert supervisor_module.choose_port(port.number) == port.number


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "it ended without a word"),
        ("FATAL:  " + "x" * 10_000, "x" * MAX_REASON_CHARS),
        ("LOG:  fine\nlast line\n\n", "last line"),
        ("10:00 [1] FATAL:  first\n10:01 [1] LOG:  then\n", "first"),
        ("initdb: error: cannot\ninitdb: removing files\n", "cannot"),
        (
            "running ... FATAL:  could not extend: wrote only 1 of 2 bytes\nPANIC:  cannot abort\n",
            "could not extend: wrote only 1 of 2 bytes",
        ),
        (
            "FATAL:  could not write: No space left on device\nPANIC:  cannot abort\n",
            "could not write: No space left on device",
        ),
    ],
)
def test_the_line_that_explains_is_the_one_that_is_reported(output: str, reason: str) -> None:
    assert complaint(output) == reason


def test_the_log_is_bounded_and_loses_its_oldest_part_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_LOG_BYTES", 1_000)
    monkeypatch.setattr(process, "LOG_READ_BYTES", 100)
    log = tmp_path / "postgres.log"
    reading, writing = os.pipe()
    pump = OutputPump(os.fdopen(reading, "rb"), log)
    lines = [f"line {n:04d}\n" for n in range(500)]
    with os.fdopen(writing, "wb") as out:
        out.write("".join(lines).encode())
    assert pump.join(60)
    kept = (tmp_path / "postgres.log.1").read_text() + log.read_text()
    assert "".join(lines).endswith(kept)
    assert 1_000 <= len(kept) <= 2_000
    assert pump.complaint() == lines[-1].strip()
    assert {path.name for path in tmp_path.iterdir()} == {"postgres.log", "postgres.log.1"}


def test_output_is_drained_although_the_log_cannot_be_written(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    pump = OutputPump(os.fdopen(reading, "rb"), tmp_path / "absent" / "postgres.log")
    with os.fdopen(writing, "wb") as out:
        out.write(b"x" * 1_000_000)
    assert pump.join(60)
    assert pump.bytes_read == 1_000_000


def test_a_program_that_does_not_end_is_given_up() -> None:
    with pytest.raises(ProgramFailedError, match=r"/bin/sh did not end within 0\.2 s"):
        Launch().run(["/bin/sh", "-c", "kill -STOP $$"], timeout_s=0.2)


def _refusal(data_dir: Path, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    server = EmbeddedPostgres(data_dir, settings)
    with pytest.raises(EmbeddedPostgresError) as caught:
        server.start()
    assert server.pid is None
    return str(caught.value)


def test_a_setting_that_postgres_refuses_is_named_and_leaves_the_directory_free(
    data_dir: Path,
) -> None:
    broken = _refusal(data_dir, {"shared_buffers": "plenty"})
    assert 'invalid value for parameter "shared_buffers": "plenty"' in broken
    assert str(data_dir / "postgres.log") in broken
    assert not DataDir(data_dir).is_locked()


@pytest.mark.parametrize("name", ["port", "listen_addresses", "Unix_Socket_Directories"])
def test_a_setting_that_is_the_supervisors_is_refused(tmp_path: Path, name: str) -> None:
    assert f"{name} of the embedded Postgres is managed" in _refusal(tmp_path, {name: "1"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("13\n", ("made by Postgres 13 and only", "pg_upgrade")),
        ("eighteen", ("says 'eighteen' instead of a version",)),
        ("²", ("instead of a version",)),
    ],
)
def test_a_cluster_of_a_version_that_is_not_installed_or_of_none(
    tmp_path: Path, version: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_bytes(os.fsencode(version))
    said = _refusal(tmp_path)
    assert all(each in said for each in words)


def test_a_cluster_of_an_older_version_keeps_its_programs() -> None:
    assert binaries.choose(16).major == 16 < binaries.choose(None).major


def search_alone(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Take the package with the programs away, and leave one directory to search."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(binaries, "SYSTEM_PATTERNS", ())
    monkeypatch.setenv("PATH", str(path))


def test_without_programs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_alone(monkeypatch, tmp_path)
    said = _refusal(tmp_path / "data")
    assert "pip install 'storenode[embedded]'" in said
    assert "--database-url" in said
    assert not (tmp_path / "data" / "postgres").exists()


def test_programs_on_the_path_are_the_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = binaries.choose(None)
    search_alone(monkeypatch, wheel.bin_dir)
    found = binaries.choose(None)
    assert (found.bin_dir, wheel.movable, found.movable) == (wheel.bin_dir, True, False)


def test_a_directory_that_this_user_cannot_write() -> None:
    with open_directory() as directory:
        directory.chmod(0o555)
        with node(directory / "below", **unprivileged()) as running:
            assert "below cannot be used (Permission denied)" in running.said["error"]
        directory.chmod(0o755)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (".", "cannot be used (File exists)"),
        ("PG_VERSION", "is itself a Postgres cluster"),
        ("postgres", "is not a Postgres cluster: move it away"),
        ("postgres/letter.txt", "is not a Postgres cluster: move it away"),
    ],
)
def test_what_others_have_in_the_place_of_the_database_is_refused_and_not_touched(
    tmp_path: Path, place: str, words: str
) -> None:
    data = tmp_path / "data"
    theirs = data / place
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("dear")
    said = _refusal(data)
    assert (words in said, "--data-dir" in said) == (True, True), said
    assert theirs.read_text() == "dear"
    assert (data / "storenode.lock").exists() is place.startswith("postgres")


def test_the_password_is_not_for_others_to_ask() -> None:
    with open_directory() as directory:
        data = directory / "data"
        with EmbeddedPostgres(data):
            data.chmod(0)
            if not AS_ROOT:
                with pytest.raises(EmbeddedPostgresError, match="not readable"):
                    running_url(data)
            with node(data, **unprivileged()) as running:
                assert "Permission denied" in running.said["error"]
            data.chmod(0o700)


def _private_installation(below: Path) -> binaries.Installation:
    """Return the programs as they are in an environment below a directory of mode 0700."""
    source = binaries.choose(None)
    package = source.bin_dir.parents[1]
    ignored = shutil.ignore_patterns("include", "*.a")
    for tree in (source.bin_dir.parent, package.with_name(package.name + ".libs")):
        if tree.is_dir():
            target = below / "private" / tree.relative_to(package.parent)
            shutil.copytree(tree, target, ignore=ignored, symlinks=True)
    bin_dir = below / "private" / source.bin_dir.relative_to(package.parent)
    (below / "private").chmod(0o700)
    return binaries.Installation(bin_dir, source.version, movable=True)


def test_everything_below_a_private_directory_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_directory() as base:
        hidden = _private_installation(base)
        copies = base / "copies"
        copies.mkdir()
        monkeypatch.setattr(binaries, "choose", lambda _major: hidden)
        monkeypatch.setattr(binaries, "_PRIVATE_COPY_BASES", (str(copies),))
        parents = [base / "private", base, *base.parents]
        modes = [each.stat().st_mode for each in parents]
        with EmbeddedPostgres(base / "private" / "data") as server:
            insert(server.url, 1)
        assert [each.stat().st_mode for each in parents] == modes
        assert len([*copies.glob("storenode/*")]) == (1 if AS_ROOT else 0)


def test_programs_are_copied_only_where_root_alone_can_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copied: list[Path] = []
    monkeypatch.setattr(binaries, "_copy_into_place", lambda _tree, target: copied.append(target))
    shared, linked, good = (tmp_path / each for each in ("shared", "linked", "good"))
    (shared / "storenode").mkdir(parents=True)
    (shared / "storenode").chmod(0o777)
    linked.mkdir()
    (linked / "storenode").symlink_to(shared)
    good.mkdir()
    source = binaries.choose(None)
    for refused in (tmp_path / "absent", shared, linked):
        assert binaries._copied_below(refused, source) is None
    assert copied == []
    found = binaries._copied_below(good, source)
    assert found is not None
    assert found.bin_dir.is_relative_to(copied[0])


def test_a_node_whose_user_has_no_passwd_entry_has_its_own_database() -> None:
    options = unprivileged()
    with open_directory() as base:
        uid = options.get("uid", os.geteuid())
        assert isinstance(uid, int)
        os.chown(base, uid, -1)
        with node(base / "data", **options) as running:
            insert(running.said["url"], 1)
            assert running.stop() == 0
        assert {path.stat().st_uid for path in base.rglob("*")} == {uid}
        # A user with the rights may serve it in between; files made by that are its owner's too.
        for name in ("postgres.json", "postgres.log", "storenode.lock"):
            (base / "data" / name).unlink()
        with EmbeddedPostgres(base / "data") as server:
            assert values(server.url) == [1]
        assert {path.stat().st_uid for path in base.rglob("*")} == {uid}


def test_the_servers_account_is_the_owner_of_the_cluster(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = data_dir / "postgres"
    owner = cluster.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    chosen = binaries.account_for(cluster)
    assert chosen is not None
    assert chosen.pw_uid == owner != 0
    with pytest.raises(EmbeddedPostgresError, match="chown -R"):
        binaries.account_for(Path("/usr"))  # which is root's
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(EmbeddedPostgresError, match=f"belongs to user ID {owner}"):
        binaries.account_for(cluster)


def test_root_gives_each_new_cluster_a_user_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(binaries, "NAME", "no-such-account")
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: "libnss_wrapper.so")
    first, second = (
        binaries.account_for(Path(each)) for each in ("/nonexistent/a/postgres", "/gone/b/postgres")
    )
    assert first is not None
    assert second is not None
    assert first.pw_uid != second.pw_uid
    assert {first.pw_uid, second.pw_uid} <= set(binaries.UNUSED_IDS)
    assert not binaries.has_name(first.pw_uid)
    monkeypatch.setattr(binaries, "has_name", lambda uid: uid == first.pw_uid)
    assert binaries.account_for(Path("/nonexistent/a/postgres")) != first
    monkeypatch.setattr(binaries, "_ids_of_processes", lambda: set(binaries.UNUSED_IDS))
    with pytest.raises(EmbeddedPostgresError, match="create the account `no-such-account`"):
        binaries.account_for(Path("/nonexistent"))
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: None)
    shared = binaries.account_for(Path("/nonexistent"))
    assert shared is not None
    assert shared.pw_name == "nobody"


def test_the_files_that_name_a_user_can_be_read_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: "libnss_wrapper.so")
    with binaries.named_user(binaries._by_uid(NAMELESS)) as variables:
        path = Path(variables["NSS_WRAPPER_PASSWD"])
        assert path.stat().st_mode & 0o004
        assert all(each.stat().st_mode & 0o001 for each in path.parents)


def test_a_user_without_a_name_and_nss_wrapper_is_refused_with_both_remedies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: None)
    with (
        pytest.raises(EmbeddedPostgresError, match=rf"User ID {NAMELESS} has no name") as refusal,
        binaries.named_user(binaries._by_uid(NAMELESS)),
    ):
        pass
    assert "libnss-wrapper" in str(refusal.value)
    assert "/etc/passwd" in str(refusal.value)
