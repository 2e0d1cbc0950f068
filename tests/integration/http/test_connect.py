"""``Store`` over Connect at a real node, byte by byte: what libraries do not send."""

from __future__ import annotations

import gzip
import json
from typing import Final

import httpx
import psutil
import pytest

from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
)
from tests.calls.transports import STORE, framed
from tests.integration.http.api import Api
from tests.integration.run.helpers import get
from tests.support.node import NodeProcess

CONNECT: Final = {"content-type": "application/connect+proto", "connect-protocol-version": "1"}
UNARY: Final = {"content-type": "application/proto", "connect-protocol-version": "1"}
MIB: Final = 1024 * 1024
END: Final = 0x02


def frames(body: bytes) -> list[tuple[int, bytes]]:
    """Return the flags and messages of an answer."""
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def resident_bytes(node: NodeProcess) -> int:
    """Return the memory of a node."""
    assert node.process is not None
    return int(psutil.Process(node.process.pid).memory_info().rss)


def call(api: Api, method: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return api.client.post(f"{STORE}/{method}", content=body, headers=headers)


def filled(topic: str) -> ContentFilter:
    return ContentFilter(content_topics=[topic])


def test_a_deadline_ends_a_stream_with_its_status(api: Api, node: NodeProcess, topic: str) -> None:
    body = framed(FollowRequest(filter=filled(topic)).SerializeToString())
    connect = call(api, "Follow", body, {**CONNECT, "connect-timeout-ms": "300"})
    flags, end = frames(connect.content)[-1]
    assert (flags, json.loads(end)["error"]["code"]) == (END, "deadline_exceeded")
    counted = 'storenode_http_requests_total{code="408",operation="connect_Follow"} 1'
    assert counted in get(node.metrics, "/metrics")[1]


WRONG: Final[list[tuple[str, bytes, dict[str, str], int, str]]] = [
    ("Scan", framed(b"", 0x40), CONNECT, 400, "invalid envelope flags"),
    ("Scan", b"\0\xff\xff\xff\xff", CONNECT, 400, "promised 4294967295 bytes"),
    ("Scan", b"\0\0", CONNECT, 400, "incomplete envelope"),
    ("Scan", b"", CONNECT, 501, "zero messages"),
    ("Scan", framed(b"") * 2, CONNECT, 501, "multiple messages"),
    ("Scan", framed(gzip.compress(b""), 1), CONNECT, 501, "without compression"),
    ("Query", b"", {**UNARY, "content-encoding": "gzip"}, 501, "unknown compression"),
    (
        "Query",
        b"",
        {**UNARY, "connect-timeout-ms": "-1"},
        400,
        "the header of the timeout cannot be read",
    ),
    ("Query", b" " * (16 * 1024 * 1024 + 1), UNARY, 429, "at most 16,777,216"),
    ("Scan", b" " * (1024 * 1024 + 1), CONNECT, 429, "at most 1,048,576"),
]


@pytest.mark.parametrize("asked", WRONG, ids=lambda asked: asked[-1])
def test_wrong_requests_get_the_reason(
    api: Api, asked: tuple[str, bytes, dict[str, str], int, str]
) -> None:
    method, body, headers, status, sentence = asked
    answer = call(api, method, body, headers)
    if headers["content-type"] == CONNECT["content-type"]:
        assert answer.status_code == 200
        [(flags, end)] = frames(answer.content)
        assert flags == END
        error = json.loads(end)["error"]
    else:
        assert answer.status_code == status
        error = answer.json()
    assert sentence in error["message"], error
    assert answer.headers["x-request-id"]


def test_refused_requests_are_not_kept(api: Api, node: NodeProcess) -> None:
    large = b"\xff" * (15 * MIB)
    before = resident_bytes(node)
    for _ in range(24):
        assert call(api, "Publish", large, UNARY).status_code == 400
    assert resident_bytes(node) < before + 6 * len(large)


def test_a_content_type_may_be_written_otherwise(api: Api) -> None:
    headers = {**UNARY, "content-type": "Application/Proto; charset=utf-8"}
    assert call(api, "Query", b"", headers).status_code == 200


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "application/grpc", "application/grpc+proto"]
)
def test_what_is_no_protobuf_is_refused_before_it_is_read(api: Api, content_type: str) -> None:
    answer = call(api, "Query", b"{}", {"content-type": content_type})
    assert answer.status_code == 415
    assert answer.json()["code"] == "invalid_argument"
    assert "useBinaryFormat" in answer.json()["message"]
    got = api.client.get(f"{STORE}/Scan", headers=CONNECT)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert api.client.post(f"{STORE}/PublishStream", headers=CONNECT).status_code == 404
