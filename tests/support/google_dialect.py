"""Google Cloud Storage's dialect in front of an S3 server, which is a real store.

The XML API of Google Cloud Storage is that of S3 but for some headers: a condition is
``x-goog-if-generation-match: 0`` instead of ``If-None-Match: *``. This passes requests on with S3's
headers; everything else, the conditions too, is up to the store.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import unquote

from tests.support.pages import ROOT
from tests.support.ports import HeldPort

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
def google_dialect(port: HeldPort, behind: str) -> Iterator[None]:
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


def main(port: str, behind: str) -> None:
    """Serve until the end."""
    handler = type("Handler", (_Handler,), {"behind": behind})
    with ThreadingHTTPServer(("127.0.0.1", int(port)), handler) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
