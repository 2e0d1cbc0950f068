"""``Store`` over Connect and gRPC-Web at a real node, byte by byte: what libraries do not send."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

import httpx
import psutil
import pytest

from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    CoveragePage,
    FollowPage,
    FollowRequest,
    GetCoverageRequest,
    GetSdsMessagesRequest,
    PublishRequest,
    PublishResponse,
    ScanPage,
    ScanRequest,
    SdsMessagesPage,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.integration.http.api import PUBSUB, Api, message
from tests.integration.http.conftest import ORIGIN
from tests.integration.run.helpers import get
from tests.support.node import NodeProcess

STORE: Final = "/storenode.v1.Store"
CONNECT: Final = {"content-type": "application/connect+proto", "connect-protocol-version": "1"}
UNARY: Final = {"content-type": "application/proto", "connect-protocol-version": "1"}
WEB: Final = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
MIB: Final = 1024 * 1024
END: Final = 0x02
TRAILERS: Final = 0x80


def framed(message_bytes: bytes, flags: int = 0) -> bytes:
    """A message behind its flags and length."""
    return bytes([flags]) + len(message_bytes).to_bytes(4, "big") + message_bytes


def frames(body: bytes) -> list[tuple[int, bytes]]:
    """The flags and messages of an answer."""
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def trailers(body: bytes) -> dict[str, str]:
    """The status of a gRPC-Web answer."""
    flags, last = frames(body)[-1]
    assert flags == TRAILERS
    lines = (each.partition(":") for each in last.decode().strip().split("\r\n"))
    return {name: unquote(value.strip()) for name, _, value in lines}


def resident_bytes(node: NodeProcess) -> int:
    """The memory of a node."""
    assert node.process is not None
    return int(psutil.Process(node.process.pid).memory_info().rss)


def call(api: Api, method: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return api.client.post(f"{STORE}/{method}", content=body, headers=headers)


def filled(topic: str) -> ContentFilter:
    return ContentFilter(content_topics=[topic])


def test_both_protocols_answer_with_the_pages_of_grpc(api: Api, topic: str) -> None:
    given = PublishRequest()
    item = given.messages.add(pubsub_topic=PUBSUB)
    item.message.content_topic, item.message.payload = topic, bytes(range(256))
    item.message.timestamp = int(message(topic)["timestamp"])
    asked = StoreQueryRequest(content_topics=[topic], include_data=True, request_id="7")
    scan = ScanRequest(filter=filled(topic), include_data=True).SerializeToString()

    answer = call(api, "Publish", given.SerializeToString(), UNARY)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/proto")
    [result] = PublishResponse.FromString(answer.content).results
    assert result.outcome == result.STORED
    flags, again = frames(call(api, "Publish", framed(given.SerializeToString()), WEB).content)[0]
    assert flags == 0
    assert PublishResponse.FromString(again).results[0].outcome == result.DUPLICATE

    page = StoreQueryResponse.FromString(
        call(api, "Query", asked.SerializeToString(), UNARY).content
    )
    assert (page.status_code, page.request_id) == (200, "7")
    assert [each.message.payload for each in page.messages] == [bytes(range(256))]
    web = call(api, "Query", framed(asked.SerializeToString()), WEB)
    assert StoreQueryResponse.FromString(frames(web.content)[0][1]) == page
    assert trailers(web.content)["grpc-status"] == "0"

    first, end = frames(call(api, "Scan", framed(scan), CONNECT).content)
    assert ScanPage.FromString(first[1]).messages[0].message == item.message
    assert (end[0], json.loads(end[1])) == (END, {})
    assert frames(call(api, "Scan", framed(scan), WEB).content)[0] == first
    lookup = GetSdsMessagesRequest(channel_id="channel")
    lookup.entries.add(message_id="nowhere")
    found = call(api, "GetSdsMessages", framed(lookup.SerializeToString()), CONNECT)
    assert SdsMessagesPage.FromString(frames(found.content)[0][1]).missing
    steps = call(api, "GetCoverage", framed(GetCoverageRequest().SerializeToString()), CONNECT)
    assert CoveragePage.FromString(frames(steps.content)[0][1]).steps


def followed(response: httpx.Response) -> Iterator[FollowPage]:
    left = b""
    for chunk in response.iter_raw():
        left += chunk
        while len(left) >= 5 and len(left) >= 5 + int.from_bytes(left[1:5], "big"):
            size = 5 + int.from_bytes(left[1:5], "big")
            yield FollowPage.FromString(left[5:size])
            left = left[size:]


@pytest.mark.parametrize("headers", [CONNECT, WEB], ids=["connect", "grpc-web"])
def test_pages_of_a_follower_come_as_they_are_committed(
    api: Api, topic: str, headers: dict[str, str]
) -> None:
    body = framed(FollowRequest(filter=filled(topic)).SerializeToString())
    with api.client.stream("POST", f"{STORE}/Follow", content=body, headers=headers) as stream:
        pages = followed(stream)
        assert next(pages).live
        [result] = api.publish(message(topic))
        page = next(pages)
        assert [f"0x{each.message_hash.hex()}" for each in page.messages] == [result["messageHash"]]


def test_a_deadline_ends_a_stream_with_its_status(api: Api, node: NodeProcess, topic: str) -> None:
    body = framed(FollowRequest(filter=filled(topic)).SerializeToString())
    connect = call(api, "Follow", body, {**CONNECT, "connect-timeout-ms": "300"})
    flags, end = frames(connect.content)[-1]
    assert (flags, json.loads(end)["error"]["code"]) == (END, "deadline_exceeded")
    web = call(api, "Follow", body, {**WEB, "grpc-timeout": "300m"})
    assert trailers(web.content)["grpc-status"] == "4"
    counted = 'storenode_http_requests_total{code="408",operation="connect_Follow"} 2'
    assert counted in get(node.metrics, "/metrics")[1]


WRONG: Final[list[tuple[str, bytes, dict[str, str], int, str]]] = [
    ("Query", b"\xff", UNARY, 400, "the request is no waku.store.v3.StoreQueryRequest"),
    ("Scan", framed(b"\xff"), CONNECT, 400, "the request is no storenode.v1.ScanRequest"),
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
def test_wrong_requests_are_told_why(
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
        answer = call(api, "Publish", framed(large), WEB)
        assert trailers(answer.content)["grpc-status"] == "3"
    assert resident_bytes(node) < before + 6 * len(large)


def test_content_types_may_be_written_otherwise(api: Api) -> None:
    for given in ("Application/GRPC-Web+Proto", "application/grpc-web; charset=utf-8"):
        web = call(api, "Query", framed(b""), {**WEB, "content-type": given})
        assert trailers(web.content)["grpc-status"] == "0"


def test_an_error_of_grpc_web_comes_as_its_status(api: Api) -> None:
    answer = call(api, "Query", framed(b"\xff"), WEB)
    assert (answer.status_code, trailers(answer.content)["grpc-status"]) == (200, "3")
    assert "the request is no " in trailers(answer.content)["grpc-message"]


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


def test_pages_of_named_origins_may_call(api: Api) -> None:
    asking = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, connect-protocol-version, x-grpc-web",
    }
    assert api.client.options(f"{STORE}/Query", headers=asking).status_code == 200
    answer = call(api, "Query", b"", {**UNARY, "origin": ORIGIN})
    assert "grpc-status" in answer.headers["access-control-expose-headers"]
    assert call(api, "Query", b"", {**UNARY, "origin": "https://other.example"}).status_code == 403
