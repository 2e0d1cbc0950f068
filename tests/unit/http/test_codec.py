"""Requests and responses in JSON, and the web pages that may call."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from store.domain.access import Access
from store.http import waku_store
from store.http.app import read
from store.http.call import HttpCall
from store.http.codec import to_json, to_lines, to_message
from store.http.sites import Sites
from store.observe.http import ANY
from store.serving.failure import CallError, Code
from store.serving.methods import reads
from storenode.client.types import AnswerCoverage
from storenode.wire.storenode.v1.store_pb2 import (
    CoveragePage,
    CoverageStep,
    FollowRequest,
    GetCausalHistoryRequest,
    GetCoverageRequest,
    GetSdsMessagesRequest,
    PublishRequest,
    ScanRequest,
    StoreCoverage,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

DIGEST: Final = bytes(range(0xA0, 0xC0))
HASH: Final = f"0x{DIGEST.hex()}"
MESSAGE: Final = {"payload": "AA==", "contentTopic": "/a/1/b/proto", "timestamp": "1"}
BODIES: Final[dict[type[Message], dict[str, Any]]] = {
    PublishRequest: {"messages": [{**MESSAGE, "pubsubTopic": "/p"}], "confirmTimeoutS": 2},
    StoreQueryRequest: {"hashes": [HASH], "includeData": False, "limit": 5},
    GetSdsMessagesRequest: {
        "channelId": "c",
        "entries": [{"messageId": "m", "retrievalHint": HASH}],
    },
    GetCausalHistoryRequest: {"channelId": "c", "heads": [{"messageId": "m"}], "maxDepth": 2},
}
PARAMETERS: Final[dict[type[Message], dict[str, Any]]] = {
    StoreQueryRequest: {"contentTopics": "/a", "timeStart": 1, "forward": "true", "cursor": HASH},
    ScanRequest: {"pageSize": 3, "cursor": "U05zGOrvDZlfkFroW9ne", "pubsubTopic": "/p"},
    FollowRequest: {"fromBeginning": "true", "contentTopics": ["/a", "/b"]},
    GetCoverageRequest: {"step": "DAY", "timeEnd": 9},
}
WAKU: Final = {"hashes": HASH, "pageSize": 5, "includeData": "true", "endTime": 5, "cursor": HASH}
NODE: Final[Any] = SimpleNamespace(monotonic_ns=lambda: 0, access=Access)
QUERY: Final[Any] = SimpleNamespace(served=reads.QUERY)


def called(method: str, query: bytes = b"") -> HttpCall:
    """Return a call with these parameters."""
    scope = {"method": method, "headers": [], "client": ("127.0.0.1", 1), "query_string": query}
    scope["http_version"] = "1.1"
    unused: Any = None
    return HttpCall(NODE, QUERY, {**scope, "state": {"connection": None}}, unused, unused)


def parse(kind: type[Message], method: str, sent: bytes) -> Message:
    """Return the request that a body or a query is."""
    call = called(method, b"" if method == "POST" else sent)
    return kind.FromString(to_message(kind, read(kind, call, sent)))


@pytest.mark.parametrize("spelled", [HASH, HASH[2:], HASH[2:].upper(), f"0X{HASH[2:]}"])
def test_requests_become_messages_and_hashes_may_begin_with_0x(spelled: str) -> None:
    for kind, body in BODIES.items():
        sent = json.dumps(body).replace(HASH, spelled).encode()
        assert (DIGEST in parse(kind, "POST", sent).SerializeToString()) == (HASH in str(body))
    for kind, parameters in PARAMETERS.items():
        sent = urlencode(parameters, doseq=True).replace(HASH, spelled).encode()
        assert (DIGEST in parse(kind, "GET", sent).SerializeToString()) == (HASH in str(parameters))
    asked = waku_store.wanted(called("GET", urlencode(WAKU).replace(HASH, spelled).encode()))
    assert (list(asked.message_hashes), asked.pagination_cursor) == ([DIGEST], DIGEST)


def test_topics_of_nwaku_may_be_encoded_twice() -> None:
    names = {"contentTopics": quote("/a+b/1,/c", ""), "pubsubTopic": quote("/p%q", "")}
    asked = waku_store.wanted(called("GET", urlencode(names).encode()))
    assert (list(asked.content_topics), asked.pubsub_topic) == (["/a+b/1", "/c"], "/p%q")


@given(st.data())
def test_any_request_is_read_or_refused(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(["POST", "GET", "waku"]))
    if method == "waku":
        kind, sent = StoreQueryRequest, urlencode(WAKU).encode()
    elif method == "POST":
        kind, body = data.draw(st.sampled_from(list(BODIES.items())))
        sent = json.dumps(body).encode()
    else:
        kind, parameters = data.draw(st.sampled_from(list(PARAMETERS.items())))
        sent = urlencode(parameters, doseq=True).encode()
    parts = [b"", b'"', b"%00", b"&", b"[", b"{}", b"-9" * 20, b"\xff", b"null", sent]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(sent)))
        end = start + data.draw(st.integers(0, 9))
        sent = sent[:start] + data.draw(st.sampled_from(parts)) + sent[end:]
    try:
        if method == "waku":
            waku_store.wanted(called("GET", sent))
        else:
            parse(kind, method, sent)
    except CallError as failure:
        assert failure.code is Code.INVALID_ARGUMENT  # noqa: PT017 - either is right
        assert len(failure.sentence) < 400  # noqa: PT017


@pytest.mark.parametrize(
    ("kind", "method", "sent", "sentence"),
    [
        (StoreQueryRequest, "GET", b"limit=many", "Expected `int`, got `str` - at `$.limit`"),
        (StoreQueryRequest, "GET", b"timeStart=-5", "Expected `int` >= 0 - at `$.timeStart`"),
        (StoreQueryRequest, "GET", b"hashes=0x12", "$.hashes"),
        (StoreQueryRequest, "GET", b"cursor=" + HASH[:-1].encode(), "$.cursor"),
        (StoreQueryRequest, "GET", b"pubsubTopic=a&pubsubTopic=b", "`pubsubTopic` is given twice"),
        (StoreQueryRequest, "GET", b"x" * 5_000 + b"=", "unknown field `xx"),
        (StoreQueryRequest, "GET", b"contentTopics=a&" * 65, "more than 64 parameters"),
        (StoreQueryRequest, "GET", b"contentTopics=%ff", "is not UTF-8"),
        (ScanRequest, "GET", b"cursor=?", "the cursor is none of this node's"),
        (GetCoverageRequest, "GET", b"step=WEEK", "$.step"),
        (PublishRequest, "POST", b"", "is no JSON"),
        (PublishRequest, "POST", b"[" * 100_000, ""),
        (PublishRequest, "POST", b'{"messages": {}}', "Expected `array`"),
        (PublishRequest, "POST", b'{"messages": [{}]}', "missing required field `payload`"),
        (PublishRequest, "POST", b'{"messages": [], "colour": 1}', "unknown field `colour`"),
        (PublishRequest, "POST", b'{"messages": [], "confirmTimeoutS": 1e9}', "<= 300"),
        (PublishRequest, "POST", b'{"messages": "\xff"}', ""),
        (
            StoreQueryRequest,
            "POST",
            b'{"includeData": 0}',
            "Expected `true` or `false` - at `$.includeData`",
        ),
        (PublishRequest, "POST", b'{"messages":[{"ephemeral":"true"}]}', "$.messages[0].ephemeral"),
    ],
)
def test_what_is_wrong_is_named(
    kind: type[Message], method: str, sent: bytes, sentence: str
) -> None:
    with pytest.raises(CallError) as refused:
        parse(kind, method, sent)
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert sentence in refused.value.sentence
    assert len(refused.value.sentence) < 300


def test_coverage_is_shown_with_what_other_stores_hold() -> None:
    differs = StoreCoverage(
        store_id="b", state=StoreCoverage.DIFFERS, compared_at=7, missing_here=4, missing_there=0
    )
    step = CoverageStep(time_start=1, time_end=2, before_horizon=True, stores=[differs])
    (found,) = to_lines(CoveragePage(steps=[step]))
    assert ParseDict(found, CoverageStep()) == step
    (store,) = found["stores"]
    assert (found["timeStart"], found["intake"]) == ("1", "INTAKE_UNSPECIFIED")
    assert (store["comparedAt"], store["missingHere"], store["missingThere"]) == ("7", 4, 0)
    known = AnswerCoverage(
        state=AnswerCoverage.COMPLETE,
        store_ids=["b"],
        compared_at=7,
        complete_from=5,
        complete_until=9,
        keyed=True,
        time_start=5,
        time_end=9,
    )
    assert ParseDict(to_json(known), AnswerCoverage()) == known
    assert list(to_json(known))[:3] == ["state", "timeStart", "timeEnd"]


# Sites

ORIGIN: Final = "https://app.example"
OTHER: Final = "https://other.example"
OWN: Final = "http://127.0.0.1:7423"
HOSTS: Final = {
    "127.0.0.1": True,
    "10.1.2.3:80": True,
    "[::1]:7423": True,
    "[::1]": True,
    "LOCALHOST:1": True,
    "a.localhost.": True,
    "node.example:9": True,
    "rebound.example": False,
    "127.0.0.1.rebound.example:7423": False,
    "localhost.rebound.example": False,
    "[::1].rebound.example": False,
    "127.0.0.1:80@rebound.example": False,
    "": False,
}
SITES: Final = Sites([ORIGIN], ["node.example"])


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_node_answers_to_its_own_names_alone(method: str) -> None:
    for host, is_own in HOSTS.items():
        found = SITES.wrong(method, Headers({"host": host}))
        assert (found is None) == is_own, host
        assert is_own or (found is not None and found.status == 421)
        assert Sites(hosts=[ANY]).wrong(method, Headers({"host": host})) is None


def browser_read(site: str, dest: str, origin: str = "") -> tuple[str, dict[str, str]]:
    """Return a GET as a browser sends it."""
    headers = {"sec-fetch-site": site, "sec-fetch-dest": dest}
    return "GET", headers | ({"origin": origin} if origin else {})


@pytest.mark.parametrize(
    ("sent", "is_allowed"),
    [
        (browser_read("cross-site", "image"), False),
        (browser_read("same-site", "empty", OTHER), False),
        (browser_read("cross-site", "iframe"), False),
        (browser_read("cross-site", "document"), True),
        (browser_read("cross-site", "empty", ORIGIN), True),
        (browser_read("same-origin", "image"), True),
        (browser_read("none", "document"), True),
        (("GET", {"origin": OTHER}), True),
        (("OPTIONS", {"origin": OTHER}), True),
        (("POST", {}), True),
        (("POST", {"origin": OTHER}), False),
        (("POST", {"origin": "null"}), False),
        (("POST", {"origin": OWN, "sec-fetch-site": "cross-site"}), False),
        (("POST", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}), False),
        (("POST", {"origin": OTHER, "sec-fetch-site": "same-site"}), False),
        (("POST", {"origin": OTHER, "sec-fetch-site": "same-origin"}), True),
        (("POST", {"origin": ORIGIN, "sec-fetch-site": "cross-site"}), True),
        (("POST", {"origin": OWN}), True),
    ],
)
def test_other_sites_read_and_write_nothing(
    sent: tuple[str, dict[str, str]], is_allowed: bool
) -> None:
    method, headers = sent
    found = SITES.wrong(method, Headers({"host": "127.0.0.1:7423", **headers}))
    assert (found is None) == is_allowed
    assert is_allowed or (found is not None and found.status == 403)
    assert Sites([ANY]).wrong(method, Headers({"host": "127.0.0.1:7423", **headers})) is None
