"""The HTTP listener of a real node: /api/v1, the sites that may call, and Connect byte by byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from openapi_spec_validator import validate

from storenode.wire.storenode.v1.store_pb2 import ContentFilter, FollowRequest
from tests.calls.transports import STORE, framed
from tests.integration.http.api import Api, failed, message
from tests.integration.http.conftest import HOST, HTTP, ORIGIN
from tests.integration.run.helpers import get
from tests.support.node import NodeProcess, running_node
from tests.support.pages import ROOT, as_shown, steps
from tests.support.participant import claiming, genuine, genuine_id


def test_the_description_is_valid_and_names_what_is_served(api: Api) -> None:
    validate(api.document)
    for path, operations in api.document["paths"].items():
        for method in operations:
            answer = api.client.request(method, path, params={"colour": "red"}, content=b"x")
            if method == "post":
                assert answer.status_code == 415
            elif path.startswith("/api"):
                assert "unknown field `colour`" in failed(answer)[2]
            else:
                assert answer.status_code == 200
        refused = api.client.delete(path)
        assert (refused.status_code, "DELETE" in refused.text) == (405, True)
    assert api.client.get("/api/v2").status_code == 404


def test_a_line_says_whether_its_id_is_proven(api: Api, node: NodeProcess, topic: str) -> None:
    channel = f"channel of {topic}"
    name = genuine_id(channel, b"genuine")
    forged = message(topic, claiming(channel, name, b"forged"))
    api.publish(forged, message(topic, genuine(channel, b"genuine")))
    asked = {"channelId": channel, "entries": [{"messageId": name}]}
    lines = api.lines(api.post("/api/v1/sds/messages", asked))
    assert [line["proven"] for line in lines] == [False, True]
    status = api.get("/api/v1/status").json()
    assert (status["ready"], status["nodeId"]) == (True, node.ready["node_id"])
    assert status["messages"] > 0
    assert int(status["oldestTimestamp"]) <= int(status["newestTimestamp"])


def test_a_body_that_is_too_large_or_has_too_many_texts_is_refused(api: Api) -> None:
    headers, part = {"content-type": "application/json"}, b" " * 65_536

    def chunks() -> Iterator[bytes]:
        yield from [part] * 257

    for body in (part * 257, chunks()):
        response = api.client.post("/api/v1/messages", content=body, headers=headers)
        assert response.status_code == 413
        assert "at most 16,777,216" in failed(response)[2]
    many = {"channelId": "c", "heads": [], "knownIds": [""] * 1_000_000}
    status, code, sentence = failed(api.post("/api/v1/sds/causal-history", many))
    assert (status, code) == (413, "RESOURCE_EXHAUSTED")
    assert "more than 640,000 quotation marks" in sentence


def test_the_steps_of_the_page_work(tmp_path: Path, new_store: Callable[[], str]) -> None:
    todo = steps((ROOT / "docs" / "http.md").read_text(encoding="utf-8"))
    assert len(todo) > 9
    with running_node(tmp_path / "node", *HTTP, database_url=new_store()) as node:
        as_shown(todo, {"API": f"http://{node.http}"})


def test_the_viewer_of_the_description_needs_nothing_from_elsewhere(api: Api) -> None:
    page = api.client.get("/docs")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for path in ("/docs.js", "/page.css", "/page.svg", "/openapi.json"):
        assert path in page.text
        assert api.client.get(path).status_code == 200


OTHER = "https://other.example"


def test_a_name_that_leads_to_the_node_is_refused_and_counted(
    api: Api, node: NodeProcess, topic: str
) -> None:
    body = {"messages": [message(topic)]}
    foreign = {"host": "rebound.example"}
    for answer in (
        api.client.get("/", headers=foreign),
        api.client.get("/openapi.json", headers=foreign),
        api.client.post("/api/v1/messages", json=body, headers=foreign),
        api.client.options("/api/v1/messages", headers={**foreign, "origin": ORIGIN}),
    ):
        status, code, sentence = failed(answer)
        assert (status, code) == (421, "PERMISSION_DENIED")
        assert "--http-allow-host" in sentence
    assert api.get("/api/v1/messages", contentTopics=topic).json() == {"messages": []}
    assert api.client.get("/api/v1/status", headers={"host": HOST}).status_code == 200
    text = get(node.metrics, "/metrics")[1]
    assert 'storenode_http_requests_total{code="421",operation="refused"} ' in text
    assert "storenode_http_connections " in text
    zero = 'storenode_http_requests_total{code="500",operation="scan"} 0.0'
    assert zero in text, "alerts need it"


def test_other_sites_write_nothing_and_only_named_ones_read(api: Api, topic: str) -> None:
    path, body = "/api/v1/messages", {"messages": [message(topic)]}
    for origin, allowed in ((ORIGIN, ORIGIN), (OTHER, None)):
        sent = {"origin": origin, "sec-fetch-site": "cross-site"}
        asking = {"origin": origin, "access-control-request-method": "POST"}
        answers = [
            api.client.options(path, headers=asking),
            api.client.get("/api/v1/status", headers={"origin": origin}),
            api.client.post(path, json=body, headers=sent),
        ]
        named = [each.headers.get("access-control-allow-origin") for each in answers]
        assert named == [allowed] * 3
    assert "--http-allow-origin" in failed(answers[-1])[2]
    assert len(api.get(path, contentTopics=topic).json()["messages"]) == 1


CONNECT: Final = {"content-type": "application/connect+proto", "connect-protocol-version": "1"}
UNARY: Final = {"content-type": "application/proto", "connect-protocol-version": "1"}
END: Final = 0x02


def frames(body: bytes) -> list[tuple[int, bytes]]:
    """Return the flags and messages of an answer."""
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def call(api: Api, method: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return api.client.post(f"{STORE}/{method}", content=body, headers=headers)


def test_a_deadline_ends_a_stream_with_its_status(api: Api, node: NodeProcess, topic: str) -> None:
    body = framed(FollowRequest(filter=ContentFilter(content_topics=[topic])).SerializeToString())
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


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "application/grpc", "application/grpc+proto"]
)
def test_what_is_no_protobuf_is_refused_before_it_is_read(api: Api, content_type: str) -> None:
    answer = call(api, "Query", b"{}", {"content-type": content_type})
    assert answer.status_code == 415
    assert answer.json()["code"] == "invalid_argument"
    assert "useBinaryFormat" in answer.json()["message"]
    otherwise = {**UNARY, "content-type": "Application/Proto; charset=utf-8"}
    assert call(api, "Query", b"", otherwise).status_code == 200
    got = api.client.get(f"{STORE}/Scan", headers=CONNECT)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert api.client.post(f"{STORE}/PublishStream", headers=CONNECT).status_code == 404
