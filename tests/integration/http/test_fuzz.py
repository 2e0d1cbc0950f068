"""Broken requests: each has an answer that is no failure of the node, or ends its connection."""

from __future__ import annotations

import json
import re
import socket
from random import Random
from typing import Final

from tests.integration.http.api import TIMEOUT_S, Api, message
from tests.support.node import NodeProcess

REQUESTS: Final = 500
SEED: Final = 5
HEAD: Final = "host: localhost\r\nconnection: close\r\n"
READS: Final = (
    "/api/v1/messages?contentTopics=/a/1/b/proto&limit=5&timeStart=1&timeEnd=9&forward=true",
    "/api/v1/messages?hashes=0x" + "ab" * 32,
    "/api/v1/scan?pageSize=3&cursor=U05zGOrvDZlfkFroW9ne7KkRWnhq7ED3qKVNBoPPsFY3",
    "/api/v1/follow?cursor=U05zGOrvDZlfkFroW9ne7KkRWnhq7ED3qKVNBoPPsFY3",
    "/store/v3/messages?hashes=0x" + "cd" * 32 + "&pageSize=5&includeData=true&endTime=5",
    "/openapi.json",
)
BODIES: Final = {
    "/api/v1/messages": {"messages": [message("/fuzz/1/a/proto", version=3, meta="AQ==")]},
    "/api/v1/messages/query": {"hashes": ["0x" + "ef" * 32], "includeData": False},
    "/api/v1/sds/messages": {"channelId": "c", "entries": [{"messageId": "m"}]},
    "/api/v1/sds/causal-history": {"channelId": "c", "heads": [{"messageId": "m"}], "maxDepth": 2},
}


RPCS: Final = (
    ("Publish", "application/proto", b"\x0a\x02\x0a\x00"),
    ("Query", "application/proto", b"\x0a\x017\x10\x01"),
    ("Scan", "application/connect+proto", b"\0\0\0\0\x02\x22\x00"),
    ("Follow", "application/connect+proto", b"\0\0\0\0\x03\x12\x01x"),
)


def drawn(rng: Random) -> bytes:
    """Return a valid random request."""
    if rng.random() < 0.3:
        method, kind, message = rng.choice(RPCS)
        more = f"content-type: {kind}\r\ncontent-length: {len(message)}\r\n"
        timeout = "connect-timeout-ms: 1000\r\n"
        head = f"POST /storenode.v1.Store/{method} HTTP/1.1\r\n{HEAD}{more}{timeout}\r\n"
        return head.encode() + message
    if rng.random() < 0.5:
        return f"GET {rng.choice(READS)} HTTP/1.1\r\n{HEAD}\r\n".encode()
    path, body = rng.choice(list(BODIES.items()))
    text = json.dumps(body)
    kind = f"content-type: application/json\r\ncontent-length: {len(text)}\r\n"
    return f"POST {path} HTTP/1.1\r\n{HEAD}{kind}\r\n{text}".encode()


def broken(rng: Random, request: bytes) -> bytes:
    """Return a request with some bytes changed, cut out, put in or repeated."""
    found = bytearray(request)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(4):
            case 0:
                found[at : at + 1] = rng.randbytes(1)
            case 1:
                del found[at : at + rng.randrange(1, 9)]
            case 2:
                found[at:at] = rng.choice([b"\r\n", b'"', b"%00", b"&", b"[", b"-9" * 20, b"\xff"])
            case _:
                found[at:at] = found[at : at + rng.randrange(1, 200)]
    return bytes(found)


def answered(node: NodeProcess, request: bytes) -> bytes:
    """Return what comes back; nothing more is sent, so the node need not wait."""
    host, _, port = node.http.rpartition(":")
    parts = []
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                parts.append(part)
                if b"text/event-stream" in part or b"application/connect" in part:
                    break
        except (ConnectionResetError, BrokenPipeError):
            pass
    return b"".join(parts)


def test_no_request_breaks_a_node(api: Api, node: NodeProcess) -> None:
    rng, statuses = Random(SEED), set()
    for _ in range(REQUESTS):
        request = broken(rng, drawn(rng))
        answer = answered(node, request)
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        assert status or not answer, (request, answer)
        if status:
            statuses.add(int(status[1]))
    assert statuses <= {200, 400, 404, 405, 408, 413, 415, 421, 431, 501}, statuses
    assert {200, 400, 404} <= statuses
    assert "request_crashed" not in node.log()
    assert api.get("/api/v1/status").json()["ready"]
