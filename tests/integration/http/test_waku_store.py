"""``GET /store/v3/messages`` against a naive model and recorded answers of nwaku."""

from __future__ import annotations

import base64
import gzip
import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.integration.http.api import Api, message
from tests.support.node import NodeProcess, running_node

RECORDED: Final = Path("tests/vectors/nwaku/rest.json.gz")
QUERIES: Final = 150
PUBSUBS: Final = ("/waku/2/rs/7/1", "/waku/2/rs/7/2")
ORIGIN_NS: Final = 1_700_000_000_000_000_000
"""Few different times, so that many messages have the same."""


@dataclass(frozen=True)
class ModelMessage:
    """A message of the model, which the node stores."""

    digest: str
    pubsub: str
    content: str
    timestamp: int
    payload: bytes

    @property
    def sort_key(self) -> tuple[int, str]:
        """The sort key of every order: timestamp, then hash."""
        return self.timestamp, self.digest


@pytest.fixture(scope="module")
def topics() -> Sequence[str]:
    return [f"/model/1/{name}/proto" for name in "abc"]


@pytest.fixture(scope="module")
def stored(api: Api, topics: Sequence[str]) -> list[ModelMessage]:
    """Publish random messages, and return them in ascending order."""
    rng, made = Random(17), []
    for number in range(250):
        pubsub, content = rng.choice(PUBSUBS), rng.choice(topics)
        timestamp = ORIGIN_NS + rng.randrange(40)
        payload = b"%d" % number
        given = message(content, payload, timestamp=timestamp, pubsubTopic=pubsub)
        made.append((given, pubsub, content, timestamp, payload))
    results = api.publish(*(each[0] for each in made))
    found = [
        ModelMessage(result["messageHash"], *each[1:])
        for result, each in zip(results, made, strict=True)
    ]
    return sorted(found, key=lambda each: each.sort_key)


def expected(
    stored: list[ModelMessage], asked: dict[str, str]
) -> tuple[list[ModelMessage], str | None]:
    """Compute the answer of nwaku: the page, and the cursor of the next page."""
    found = stored
    if asked.get("pubsubTopic"):
        found = [each for each in found if each.pubsub == asked["pubsubTopic"]]
    if asked.get("contentTopics"):
        wanted = asked["contentTopics"].split(",")
        found = [each for each in found if each.content in wanted]
    if asked.get("startTime"):
        found = [each for each in found if each.timestamp >= int(asked["startTime"])]
    if asked.get("endTime"):
        found = [each for each in found if each.timestamp <= int(asked["endTime"])]
    if asked.get("hashes"):
        found = [each for each in found if each.digest in asked["hashes"].split(",")]
    ascending = asked.get("ascending", "true") in ("true", "")
    if not ascending:
        found = found[::-1]
    if asked.get("cursor"):
        last = next(each for each in stored if each.digest == asked["cursor"]).sort_key
        found = [
            each for each in found if (each.sort_key > last) is ascending and each.sort_key != last
        ]
    size = min(int(asked.get("pageSize") or 20) or 20, 100)
    page, more = found[:size], len(found) > size
    cursor = page[-1].digest if more else None
    return (page if ascending else page[::-1]), cursor


def drawn(rng: Random, stored: list[ModelMessage], topics: Sequence[str]) -> dict[str, str]:
    """Draw random parameters of a query."""
    asked: dict[str, str] = {"contentTopics": ",".join(rng.sample(topics, rng.randrange(1, 4)))}
    if rng.random() < 0.5:
        asked["pubsubTopic"] = rng.choice([*PUBSUBS, ""])
    if rng.random() < 0.3:
        asked["hashes"] = ",".join(each.digest for each in rng.sample(stored, 9))
    if rng.random() < 0.6:
        for name in ("startTime", "endTime"):
            asked[name] = str(rng.choice([ORIGIN_NS + rng.randrange(-2, 42), ""]))
    if rng.random() < 0.3:
        asked["cursor"] = rng.choice(stored).digest
    if rng.random() < 0.6:
        asked["ascending"] = rng.choice(["true", "false", ""])
    if rng.random() < 0.7:
        asked["pageSize"] = rng.choice(["0", "1", "7", "100", "1000", ""])
    if rng.random() < 0.7:
        asked["includeData"] = rng.choice(["true", "false", "1", "no", ""])
    return asked


def test_random_queries_are_answered_as_the_model_says(
    api: Api, stored: list[ModelMessage], topics: Sequence[str]
) -> None:
    rng = Random(3)
    for number in range(QUERIES):
        asked = drawn(rng, stored, topics)
        response = api.get("/store/v3/messages", **asked)
        assert response.status_code == 200, (asked, response.text)
        found, (page, cursor) = response.json(), expected(stored, asked)
        assert (found["requestId"], found["statusCode"], found["statusDesc"]) == ("", 200, "OK")
        assert [each["messageHash"] for each in found["messages"]] == [
            each.digest for each in page
        ], (number, asked)
        # Newest first, the next page goes on from the oldest message of this one.
        descending = asked.get("ascending") == "false"
        assert found.get("paginationCursor") == (
            page[0].digest if cursor and descending else cursor
        ), (number, asked)
        with_data = asked.get("includeData") in ("true", "1")
        for each, wanted in zip(found["messages"], page, strict=True):
            assert each == entry(wanted, with_data=with_data)


