"""``/api/v1`` of a real node: what is published is read, followed and described as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from openapi_spec_validator import validate

from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from tests.integration.http.api import Api, failed, message
from tests.integration.http.conftest import HTTP
from tests.integration.run.helpers import get
from tests.support.forged import claiming, genuine, genuine_id
from tests.support.node import NodeProcess, running_node
from tests.support.pages import ROOT, as_shown, steps

UNKNOWN = "0x" + "ab" * 32


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


def test_hashes_are_taken_with_and_without_0x(api: Api, topic: str) -> None:
    name, channel = f"id-{topic}", f"channel-{topic}"
    (result,) = api.publish(sds(topic, channel, name, lamport=1))
    shown = result["messageHash"]
    for spelled in (shown, shown[2:], shown[2:].upper(), f"0X{shown[2:]}"):
        found = api.get("/api/v1/messages", hashes=spelled).json()["messages"]
        assert [each["messageHash"] for each in found] == [shown]
        assert api.get("/api/v1/messages", cursor=spelled, contentTopics=topic).status_code == 200
        entry = {"messageId": name, "retrievalHint": spelled}
        asked = {"channelId": channel, "entries": [entry]}
        (line,) = api.lines(api.post("/api/v1/sds/messages", asked))
        assert line["messageHash"] == shown
        page = api.get("/store/v3/messages", hashes=spelled).json()
        assert [each["messageHash"] for each in page["messages"]] == [shown]
        assert api.get("/store/v3/messages", cursor=spelled).status_code == 200


def sds(topic: str, channel: str, name: str, *parents: str, lamport: int) -> dict[str, Any]:
    body = SdsMessage(
        sender_id="sender",
        message_id=name,
        channel_id=channel,
        lamport_timestamp=lamport,
        causal_history=[HistoryEntry(message_id=each) for each in parents],
        content=b"content",
    )
    return message(topic, body.SerializeToString())


def test_a_line_says_whether_its_id_is_proven(api: Api, topic: str) -> None:
    channel = f"channel of {topic}"
    name = genuine_id(channel, b"genuine")
    forged = message(topic, claiming(channel, name, b"forged"))
    api.publish(forged, message(topic, genuine(channel, b"genuine")))
    asked = {"channelId": channel, "entries": [{"messageId": name}]}
    lines = api.lines(api.post("/api/v1/sds/messages", asked))
    assert [line["proven"] for line in lines] == [False, True]


def test_the_status_shows_the_stored_messages(api: Api, node: NodeProcess, topic: str) -> None:
    api.publish(message(topic))
    found = api.get("/api/v1/status").json()
    assert (found["ready"], found["nodeId"]) == (True, node.ready["node_id"])
    assert found["messages"] > 0
    assert int(found["oldestTimestamp"]) <= int(found["newestTimestamp"])


def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    headers, part = {"content-type": "application/json"}, b" " * 65_536

    def chunks() -> Iterator[bytes]:
        yield from [part] * 257

    for body in (part * 257, chunks()):
        response = api.client.post("/api/v1/messages", content=body, headers=headers)
        assert response.status_code == 413
        assert "at most 16,777,216" in failed(response)[2]


def test_more_than_a_limit_allows_is_refused(api: Api) -> None:
    many = {"channelId": "c", "heads": [], "knownIds": [""] * 1_000_000}
    status, code, sentence = failed(api.post("/api/v1/sds/causal-history", many))
    assert (status, code) == (413, "RESOURCE_EXHAUSTED")
    assert "more than 640,000 quotation marks" in sentence


def test_requests_are_counted(api: Api, node: NodeProcess) -> None:
    name = 'storenode_http_requests_total{code="400",operation="query"}'

    def count() -> float:
        lines = get(node.metrics, "/metrics")[1].splitlines()
        return sum(float(each.split()[-1]) for each in lines if each.startswith(name))

    before = count()
    api.get("/api/v1/messages", limit="x")
    assert count() == before + 1
    text = get(node.metrics, "/metrics")[1]
    assert "storenode_http_connections " in text
    assert 'storenode_http_requests_total{code="500",operation="scan"} 0.0' in text, (
        "alerts need it"
    )


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
