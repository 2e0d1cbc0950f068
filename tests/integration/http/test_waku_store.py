"""``GET /store/v3/messages`` against recorded answers of nwaku."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.http.api import Api, message
from tests.support.node import NodeProcess, running_node

RECORDED: Final[dict[str, Any]] = json.loads(
    gzip.decompress(Path("tests/vectors/nwaku/rest.json.gz").read_bytes())
)
HISTORY: Final[list[dict[str, Any]]] = RECORDED["history"]


@pytest.fixture(scope="module")
def recorded_node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Run a node that stores the messages of the recording and no others."""
    options = ("--http-listen", "127.0.0.1:0", "--max-clock-drift", "off", "--retention", "off")
    directory = tmp_path_factory.mktemp("recorded") / "node"
    with running_node(directory, *options, database_url=new_store()) as node:
        api = Api.of(node)
        results = api.publish(*map(as_published, HISTORY))
        assert [each["messageHash"] for each in results] == [
            "0x" + each["hash"] for each in HISTORY
        ]
        api.client.close()
        yield node


def test_recorded_answers_of_nwaku_are_given(recorded_node: NodeProcess) -> None:
    api = Api.of(recorded_node)
    for answer in RECORDED["answers"]:
        response = api.client.get(answer["path"])
        if answer["status"] == 500 or answer["path"].count("%2C") >= 100:
            # An unknown cursor is the caller's mistake, and 101 content topics are too many.
            assert response.status_code == 400, answer
        elif answer["status"] == 400:
            known, said = (text.partition(": ")[0] for text in (answer["text"], response.text))
            assert (response.status_code, said) == (400, known), answer
        else:
            assert (response.status_code, response.json()) == (200, whole(answer))
    api.client.close()


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


def as_published(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return a message of the recorded history as the API takes it."""
    found = message(recorded["content"], timestamp=recorded["t"], pubsubTopic=recorded["pubsub"])
    for name in ("payload", "meta"):
        found[name] = base64.b64encode(bytes.fromhex(recorded[name])).decode()
    return found


def whole(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the body that nwaku sent, from a recorded answer that names messages by number."""
    entries = [
        entry(each, with_data=answer["data"])
        for each in map(HISTORY.__getitem__, answer["messages"])
    ]
    cursor = {"paginationCursor": answer["cursor"]} if "cursor" in answer else {}
    return {"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": entries} | cursor


def entry(recorded: dict[str, Any], *, with_data: bool) -> dict[str, Any]:
    """Return the JSON object that nwaku writes for a message."""
    digest = {"messageHash": "0x" + recorded["hash"]}
    if not with_data:
        return digest
    stored = {
        "payload": base64.b64encode(bytes.fromhex(recorded["payload"])).decode(),
        "contentTopic": recorded["content"],
        "version": 0,
        "timestamp": recorded["t"],
        "ephemeral": False,
    }
    if recorded["meta"]:
        stored["meta"] = base64.b64encode(bytes.fromhex(recorded["meta"])).decode()
    return digest | {"message": stored, "pubsubTopic": recorded["pubsub"]}
