"""``/api/v1`` of a real node: what is published is read, followed and described as it is."""

from __future__ import annotations

import base64
from itertools import chain
from typing import Any

import grpc
import pytest
from openapi_spec_validator import validate

from store.domain.coverage import AnswerCoverage, AnswerState
from store.http.codec import to_json, to_lines
from store.serving.methods.encode import coverage_message
from storenode.client.messages import hash_of, new_message
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from storenode.wire.storenode.v1.store_pb2 import (
    CoveragePage,
    CoverageStep,
    FollowRequest,
    StoreCoverage,
)
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.integration.http.api import PUBSUB, TIMEOUT_S, Api, events, failed, message
from tests.integration.run.helpers import get
from tests.support.forged import claiming, genuine, genuine_id
from tests.support.node import NodeProcess

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


def test_messages_come_back_as_they_were_published(api: Api, topic: str) -> None:
    whole = message(topic, bytes(range(256)), version=1, meta="AQID", rateLimitProof="/w==")
    results = api.publish(whole, message(topic), whole, message("", b"x"))
    assert [each["outcome"] for each in results] == ["STORED", "STORED", "DUPLICATE", "REJECTED"]
    assert "content topic" in results[3]["reason"]
    expected = new_message(
        bytes(range(256)), topic, PUBSUB, int(whole["timestamp"]), meta=b"\1\2\3", version=1
    )
    assert results[0]["messageHash"] == f"0x{hash_of(expected).hex()}"
    page = api.get("/api/v1/messages", contentTopics=topic, forward="true").json()
    wanted = {key: value for key, value in whole.items() if key != "pubsubTopic"}
    assert page["messages"][0] == {
        "messageHash": results[0]["messageHash"],
        "pubsubTopic": PUBSUB,
        "message": wanted,
    }
    assert "cursor" not in page
    hashes = [each["messageHash"] for each in results[:2]]
    given = api.post("/api/v1/messages/query", {"hashes": [*hashes, UNKNOWN], "includeData": False})
    assert given.json() == {"messages": [{"messageHash": each} for each in hashes]}


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


def test_ephemeral_messages_reach_followers_alone(api: Api, topic: str) -> None:
    with api.client.stream("GET", "/api/v1/follow", params={"contentTopics": topic}) as stream:
        coming = events(stream)
        assert next(coming).json == {"live": True}
        [result] = api.publish(message(topic, ephemeral=True))
        assert result["outcome"] == "EPHEMERAL"
        assert next(coming).json["messageHash"] == result["messageHash"]
    assert api.get("/api/v1/messages", contentTopics=topic).json() == {"messages": []}


def test_pages_and_scans_hold_everything_once(api: Api, topic: str) -> None:
    sent = [message(topic) for _ in range(23)]
    hashes = [each["messageHash"] for each in api.publish(*sent)]
    bounds = {"timeStart": sent[3]["timestamp"], "timeEnd": sent[20]["timestamp"]}
    for forward in ("true", "false"):
        found: list[list[str]] = []
        cursor: dict[str, str] = {}
        while True:
            page = api.get(
                "/api/v1/messages",
                contentTopics=[topic, "/other/1/topic/proto"],
                limit=5,
                forward=forward,
                includeData="false",
                **bounds,
                **cursor,
            ).json()
            found.append([each["messageHash"] for each in page["messages"]])
            if "cursor" not in page:
                break
            cursor = {"cursor": page["cursor"]}
        pages = found if forward == "true" else found[::-1]
        assert list(chain(*pages)) == hashes[3:20]
    lines = api.lines(api.get("/api/v1/scan", contentTopics=topic, pageSize=10))
    assert [each["messageHash"] for each in lines if "messageHash" in each] == hashes
    first = next(each["cursor"] for each in lines if "cursor" in each)
    rest = api.lines(api.get("/api/v1/scan", contentTopics=topic, cursor=first))
    assert [each["messageHash"] for each in rest if "messageHash" in each] == hashes[10:]
    nothing = api.get("/api/v1/scan", timeStart=5, timeEnd=5)
    assert (nothing.status_code, nothing.text) == (200, "")


