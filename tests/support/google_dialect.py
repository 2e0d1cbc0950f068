"""Google Cloud Storage's dialect in front of an S3 server, which is a real store.

The XML API of Google Cloud Storage is that of S3 but for some headers: a condition is
``x-goog-if-generation-match: 0`` instead of ``If-None-Match: *``. This passes requests on with S3's
headers; everything else, the conditions too, is up to the store.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final
from urllib.parse import unquote

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
        told = {name: text for name, text in answer.getheaders() if name.lower() in _ANSWERED}
        if self.command == "HEAD":
            told["Content-Length"] = answer.getheader("Content-Length", "0")
        self._answer(answer.status, answer.read(), told)
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
        """Requests are not logged."""


@contextmanager
def google_dialect(port: HeldPort, behind: str) -> Iterator[None]:
    """Listen on a port, for a server at HOST:PORT that lets everybody in."""
    handler = type("Handler", (_Handler,), {"behind": behind})
    server = ThreadingHTTPServer(("127.0.0.1", port.number), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
