"""A real ``storenode gateway`` process for tests: started, waited for, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support import warm
from tests.support.node import COMMAND, clean_environment, with_defaults

STOP_TIMEOUT_S = 60.0

GENEROUS = (
    *("--max-connections-per-address", "5000", "--max-new-connections-per-s", "100000"),
    *("--max-requests-per-s", "100000"),
)
"""Options of a gateway whose clients are all at one address."""


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway that serves, and what its ready line says."""

    process: subprocess.Popen[str]
    listen: Sequence[str]
    metrics: str
    peer_id: str
    log: Path

    def address(self, transport: str) -> str:
        """Return the multiaddr of the listener with a transport: ``tcp``, ``ws`` or ``wss``."""
        (found,) = (each for each in self.listen if _transport(each) == transport)
        return found

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of a page of the metrics listener."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}{path}") as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def counted(self, name: str) -> float:
        """Return a sample of the metrics, without the prefix of all their names."""
        _, text = self.get("/metrics")
        prefix = f"storenode_gateway_{name} "
        (found,) = (each for each in text.splitlines() if each.startswith(prefix))
        return float(found.removeprefix(prefix))

    def resident_bytes(self) -> int:
        """Return what the process holds in memory."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


def _transport(multiaddr: str) -> str:
    if "/ws/" not in multiaddr:
        return "tcp"
    return "wss" if "/tls/" in multiaddr else "ws"


@contextmanager
def running_gateway(directory: Path, node: str, *options: str) -> Iterator[GatewayProcess]:
    """Yield a gateway on free ports in front of a node, for the length of a ``with`` block."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "gateway.log"
    line = (
        *(COMMAND, "gateway", "--node", node),
        *("--listen", "/ip4/127.0.0.1/tcp/0/ws", "--listen", "/ip4/127.0.0.1/tcp/0"),
        *with_defaults(
            options,
            *("--key-file", str(directory / "gateway.key"), "--metrics-listen", "127.0.0.1:0"),
        ),
    )
    with (
        log.open("ab") as errors,
        warm.popen(
            line,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=clean_environment(),
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready, log.read_text(encoding="utf-8")
            yield GatewayProcess(process, log=log, **json.loads(ready))
        finally:
            process.kill()