def test_what_is_committed_is_followed_in_order(api: Api, node: NodeProcess, topic: str) -> None:
    asked = {"contentTopics": topic, "fromBeginning": "true", "includeData": "false"}
    before = [each["messageHash"] for each in api.publish(*(message(topic) for _ in range(5)))]
    with api.client.stream("GET", "/api/v1/follow", params=asked) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        coming = events(stream)
        assert [next(coming).json["messageHash"] for _ in range(5)] == before
        end = next(coming)
        while not end.json["live"]:
            end = next(coming)
        assert end.name == "page"
        after = [each["messageHash"] for each in api.publish(message(topic))]
        assert next(coming).json == {"messageHash": after[0]}
        behind = next(coming)
    with api.client.stream(
        "GET", "/api/v1/follow", params=asked, headers={"last-event-id": end.id}
    ) as stream:
        coming = events(stream)
        assert next(coming).json == {"messageHash": after[0]}
    # It is the cursor of gRPC as well.
    cursor = base64.urlsafe_b64decode(behind.id + "=" * (-len(behind.id) % 4))
    with grpc.insecure_channel(node.listen) as channel:
        following = StoreStub(channel).Follow(FollowRequest(cursor=cursor), timeout=TIMEOUT_S)
        page = next(iter(following))
        assert (len(page.messages), page.live) == (0, True)


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


def test_sds_messages_and_what_they_depend_on(api: Api, topic: str) -> None:
    channel = f"channel of {topic}"
    results = api.publish(
        sds(topic, channel, "a", lamport=1),
        sds(topic, channel, "b", "a", "lost", lamport=2),
        sds(topic, channel, "c", "b", lamport=3),
    )
    asked = {"channelId": channel, "entries": [{"messageId": "b"}, {"messageId": "nowhere"}]}
    found, missing = api.lines(api.post("/api/v1/sds/messages", asked))
    assert (found["messageId"], found["messageHash"]) == ("b", results[1]["messageHash"])
    assert missing == {"missing": {"messageId": "nowhere"}}
    walk = {"channelId": channel, "heads": [{"messageId": "c"}]}
    lines = api.lines(api.post("/api/v1/sds/causal-history", walk))
    order = [each["messageId"] for each in lines if "messageId" in each]
    assert order == ["a", "b", "c"]
    assert {"missing": {"messageId": "lost"}} in lines
    cut = api.lines(api.post("/api/v1/sds/causal-history", {**walk, "maxMessages": 1}))
    assert {"truncated": True} in cut


def test_what_is_proven_is_preferred_where_it_is_asked_for(api: Api, topic: str) -> None:
    channel = f"channel of {topic}"
    name = genuine_id(channel, b"genuine")
    forged = [claiming(channel, name, b"forged %d" % number) for number in range(17)]
    results = api.publish(*(message(topic, each) for each in forged))
    (last,) = api.publish(message(topic, genuine(channel, b"genuine")))
    entry = {"messageId": name, "retrievalHint": results[0]["messageHash"]}
    for asked, first in (({"messageId": name}, None), (entry, results[0]["messageHash"])):
        bodies = {
            "/api/v1/sds/messages": {"channelId": channel, "entries": [asked]},
            "/api/v1/sds/causal-history": {"channelId": channel, "heads": [asked]},
        }
        for path, body in bodies.items():
            lines = api.lines(api.post(path, body))
            assert last["messageHash"] not in {line.get("messageHash") for line in lines}
            if first is not None:
                assert [line["messageHash"] for line in lines] == [first]
            assert {line["proven"] for line in lines if "messageHash" in line} == {False}
            lines = api.lines(api.post(path, {**body, "preferProven": True}))
            proven = {line["messageHash"]: line["proven"] for line in lines if "proven" in line}
            assert [each for each, is_proven in proven.items() if is_proven] == [
                last["messageHash"]
            ]


def test_answers_say_how_complete_they_are(api: Api, topic: str) -> None:
    api.publish(message(topic))
    unconfirmed = {"state": "UNCONFIRMED", "timeStart": "5", "timeEnd": "9"}
    bounds = {"timeStart": 5, "timeEnd": 9, "coverage": "true"}
    page = api.get("/api/v1/messages", **bounds).json()
    assert page["messages"] == []
    assert page["coverage"] | unconfirmed == page["coverage"]
    assert "no comparison with another store" in page["coverage"]["reason"]
    assert api.lines(api.get("/api/v1/scan", **bounds)) == [{"coverage": page["coverage"]}]
    asked = {"channelId": "channel", "entries": [{"messageId": "nowhere"}], "coverage": True}
    _, last = api.lines(api.post("/api/v1/sds/messages", asked))
    assert last["coverage"]["state"] == "UNCONFIRMED"
    walk = {"channelId": "channel", "heads": [{"messageId": "nowhere"}], "coverage": True}
    assert api.lines(api.post("/api/v1/sds/causal-history", walk))[-1].keys() == {"coverage"}
    assert "coverage" not in api.get("/api/v1/messages", timeStart=5).json()
    # A span of no time is not spoken of.
    assert api.lines(api.get("/api/v1/scan", **bounds | {"timeEnd": 5})) == []


