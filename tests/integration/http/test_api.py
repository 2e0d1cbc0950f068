"""``/api/v1`` of a real node: what is published is read, followed and described as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from store.http.codec import to_json, to_lines
from storenode.client.types import AnswerCoverage
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from storenode.wire.storenode.v1.store_pb2 import (
    CoveragePage,
    CoverageStep,
    StoreCoverage,
)
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


def test_a_confirmed_answer_names_the_stores_and_the_time() -> None:
    said = AnswerCoverage(
        state=AnswerCoverage.COMPLETE,
        store_ids=["b", "c"],
        compared_at=7,
        complete_from=5,
        complete_until=9,
        keyed=True,
        time_start=5,
        time_end=9,
    )
    assert to_json(said) == {
        "state": "COMPLETE",
        "timeStart": "5",
        "timeEnd": "9",
        "storeIds": ["b", "c"],
        "comparedAt": "7",
        "completeFrom": "5",
        "completeUntil": "9",
        "keyed": True,
    }


def test_an_hour_has_its_activity_and_its_missing_parents(api: Api) -> None:
    *_, hour = api.lines(api.get("/api/v1/coverage", channelId="nowhere"))
    assert len(hour["fingerprint"]) == 2 + 64
    assert hour["intake"] in {"ONLINE", "OFFLINE"}
    assert hour["missingParents"] == 0
    assert api.client.get("/api/v1/coverage", params={"step": "WEEK"}).status_code == 400


def test_an_hour_is_shown_with_its_coverage_by_other_stores() -> None:
    differs = StoreCoverage(
        store_id="b", state=StoreCoverage.DIFFERS, compared_at=7, missing_here=4, missing_there=0
    )
    once = StoreCoverage(store_id="c", state=StoreCoverage.UNCONFIRMED, last_equal=6, keyed=True)
    step = CoverageStep(time_start=1, time_end=2, before_horizon=True, stores=[differs, once])
    (found,) = to_lines(CoveragePage(steps=[step]))
    assert found == {
        "timeStart": "1",
        "timeEnd": "2",
        "beforeHorizon": True,
        "intake": "INTAKE_UNSPECIFIED",
        "stores": [
            {
                "storeId": "b",
                "state": "DIFFERS",
                "comparedAt": "7",
                "missingHere": 4,
                "missingThere": 0,
            },
            {"storeId": "c", "state": "UNCONFIRMED", "lastEqual": "6", "keyed": True},
        ],
    }


def test_the_status_shows_the_stored_messages(api: Api, node: NodeProcess, topic: str) -> None:
    api.publish(message(topic))
    found = api.get("/api/v1/status").json()
    assert (found["ready"], found["nodeId"]) == (True, node.ready["node_id"])
    assert found["messages"] > 0
    assert int(found["oldestTimestamp"]) <= int(found["newestTimestamp"])


WRONG = [
    ("/api/v1/messages", {"limit": "many"}, "Expected `int`, got `str` - at `$.limit`"),
    ("/api/v1/messages", {"timeStart": "-5"}, "Expected `int` >= 0 - at `$.timeStart`"),
    ("/api/v1/messages", {"hashes": "0x12"}, "$.hashes"),
    ("/api/v1/messages", {"hashes": UNKNOWN, "timeEnd": "5"}, "ask for one of the two"),
    ("/api/v1/messages", {"cursor": UNKNOWN[:-1]}, "$.cursor"),
    ("/api/v1/messages", {"pubsubTopic": ["a", "b"]}, "`pubsubTopic` is given twice"),
    ("/api/v1/messages", {"contentTopics": ""}, "an empty topic"),
    ("/api/v1/messages", {"x" * 5_000: ""}, "unknown field `xx"),
    ("/api/v1/scan", {"cursor": "?"}, "the cursor is none of this node's"),
    ("/api/v1/scan", {"cursor": "abcd"}, "the cursor is not one of Scan"),
    ("/api/v1/follow", {"cursor": "abcd"}, "the cursor is not one of Follow"),
]


@pytest.mark.parametrize(("path", "parameters", "sentence"), WRONG)
def test_wrong_parameters_are_named(
    api: Api, path: str, parameters: dict[str, object], sentence: str
) -> None:
    status, code, said = failed(api.get(path, **parameters))
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert sentence in said
    assert len(said) < 300


BODIES: list[tuple[bytes, int, str]] = [
    (b"", 400, "is no JSON"),
    (b"[" * 100_000, 400, ""),
    (b'{"messages": {}}', 400, "Expected `array`"),
    (b'{"messages": [{}]}', 400, "missing required field `payload`"),
    (b'{"messages": [], "colour": 1}', 400, "unknown field `colour`"),
    (b'{"messages": [], "confirmTimeoutS": 1e9}', 400, "<= 300"),
    (b'{"messages": "\xff"}', 400, ""),
    (b" " * (16 * 1024 * 1024 + 1), 413, "at most 16,777,216"),
]


@pytest.mark.parametrize(("body", "status", "sentence"), BODIES)
def test_wrong_bodies_are_refused(api: Api, body: bytes, status: int, sentence: str) -> None:
    headers = {"content-type": "application/json"}
    response = api.client.post("/api/v1/messages", content=body, headers=headers)
    assert response.status_code == status
    assert sentence in failed(response)[2]

    def chunks() -> Any:  # noqa: ANN401 - what httpx takes as a body without a length
        yield from (body[at : at + 65_536] for at in range(0, len(body), 65_536))

    response = api.client.post("/api/v1/messages", content=chunks(), headers=headers)
    assert response.status_code == status


def test_more_than_a_limit_allows_is_refused(api: Api) -> None:
    status, code, sentence = failed(api.get("/api/v1/messages", contentTopics=["a"] * 65))
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert "more than 64 parameters" in sentence
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


def test_a_request_id_is_kept_where_it_is_fit_for_a_log(api: Api) -> None:
    for given, kept in (("abc-1", True), ("a b", False), ("x" * 65, False)):
        found = api.client.get("/api/v1/status", headers={"x-request-id": given})
        assert (found.headers["x-request-id"] == given) is kept


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
