"""Questions to a node, by the generated stubs alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeVar

import grpc

from bench.soak.checker.hashing import fingerprint, message_hash
from bench.soak.checker.stores import Served
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)
"""Connections of their own, which are made again soon after a node is back."""

_CALL_S: Final = 60.0
_PAUSE_S: Final = 0.2
_HASHES: Final = 1_000
_OK: Final = 200
_NOT_READY: Final = 503
_T = TypeVar("_T")


class NoAnswerError(Exception):
    """A node gave no answer in time; the text is its last error."""


class _NotReadyError(Exception):
    """A `Query` was answered with 503."""


def ask(address: str, question: Callable[[store_pb2_grpc.StoreStub], _T], patience_s: float) -> _T:
    """Ask a node at HOST:PORT until it answers; it may be away or starting meanwhile.

    Raises:
        NoAnswerError: it did not within ``patience_s``, or the error is not one that passes.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with _stub(address) as stub:
                return question(stub)
        except (grpc.RpcError, _NotReadyError) as error:
            passing = isinstance(error, _NotReadyError) or error.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            if not passing or time.monotonic() > deadline:
                raise NoAnswerError(f"{address}: {error}") from error
            time.sleep(_PAUSE_S)


def held(address: str, digests: Collection[bytes], patience_s: float) -> set[bytes]:
    """Which of some messages a node finds by hash."""

    def question(stub: store_pb2_grpc.StoreStub) -> set[bytes]:
        found: set[bytes] = set()
        rest = iter(digests)
        while some := list(islice(rest, _HASHES)):
            request = StoreQueryRequest(
                request_id="soak", message_hashes=some, pagination_limit=_HASHES
            )
            answer = stub.Query(request, timeout=_CALL_S)
            if answer.status_code == _NOT_READY:
                raise _NotReadyError(answer.status_desc)
            assert answer.status_code == _OK, f"{address}: {answer.status_desc}"
            found.update(entry.message_hash for entry in answer.messages)
        return found

    return ask(address, question, patience_s)


def scan(address: str, patience_s: float) -> list[Served]:
    """Everything that a node holds, in the order in which it gives it."""

    def question(stub: store_pb2_grpc.StoreStub) -> list[Served]:
        pages = stub.Scan(store_pb2.ScanRequest(include_data=True), timeout=patience_s)
        return [
            Served(
                entry.message_hash,
                message_hash(entry.message, entry.pubsub_topic),
                fingerprint(entry.message, entry.pubsub_topic),
                entry.message.timestamp,
            )
            for page in pages
            for entry in page.messages
        ]

    return ask(address, question, patience_s)


def scan_hashes(address: str, patience_s: float) -> set[bytes]:
    """The hashes of everything that a node holds."""

    def question(stub: store_pb2_grpc.StoreStub) -> set[bytes]:
        pages = stub.Scan(store_pb2.ScanRequest(), timeout=patience_s)
        return {entry.message_hash for page in pages for entry in page.messages}

    return ask(address, question, patience_s)


@contextmanager
def _stub(address: str) -> Iterator[store_pb2_grpc.StoreStub]:
    with grpc.insecure_channel(address, OPTIONS) as channel:
        yield store_pb2_grpc.StoreStub(channel)