def test_a_confirmed_answer_names_the_stores_and_the_time() -> None:
    found = AnswerCoverage((5, 9), AnswerState.COMPLETE, "", ("b", "c"), 7, 5, 9, keyed=True)
    said = coverage_message(found)
    assert said is not None
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


def test_hours_and_days_are_told_as_lines(api: Api, topic: str) -> None:
    sent = message(topic)
    api.publish(sent)
    hour_ns = 3_600 * 10**9
    start_ns = int(sent["timestamp"]) // hour_ns * hour_ns
    bounds = {"timeStart": start_ns, "timeEnd": start_ns + 1}
    (hour,) = api.lines(api.get("/api/v1/coverage", **bounds, channelId="nowhere"))
    assert (hour["timeStart"], hour["timeEnd"]) == (str(start_ns), str(start_ns + hour_ns))
    assert hour["messages"] >= 1
    assert len(hour["fingerprint"]) == 2 + 64
    assert hour["intake"] in {"ONLINE", "OFFLINE"}
    assert hour["missingParents"] == 0
    (day,) = api.lines(api.get("/api/v1/coverage", **bounds, step="DAY"))
    assert int(day["timeEnd"]) - int(day["timeStart"]) == 24 * hour_ns
    (part,) = api.lines(api.get("/api/v1/coverage", **bounds, contentTopics=topic))
    assert not {"messages", "fingerprint"} & part.keys()
    for wrong, code in (({"step": "WEEK"}, 400), ({"timeStart": 0}, 413)):
        answer = api.client.get("/api/v1/coverage", params=wrong)
        assert answer.status_code == code, answer.text


def test_what_other_stores_hold_of_an_hour_is_told_with_it() -> None:
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


def test_the_status_says_what_is_held(api: Api, node: NodeProcess, topic: str) -> None:
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


def test_more_than_a_limit_allows_is_refused(api: Api, topic: str) -> None:
    status, code, sentence = failed(api.get("/api/v1/messages", contentTopics=["a"] * 65))
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert "more than 64 parameters" in sentence
    topics = {"contentTopics": ["a"] * 101}
    status, code, sentence = failed(api.post("/api/v1/messages/query", topics))
    assert (status, code) == (400, "INVALID_ARGUMENT")
    assert "at most 100" in sentence
    tiny = {**message(topic), "payload": ""}
    status, code, sentence = failed(api.post("/api/v1/messages", {"messages": [tiny] * 5_001}))
    assert (status, code) == (413, "RESOURCE_EXHAUSTED")
    assert "5,000 messages" in sentence
    many = {"channelId": "c", "heads": [], "knownIds": [""] * 1_000_000}
    status, code, sentence = failed(api.post("/api/v1/sds/causal-history", many))
    assert (status, code) == (413, "RESOURCE_EXHAUSTED")
    assert "more than 640,000 quotation marks" in sentence
    unknown = failed(api.get("/api/v1/messages", cursor=UNKNOWN))
    assert unknown[:2] == (404, "NOT_FOUND")


def test_requests_are_counted(api: Api, node: NodeProcess) -> None:
    name = 'storenode_http_requests_total{code="400",operation="query"}'

    def count() -> float:
        lines = get(node.metrics, "/metrics")[1].splitlines()
        return sum(float(each.split()[-1]) for each in lines if each.startswith(name))

    before = count()
    api.get("/api/v1/messages", limit="x")
    assert count() == before + 1
    told = get(node.metrics, "/metrics")[1]
    assert "storenode_http_connections " in told
    assert 'storenode_http_requests_total{code="500",operation="scan"} 0.0' in told, (
        "alerts need it"
    )


def test_a_request_id_is_kept_where_it_is_fit_for_a_log(api: Api) -> None:
    for given, kept in (("abc-1", True), ("a b", False), ("x" * 65, False)):
        found = api.client.get("/api/v1/status", headers={"x-request-id": given})
        assert (found.headers["x-request-id"] == given) is kept