def entry(stored: ModelMessage, *, with_data: bool) -> dict[str, Any]:
    """Return the JSON object that nwaku writes for a message."""
    if not with_data:
        return {"messageHash": stored.digest}
    return {
        "messageHash": stored.digest,
        "message": {
            "payload": base64.b64encode(stored.payload).decode(),
            "contentTopic": stored.content,
            "version": 0,
            "timestamp": stored.timestamp,
            "ephemeral": False,
        },
        "pubsubTopic": stored.pubsub,
    }


def test_a_client_reads_all_pages_by_the_cursor(
    api: Api, stored: list[ModelMessage], topics: Sequence[str]
) -> None:
    found, cursor = list[str](), ""
    while True:
        page = api.get("/store/v3/messages", contentTopics=",".join(topics), cursor=cursor).json()
        found += [each["messageHash"] for each in page["messages"]]
        cursor = page.get("paginationCursor", "")
        if not cursor:
            break
    assert found == [each.digest for each in stored]


WRONG: Final = [
    ({"startTime": "abc"}, "time parsing error: invalid integer: abc"),
    ({"endTime": "1.5"}, "time parsing error: invalid integer: 1.5"),
    ({"pageSize": "many"}, "page size parsing error: invalid integer: many"),
    ({"includeData": "perhaps"}, "include data parsing error: cannot interpret as a bool: perhaps"),
    ({"hashes": "0x1234"}, "waku message hash parsing error: invalid hash length: 2"),
    ({"cursor": "0xzz"}, "Exception converting hex string to bytes: "),
    ({"peerAddr": "/ip4/127.0.0.1/tcp/1/p2p/16U"}, "peerAddr is not served"),
    ({"contentTopics": ",".join(["t"] * 101)}, "at most 100"),
    ({"pageSize": str(2**64)}, "page size parsing error: Parsed integer outside of valid range"),
    ({"endTime": str(2**63)}, "time parsing error: Parsed integer outside of valid range"),
    ({"startTime": "-" + "9" * 5_000}, "time parsing error: Parsed integer outside of valid range"),
    ({"cursor": "0x" + "11" * 32}, "the cursor is not known to this node: begin again"),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG)
def test_errors_are_text(api: Api, asked: dict[str, str], sentence: str) -> None:
    response = api.get("/store/v3/messages", **asked)
    assert (response.status_code, response.headers["content-type"]) == (400, "text/plain")
    assert sentence in response.text


def test_topics_that_are_encoded_twice_are_found(api: Api, topic: str) -> None:
    name = f"{topic}+a%b"
    (result,) = api.publish(message(name, b"1", pubsubTopic=PUBSUBS[0]))
    once = name.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")
    found = api.get(
        "/store/v3/messages", contentTopics=once, pubsubTopic="%2Fwaku%2F2%2Frs%2F7%2F1"
    )
    assert [each["messageHash"] for each in found.json()["messages"]] == [result["messageHash"]]


def test_recorded_answers_of_nwaku_are_given(tmp_path: Path, new_store: Callable[[], str]) -> None:
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    history = recorded["history"]
    options = ("--http-listen", "127.0.0.1:0", "--max-clock-drift", "off", "--retention", "off")
    with running_node(tmp_path / "node", *options, database_url=new_store()) as node:
        api = Api.of(node)
        results = api.publish(*map(as_published, history))
        assert [each["messageHash"] for each in results] == [
            "0x" + each["hash"] for each in history
        ]
        for answer in recorded["answers"]:
            response = api.client.get(answer["path"])
            if answer["status"] == 500 or answer["path"].count("%2C") >= 100:
                # An unknown cursor is the caller's mistake, and 101 content topics are too many.
                assert response.status_code == 400, answer
            elif answer["status"] == 400:
                known, said = (text.partition(": ")[0] for text in (answer["text"], response.text))
                assert (response.status_code, said) == (400, known), answer
            else:
                assert (response.status_code, response.json()) == (200, whole(answer, history))
        api.client.close()


def as_published(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the recorded history as the API takes it."""
    found = message(recorded["content"], timestamp=recorded["t"], pubsubTopic=recorded["pubsub"])
    for name in ("payload", "meta"):
        found[name] = base64.b64encode(bytes.fromhex(recorded[name])).decode()
    return found


def whole(answer: dict[str, Any], history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the body that nwaku sent, from a recorded answer that names messages by number."""
    entries = []
    for each in map(history.__getitem__, answer["messages"]):
        stored = ModelMessage(
            "0x" + each["hash"],
            each["pubsub"],
            each["content"],
            each["t"],
            bytes.fromhex(each["payload"]),
        )
        found = entry(stored, with_data=answer["data"])
        if answer["data"] and each["meta"]:
            found["message"]["meta"] = base64.b64encode(bytes.fromhex(each["meta"])).decode()
        entries.append(found)
    cursor = {"paginationCursor": answer["cursor"]} if "cursor" in answer else {}
    return {"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": entries} | cursor


TOPIC: Final = "/waku/2/rs/7/1"
LINE: Final = (
    'curl -v -X GET "http://{}/store/v3/messages?includeData=true&pubsubTopic={}&pageSize=20'
    '&ascending=true"'
)
"""The command in the documentation of nwaku's users."""


@pytest.mark.parametrize("topic", [TOPIC, TOPIC.replace("/", "%2F")])
def test_documented_lines_are_answered(
    node: NodeProcess, stored: list[ModelMessage], topic: str
) -> None:
    command = shlex.split(LINE.format(node.http, topic))
    ended = subprocess.run(command, check=True, capture_output=True, timeout=90)
    assert b"< HTTP/1.1 200 OK" in ended.stderr
    assert stored[0].pubsub in PUBSUBS
    assert ended.stdout.count(f'"pubsubTopic":"{TOPIC}"'.encode()) == 20
