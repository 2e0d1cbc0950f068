"""Requests that are refused, over every transport: one table of the status and the sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pytest
from google.protobuf.message import Message

from store.messages.cursor import FollowCursor, FollowCursors, ScanCursor
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
    GetCausalHistoryRequest,
    GetCoverageRequest,
    GetSdsMessagesRequest,
    PublishRequest,
    ScanRequest,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.calls.conftest import caller
from tests.calls.transports import (
    METHODS,
    PATHS,
    TRANSPORTS,
    UNARY,
    Command,
    Connect,
    Grpc,
    Json,
    RefusedError,
    Transport,
)
from tests.integration.rpc.harness import Node
from tests.interop.vectors import load

pytestmark = pytest.mark.asyncio(loop_scope="module")

DIGEST: Final = bytes(range(32))
NOW_NS: Final = 1_763_625_600_000_000_000
SCAN_CURSOR: Final = ScanCursor(NOW_NS, DIGEST).encode()
FOLLOW_CURSOR: Final = FollowCursors(b"i" * 16, bytes(32), lambda: bytes(16)).seal(
    FollowCursor(b"i" * 16, 5, 6)
)
MIB: Final = 1024 * 1024
INVALID, LIMIT = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"

BYTES: Final = tuple(each for each in TRANSPORTS if each.takes_bytes)
"""Transports for requests that the others cannot express."""

NOT_IN_A_URL: Final = tuple(each for each in TRANSPORTS if each is not Json)
AT_ONCE: Final = tuple(each for each in TRANSPORTS if each is not Command)
"""Transports that send what is asked for as one request, and do not repeat it."""

Row = tuple[str, str, Message | bytes, str, str, Sequence[type[Transport]]]
"""A name, the method, its request, how it ends, and over which transports."""


def row(
    name: str,
    method: str,
    request: Message | bytes,
    code: str,
    sentence: str,
    *,
    on: Sequence[type[Transport]] = TRANSPORTS,
) -> Row:
    """Return a row of the table."""
    return name, method, request, code, sentence, on


def filtered() -> Iterator[Row]:
    """Yield requests with filters that nothing can match, or that are too long."""
    filters = {
        "an empty pubsub topic": (ContentFilter(pubsub_topic=""), INVALID, "topic"),
        "an empty topic": (ContentFilter(content_topics=["/c", ""]), INVALID, "topic"),
        "a NUL": (ContentFilter(content_topics=["/c\0"]), INVALID, "topic"),
        "101 topics": (
            ContentFilter(content_topics=[f"/{n}" for n in range(101)]),
            LIMIT,
            "at most 100",
        ),
    }
    for name, (each, code, sentence) in filters.items():
        requests = {
            "Scan": ScanRequest(filter=each),
            "Follow": FollowRequest(filter=each),
            "GetSdsMessages": GetSdsMessagesRequest(channel_id="c", filter=each),
            "GetCausalHistory": GetCausalHistoryRequest(channel_id="c", filter=each),
            "GetCoverage": GetCoverageRequest(filter=each),
            "Query": StoreQueryRequest(
                pubsub_topic=each.pubsub_topic if each.HasField("pubsub_topic") else None,
                content_topics=each.content_topics,
            ),
        }
        for method, request in requests.items():
            # An error of the store protocol is a bad request, whatever is wrong.
            expected = INVALID if method == "Query" else code
            is_too_long = code is LIMIT and PATHS[method][0] == "GET"
            on = NOT_IN_A_URL if is_too_long and method != "Query" else tuple(TRANSPORTS)
            yield row(name, method, request, expected, sentence, on=on)


CURSORS: Final = {
    "a letter": b"x",
    "zeros": bytes(47),
    "a cut one": SCAN_CURSOR[:-1],
    "one byte more": SCAN_CURSOR + b"x",
    "one of Follow": FOLLOW_CURSOR,
}
ROWS: Final = [
    *filtered(),
    *(
        row(f"cursor: {name}", "Scan", ScanRequest(cursor=each), INVALID, "cursor")
        for name, each in CURSORS.items()
    ),
    *(
        row(f"cursor: {name}", "Follow", FollowRequest(cursor=each), INVALID, "cursor")
        for name, each in {**CURSORS, "one of Follow": FOLLOW_CURSOR[:-1]}.items()
    ),
    row("a long cursor", "Scan", ScanRequest(cursor=b"y" * 1_000_000), INVALID, "cursor", on=BYTES),
    row(
        "a cursor of another database",
        "Follow",
        FollowRequest(cursor=FOLLOW_CURSOR),
        "OUT_OF_RANGE",
        "",
    ),
    *(
        row("an unknown cursor", "Query", request, "NOT_FOUND", "cursor")
        for request in (
            StoreQueryRequest(pagination_cursor=DIGEST),
            StoreQueryRequest(pagination_cursor=DIGEST, time_start=5, time_end=5),
            StoreQueryRequest(pagination_cursor=DIGEST, pubsub_topic="/p", content_topics=["/c"]),
        )
    ),
    row(
        "a short hash",
        "Query",
        StoreQueryRequest(message_hashes=[b"short"]),
        INVALID,
        "hash",
        on=AT_ONCE,  # the command itself refuses it
    ),
    row(
        "100,000 hashes",
        "Query",
        StoreQueryRequest(message_hashes=[n.to_bytes(32, "big") for n in range(100_000)]),
        INVALID,
        "",
        on=BYTES,
    ),
    row(
        "5,001 messages",
        "Publish",
        PublishRequest(messages=[WakuMessageAndTopic()] * 5_001),
        LIMIT,
        "5,000 messages",
        on=AT_ONCE,
    ),
    row(
        "1,000,000 messages", "Publish", b"\x0a\x00" * 1_000_000, LIMIT, "5,000 messages", on=BYTES
    ),
    row(
        "1,001 SDS messages",
        "GetSdsMessages",
        GetSdsMessagesRequest(channel_id="c", entries=[HistoryEntry(message_id="m")] * 1_001),
        LIMIT,
        "at most 1000",
    ),
    row(
        "the hours of 50 years",
        "GetCoverage",
        GetCoverageRequest(time_start=0),
        LIMIT,
        "at most 10,000",
    ),
    row("an unknown step", "GetCoverage", GetCoverageRequest(step=77), INVALID, "77", on=BYTES),  # type: ignore[arg-type] # as a newer client sends it
    *(
        row(
            f"no request: {sent.hex()}",
            method,
            sent,
            INVALID,
            METHODS[method][0].DESCRIPTOR.full_name,
            on=[each for each in BYTES if method in each.methods],
        )
        for method in METHODS
        for sent in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f")  # a length past the end
    ),
    *(
        row("a MiB and a half", method, bytes(MIB + MIB // 2), LIMIT, "at most 1,048,576", on=BYTES)
        for method in ("Scan", "Follow", "GetCoverage")
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]}: {row[0]}")
async def test_a_wrong_request_has_one_status_over_every_transport(
    open_node: Node, row: Row
) -> None:
    _, method, request, code, sentence, on = row
    for kind in on:
        with pytest.raises(RefusedError) as refused:
            await caller(open_node, kind).call(method, request)
        assert refused.value.code == kind.code_of(code), (kind, refused.value)
        assert sentence in refused.value.sentence, kind
        assert refused.value.sentence


VECTORS: Final = load("store_query")
REFUSED_VECTORS: Final = frozenset({"hash-empty-element", "cursor-empty", "pubsub-empty-string"})


@pytest.mark.parametrize("kind", BYTES)
async def test_requests_of_other_implementations(open_node: Node, kind: type[Transport]) -> None:
    to, cases = caller(open_node, kind), [*VECTORS["request"], *VECTORS["decode_only"]]
    for case in cases:
        is_refused = case["name"] in REFUSED_VECTORS or not case.get("ok", True)
        if case.get("type", "StoreQueryRequest") != "StoreQueryRequest":
            continue
        try:
            (page,) = await to.call("Query", bytes.fromhex(case["bytes"]))
            request_id = page.request_id
        except RefusedError as refused:
            request_id = refused.request_id
            assert is_refused, case["name"]
        else:
            assert not is_refused, case["name"]
        fields = case.get("fields") or case.get("decoded") or {"request_id": ""}
        assert request_id == fields["request_id"], case["name"]


async def test_a_long_request_id_is_echoed_in_part(open_node: Node) -> None:
    to = caller(open_node, Grpc)
    with pytest.raises(RefusedError) as refused:
        await to.call("Query", StoreQueryRequest(request_id="é" * 600))
    assert refused.value.request_id == "é" * 512
    (page,) = await to.call("Query", StoreQueryRequest(request_id="é" * 512))
    assert page.request_id == "é" * 512


REQUESTS: Final[dict[str, Message]] = {
    method: request() for method, (request, _) in METHODS.items()
} | {
    **dict.fromkeys(
        ("Publish", "PublishStream"),
        PublishRequest(messages=[WakuMessageAndTopic(message=WakuMessage())]),
    ),
    "Query": StoreQueryRequest(request_id="r"),
    "GetSdsMessages": GetSdsMessagesRequest(channel_id="c"),
    "GetCausalHistory": GetCausalHistoryRequest(channel_id="c"),
}
"""A small request of each method."""

RIGHTS: Final = {"Publish": "publisher", "PublishStream": "publisher", "Follow": "follower"}
"""The client that may call a method; `reader` may call the others."""


def calls(*kinds: type[Transport]) -> pytest.MarkDecorator:
    """Run a test for each method of these transports."""
    pairs = [(kind, method) for kind in kinds for method in METHODS if method in kind.methods]
    names = [f"{kind.__name__}-{method}" for kind, method in pairs]
    return pytest.mark.parametrize(("kind", "method"), pairs, ids=names)


@calls(*TRANSPORTS)
async def test_every_method_needs_a_token_and_its_right(
    guarded_node: Node, method: str, kind: type[Transport]
) -> None:
    allowed, request = RIGHTS.get(method, "reader"), REQUESTS[method]
    await caller(guarded_node, kind, allowed).call(method, request)
    others = {"reader", "publisher", "follower", "operator"} - {allowed}
    expected = dict.fromkeys(others, ("PERMISSION_DENIED", "lacks the right"))
    expected |= {"nobody": ("UNAUTHENTICATED", "is not known")}
    for client, (code, sentence) in [*expected.items(), (None, ("UNAUTHENTICATED", "no token"))]:
        with pytest.raises(RefusedError) as refused:
            await caller(guarded_node, kind, client).call(method, request)
        assert refused.value.code == kind.code_of(code), client
        assert sentence in refused.value.sentence
        assert "token-of" not in refused.value.sentence


@calls(*AT_ONCE)
async def test_a_node_that_is_not_ready_serves_no_call(
    open_node: Node, method: str, kind: type[Transport]
) -> None:
    open_node.rules.halt("the database does not answer: retry with backoff")
    try:
        with pytest.raises(RefusedError) as refused:
            await caller(open_node, kind).call(method, REQUESTS[method])
    finally:
        open_node.rules.halt(None)
    assert refused.value.code == "UNAVAILABLE"
    assert refused.value.request_id == ("r" if (method, kind) == ("Query", Grpc) else "")
    assert "the database does not answer" in refused.value.sentence
    await caller(open_node, kind).call(method, REQUESTS[method])


@calls(Grpc, Connect, Json)
async def test_calls_beyond_the_limit_of_the_node_are_refused(
    open_node: Node, method: str, kind: type[Transport]
) -> None:
    allowed = open_node.context.quota.allowed
    before = dict(allowed)
    allowed.update(dict.fromkeys(allowed, 0))
    try:
        with pytest.raises(RefusedError) as refused:
            await caller(open_node, kind).call(method, REQUESTS[method])
    finally:
        allowed.update(before)
    what = "calls" if method in UNARY else "streams"
    assert (refused.value.code, f"concurrent {what} of this node" in refused.value.sentence) == (
        LIMIT,
        True,
    )
    assert refused.value.request_id == ("r" if (method, kind) == ("Query", Grpc) else "")


@pytest.mark.parametrize("kind", [Grpc, Connect, Json])
async def test_a_token_that_is_sent_twice_is_refused(
    guarded_node: Node, kind: type[Transport]
) -> None:
    to = replace(caller(guarded_node, kind, "reader"), copies=2)
    with pytest.raises(RefusedError, match=r"INVALID_ARGUMENT: .*given twice"):
        await to.call("Scan", ScanRequest())


async def test_a_query_beyond_the_rate_of_bytes_has_the_status_of_the_protocol(
    guarded_node: Node,
) -> None:
    to, asked = caller(guarded_node, Grpc, "slow"), StoreQueryRequest(request_id="r" * 100)
    await to.call("Query", asked)
    with pytest.raises(RefusedError, match="10 received bytes per second") as refused:
        await to.call("Query", asked)
    assert (refused.value.code, refused.value.request_id) == (LIMIT, "r" * 100)
