import grpc
import pytest

from store.domain.quota import Quota
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.integration.rpc.harness import (
    STORE,
    Node,
    failure,
    serve,
)
from tests.interop.vectors import Case, case_name, load

NOW_NS = 1_763_625_600_000_000_000
DIGEST = bytes(range(32))
VECTORS = load("store_query")


async def ask(node: Node, request: StoreQueryRequest) -> StoreQueryResponse:
    response: StoreQueryResponse = await node.store.Query(request)
    return response


async def test_a_long_request_id_is_refused_and_echoed_in_part(node: Node) -> None:
    response = await ask(node, StoreQueryRequest(request_id="é" * 600))
    assert response.status_code == 400
    assert response.request_id == "é" * 512
    ok = await ask(node, StoreQueryRequest(request_id="é" * 512))
    assert (ok.status_code, ok.request_id) == (200, "é" * 512)


@pytest.mark.parametrize("case", VECTORS["request"], ids=case_name)
async def test_requests_of_other_implementations(node: Node, case: Case) -> None:
    response = StoreQueryResponse.FromString(
        await node.unary(STORE + "Query", bytes.fromhex(case["bytes"]))
    )
    refused = {
        "hash-empty-element",
        "cursor-empty",
        "pubsub-empty-string",
    }
    assert response.status_code == (400 if case["name"] in refused else 200)
    assert response.request_id == case["fields"]["request_id"]


async def test_bytes_that_are_no_request_are_an_invalid_argument(node: Node) -> None:
    for case in VECTORS["decode_only"]:
        if case["type"] == "StoreQueryRequest":
            raw = bytes.fromhex(case["bytes"])
            if case["ok"]:
                response = StoreQueryResponse.FromString(await node.unary(STORE + "Query", raw))
                assert response.request_id == case["decoded"]["request_id"]
            else:
                code, sentence = await failure(node.unary(STORE + "Query", raw))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert "waku.store.v3.StoreQueryRequest" in sentence


async def test_a_node_that_is_not_ready_answers_503(node: Node) -> None:
    node.rules.unready = "the database does not answer: retry with backoff"
    response = await ask(node, StoreQueryRequest(request_id="r"))
    assert (response.status_code, response.request_id) == (503, "r")
    assert response.status_desc == node.rules.unready
    node.rules.unready = None
    assert (await ask(node, StoreQueryRequest())).status_code == 200


async def test_too_many_calls_at_once_are_429(database_url: str) -> None:
    async with serve(database_url, quota=Quota(max_calls=0)) as node:
        response = await ask(node, StoreQueryRequest(request_id="r"))
    assert (response.status_code, response.request_id) == (429, "r")
    assert "concurrent calls of this node" in response.status_desc
