"""Object stores of the tests' own: SeaweedFS for S3, and in front of it the dialect of Google's."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from prometheus_client.parser import text_string_to_metric_families

from chaos.ports import ReservedPort
from tests.support.pages import ROOT

PROGRAM: Final = Path(sysconfig.get_path("scripts"), "weed")
BUCKET: Final = "archives"
_KEY: Final = "the-key"
_SECRET: Final = "the-secret"
_START_S: Final = 60.0


class ObjectStore:
    """The server; a bucket is there from the first object in it."""

    def __init__(self) -> None:
        self.ports = [ReservedPort() for _ in range(9)]
        self.s3, self.metrics = self.ports[0], self.ports[1]
        self.url = f"s3://{BUCKET}"

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process reaches it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.s3.address}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }

    def requests(self) -> int:
        """Return how many requests it has answered."""
        with urllib.request.urlopen(f"http://{self.metrics.address}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return sum(
                int(sample.value)
                for family in families
                for sample in family.samples
                if sample.name == "SeaweedFS_s3_request_total"
            )

    def command(self, folder: Path) -> list[str]:
        """Return the program with its options."""
        config = folder / "s3.json"
        everybody = {"name": "anonymous", "actions": ["Admin", "Read", "Write", "List"]}
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        config.write_text(json.dumps({"identities": [identity, everybody]}))
        names = ["s3.port", "metricsPort", "s3.port.grpc"]
        for each in ("master", "volume", "filer"):
            names += [f"{each}.port", f"{each}.port.grpc"]
        ports = [f"-{name}={port.number}" for name, port in zip(names, self.ports, strict=True)]
        return [
            *(str(PROGRAM), "-logtostderr=true", "server", f"-dir={folder}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-metricsIp=127.0.0.1"),
            *("-filer", "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.telemetry=false", "-volume.max=16", "-master.volumeSizeLimitMB=64"),
            *ports,
        ]

    def wait(self, server: subprocess.Popen[bytes]) -> None:
        """Wait until it answers."""
        until = time.monotonic() + _START_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.s3.address}/healthz", timeout=1):
                    return
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "the S3 server has ended"
                assert time.monotonic() < until, "the S3 server does not answer"
                time.sleep(0.05)


@contextmanager
def running_store(store: ObjectStore, folder: Path) -> Iterator[None]:
    """Run a server with its data in a folder for the length of a block."""
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(store.command(folder), stdout=output, stderr=output)
    try:
        store.wait(server)
        yield
    finally:
        server.kill()  # it takes ten seconds to end by itself, and leaves nothing behind
        server.wait()


# The dialect of Google Cloud Storage

_PASSED: Final = {"content-type", "range", "if-none-match", "if-match"}
_ANSWERED: Final = {"content-type", "content-range", "etag", "last-modified"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind: str

    def handle_any(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", "0")))
        server = http.client.HTTPConnection(self.behind, timeout=60)
        path, _, query = self.path.partition("?")
        # The key is one part of Google's path.
        server.request(self.command, f"{unquote(path)}?{query}", data, self._translated())
        answer = server.getresponse()
        headers = {name: text for name, text in answer.getheaders() if name.lower() in _ANSWERED}
        if self.command == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length", "0")
        self._answer(answer.status, answer.read(), headers)
        server.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - names of methods

    def _translated(self) -> dict[str, str]:
        given = {name.lower(): text for name, text in self.headers.items()}
        found = {name: text for name, text in given.items() if name in _PASSED}
        if given.get("x-goog-if-generation-match") == "0":
            found["if-none-match"] = "*"
        if "x-goog-copy-source" in given:
            found["x-amz-copy-source"] = given["x-goog-copy-source"]
        return found

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing."""


@contextmanager
def google_dialect(port: ReservedPort, behind: str) -> Iterator[None]:
    """Listen on a port, for a server at HOST:PORT that lets everybody in.

    In a process of its own: delta-rs lets no other thread run while it waits for an answer.
    """
    command = [sys.executable, "-m", __spec__.name, str(port.number), behind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield
        finally:
            server.kill()


def serve_dialect(port: str, behind: str) -> None:
    """Serve until the end."""
    handler = type("Handler", (_Handler,), {"behind": behind})
    with ThreadingHTTPServer(("127.0.0.1", int(port)), handler) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    serve_dialect(*sys.argv[1:])
