"""The composition at work: its processes, as `compose.yaml` has them, and what they exchange."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest
import yaml

from chaos.ports import ReservedPort
from chaos.soak.postgres import ClusterServer
from storenode.client.node import connect
from storenode.client.types import PublishResult
from storenode.connection.channel import TlsIdentity
from tests.deploy.tools import DEPLOY, run
from tests.integration.run.helpers import get
from tests.support import polling, warm
from tests.support.fleet import made
from tests.support.node import COMMAND, READY_TIMEOUT_S, clean_environment, read_line
from tests.support.polling import eventually

COMPOSE: Final = DEPLOY / "compose"
IMAGE: Final[Mapping[str, str]] = {
    "STORENODE_DATA_DIR": "/var/lib/storenode/data",
    # The option's default; each container has a loopback of its own.
    "STORENODE_ADMIN_LISTEN": "127.0.0.1:7421",
}
"""The environment that containers of the image have without any file (`deploy/container`)."""

STOP_TIMEOUT_S: Final = 60
PATHS: Final[Mapping[str, str]] = {"/run/secrets": "run-secrets", "/var/lib/storenode": "state"}
"""The mounts of a container, and their names below the directory of the service."""

_MULTIADDR: Final = re.compile(r"/ip4/0\.0\.0\.0/tcp/(\d+)")


class Composition:
    """Starts services by name, after those that they depend on; a context manager.

    ``given``: services that the caller runs, at the ports that `port` returns.
    """

    def __init__(self, directory: Path, given: Iterable[str]) -> None:
        content = yaml.safe_load((COMPOSE / "compose.yaml").read_text("utf-8"))
        self.services: Mapping[str, Any] = content["services"]
        self.directory = directory
        self._files: Mapping[str, Any] = content["secrets"]
        self._ports: dict[tuple[str, int], ReservedPort] = {}
        self._started = set(given)
        self._running: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        # Every interface and loopback are the container's own.
        hosts = "|".join(map(re.escape, [*self.services, "0.0.0.0", "127.0.0.1"]))
        self._address = re.compile(rf"\b({hosts}):(\d+)\b")
        run("sh", str(COMPOSE / "make-secrets.sh"), str(self.secrets))

    def __enter__(self) -> Composition:
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._running):
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for log in self._logs:
            log.close()

    @property
    def secrets(self) -> Path:
        """The directory that `make-secrets.sh` fills."""
        return self.directory / "secrets"

    def port(self, service: str, number: int) -> ReservedPort:
        """Return the port of loopback that stands for one of a service."""
        return self._ports.setdefault((service, number), ReservedPort())

    def address(self, service: str, number: int) -> str:
        """Return HOST:PORT of it."""
        return self.port(service, number).address

    def place(self, service: str) -> Path:
        """Return the directory of a service."""
        return self.directory / service

    def in_place(self, service: str, text: str) -> str:
        """Return a text of a container, with the addresses and paths that it has here."""
        text = self._address.sub(
            lambda found: self.address(
                found[1] if found[1] in self.services else service, int(found[2])
            ),
            text,
        )
        text = _MULTIADDR.sub(
            lambda found: f"/ip4/127.0.0.1/tcp/{self.port(service, int(found[1])).number}", text
        )
        for path, name in PATHS.items():
            text = text.replace(path, str(self.place(service) / name))
        return text

    def start(self, service: str) -> None:
        """Start a service, and first what it depends on, and wait until it is healthy."""
        if service in self._started:
            return
        self._started.add(service)
        self.place_secrets(service)
        for other in self.services[service].get("depends_on", ()):
            self.start(other)
        check = self.services[service].get("healthcheck", {})
        command = [COMMAND, *self._command(service)]
        if "test" not in check:
            assert self.launch(service, command).wait(STOP_TIMEOUT_S) == 0, self.log(service)
            return
        process = self.launch(service, command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        # What serves says so by a line; to ask until it is healthy would slow it down.
        assert read_line(process.stdout, READY_TIMEOUT_S), self.log(service)
        eventually(lambda: process.poll() is not None or self._healthy(service, check["test"]))
        assert process.poll() is None, self.log(service)

    def launch(
        self, service: str, command: Sequence[str], stdout: int | None = None, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a process with the environment of a service; it is ended with the others.

        ``stdout``: where its standard output goes, None: where its log is.
        """
        log = self._log_path(service).open("ab")
        self._logs.append(log)
        process = warm.popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            env=clean_environment(**{**self._environment(service), **env}),
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def log(self, service: str) -> str:
        """Return what it has written."""
        return self._log_path(service).read_text("utf-8", errors="replace")

    def _log_path(self, service: str) -> Path:
        return self.directory / f"{service}.log"

    def _command(self, service: str) -> list[str]:
        return [self.in_place(service, part) for part in self.services[service]["command"]]

    def _environment(self, service: str) -> dict[str, str]:
        inside = {**IMAGE, **self.services[service].get("environment", {})}
        return {name: self.in_place(service, str(value)) for name, value in inside.items()}

    def place_secrets(self, service: str) -> None:
        """Make the directories of a service, and put its secrets there."""
        for name in PATHS.values():
            (self.place(service) / name).mkdir(parents=True)
        for each in self.services[service].get("secrets", ()):
            source, target = (
                (each, each) if isinstance(each, str) else (each["source"], each["target"])
            )
            made = self.secrets / Path(self._files[source]["file"]).name
            path = self.place(service) / PATHS["/run/secrets"] / target
            path.touch(mode=0o600)
            path.write_text(self.in_place(service, made.read_text("utf-8")), "utf-8")

    def _healthy(self, service: str, test: Sequence[str]) -> bool:
        how, *command = (self.in_place(service, part) for part in test)
        assert how == "CMD", test
        command = [sys.executable if part == "python" else part for part in command]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode == 0


DATABASES = ("db-a-1", "db-b-1")
STANDBYS = ("db-a-2", "db-b-2")


@contextmanager
def database(composition: Composition, service: str) -> Iterator[None]:
    """Run a server in the place of a service, which Patroni runs in the composition."""
    server = ClusterServer(composition.place(service))
    server.leased_port = composition.port(service, 5432)
    server.create()
    server.start()
    try:
        yield
    finally:
        server.stop()


@pytest.mark.timeout(900)  # a minute where several tests share a small machine
async def test_nodes_of_the_composition_exchange_what_they_are_given(tmp_path: Path) -> None:
    if os.getuid() != 0:
        # Only root gives secrets to the containers' user: test_compose.py.
        return
    with (
        Composition(tmp_path, [*DATABASES, *STANDBYS, "etcd"]) as composition,
        database(composition, "db-a-1"),
        database(composition, "db-b-1"),
    ):
        for service in ("node-a", "node-b", "gateway"):
            composition.start(service)
            assert get(composition.address(service, 7422), "/metrics")[0] == 200
        token = (composition.secrets / "app.token").read_text().strip()
        tls = TlsIdentity(ca=(composition.secrets / "ca.pem").read_bytes())
        a, b = (composition.address(node, 7420) for node in ("node-a", "node-b"))
        async with connect(a, token=token, tls=tls) as client:
            messages = made(20, time.time_ns(), span_s=5)
            results = [each async for _, each in client.publish_all(messages)]
        assert [each.outcome for each in results] == [PublishResult.STORED] * len(messages)
        async with connect(b, token=token, tls=tls) as client:

            async def all_there() -> bool:
                stored = {
                    each.message_hash async for page in client.scan() for each in page.messages
                }
                return stored.issuperset(each.message_hash for each in results)

            await polling.until(all_there)
