"""What HTTP costs: a page against the same page by gRPC.

Pages of 1,000 messages with data are read forward, by four ways in turn, the best of three rounds.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable

from bench.data import rows
from bench.support import Bench, Used, bench_node, options, publish, report, settle, used
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

PAGE_MESSAGES = 1_000
ROUNDS = 3

Reader = Callable[[Bench], int]


def by_grpc(bench: Bench) -> int:
    """Read all pages; how many messages there were."""
    request = StoreQueryRequest(
        include_data=True, pagination_forward=True, pagination_limit=PAGE_MESSAGES
    )
    count = 0
    with bench.channel() as channel:
        query = StoreStub(channel).Query
        while True:
            response = query(request)
            count += len(response.messages)
            if not response.HasField("pagination_cursor"):
                return count
            request.pagination_cursor = response.pagination_cursor


def by_connect(bench: Bench) -> int:
    """The same requests and responses by Connect."""
    connection = http.client.HTTPConnection(bench.node.http, timeout=60)
    request = StoreQueryRequest(
        include_data=True, pagination_forward=True, pagination_limit=PAGE_MESSAGES
    )
    count, headers = 0, {"content-type": "application/proto"}
    while True:
        body = request.SerializeToString()
        connection.request("POST", "/storenode.v1.Store/Query", body, headers)
        response = StoreQueryResponse.FromString(connection.getresponse().read())
        count += len(response.messages)
        if not response.HasField("pagination_cursor"):
            connection.close()
            return count
        request.pagination_cursor = response.pagination_cursor


def by_http(bench: Bench, path: str, cursor_name: str) -> int:
    """The same over one connection of HTTP."""
    connection = http.client.HTTPConnection(bench.node.http, timeout=60)
    count, cursor = 0, ""
    while True:
        connection.request("GET", f"{path}{cursor}")
        found = json.loads(connection.getresponse().read())
        count += len(found["messages"])
        if cursor_name not in found:
            connection.close()
            return count
        cursor = f"&cursor={found[cursor_name]}"


def by_api(bench: Bench) -> int:
    """By ``/api/v1/messages``."""
    path = f"/api/v1/messages?forward=true&limit={PAGE_MESSAGES}"
    return by_http(bench, path, "cursor")


def by_waku(bench: Bench) -> int:
    """By ``/store/v3/messages``, whose pages have 100 messages."""
    path = "/store/v3/messages?includeData=true&pageSize=100"
    return by_http(bench, path, "paginationCursor")


def pages(bench: Bench, count: int) -> None:
    """Measure the four ways."""
    publish(bench, rows(count))
    settle(bench)
    ways: dict[str, Reader] = {
        "grpc": by_grpc,
        "connect": by_connect,
        "api": by_api,
        "waku": by_waku,
    }
    best: dict[str, tuple[float, Used, Used]] = {}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            before, began = used(bench), time.perf_counter()
            assert read(bench) == count
            taken = time.perf_counter() - began
            if name not in best or taken < best[name][0]:
                best[name] = (taken, before, used(bench))
    for name, (taken, before, after) in best.items():
        report(
            benchmark="http",
            way=name,
            messages=count,
            message_us=taken / count * 1e6,
            **after.since(before, count),
        )


def main() -> None:
    """Start a node and measure."""
    count = options(__doc__ or "", messages=100_000).messages
    with bench_node("--http-listen", "127.0.0.1:0", "--max-clock-drift", "off") as bench:
        pages(bench, count)


if __name__ == "__main__":
    main()
