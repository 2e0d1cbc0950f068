"""Scans that read slowly or not at all, beside one that reads."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random

import grpc
import psutil

from storenode.client.node import connect
from storenode.client.types import ScanPage
from storenode.wire.storenode.v1.store_pb2 import ScanRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.support.ledger import Ledger, Publisher, found_by_hash, hashes_of, publishing, scanned
from tests.support.node import running_node
from tests.support.postgres import copy_cluster

PAYLOAD_BYTES = 4_096
MAX_GROWTH_BYTES = 64 * 1024 * 1024

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]
"""Options without probes, with which gRPC may buffer a whole answer that is not read."""


async def test_stalled_readers_give_way_and_slow_ones_miss_nothing(
    tmp_path: Path, rng: Random
) -> None:
    ledger = Ledger()
    with running_node(copy_cluster(tmp_path / "node"), "--max-unsent-size", "4MiB") as node:
        async with publishing([Publisher(node.listen, ledger, rng, PAYLOAD_BYTES, 250)]):
            await ledger.reached(2_000)
        process = psutil.Process(node.process.pid)
        before = process.memory_info().rss
        async with (
            grpc.aio.insecure_channel(node.listen, OPTIONS) as channel,
            connect(node.listen) as slow,
            connect(node.listen) as quick,
            aclosing(slow.scan()) as pages,
        ):
            unread = [StoreStub(channel).Scan(ScanRequest(include_data=True)) for _ in range(60)]
            seen = hashes_of(await anext(pages))
            for _ in range(3):
                ledger.check(await scanned(quick))
                seen += hashes_of(await anext(pages))
            async for page in pages:
                seen += hashes_of(page)
                await found_by_hash(quick, seen[:100])
            ledger.check(seen)
            growth = process.memory_info().rss - before
            print(f"the node's memory grew by {growth / 2**20:.0f} MiB")  # noqa: T201
            assert growth < MAX_GROWTH_BYTES
            ended = Counter([await ending(call) for call in unread])
        assert ended.keys() <= {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
        assert ended["OK"] < len(unread)
        assert "the answer was not read for" in node.log()


async def ending(call: grpc.aio.UnaryStreamCall[ScanRequest, ScanPage]) -> str:
    """Read a stream to its end, whatever that is."""
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    code: str = (await call.code()).name
    return code
