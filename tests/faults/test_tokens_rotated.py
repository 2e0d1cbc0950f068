"""The token file is rewritten over and over while clients call."""

from __future__ import annotations

import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc

from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.cluster import copy_cluster
from tests.support.node import NodeProcess
from tests.support.polling import PAUSE_S

QUERY = "/storenode.v1.Store/Query"
REQUEST = StoreQueryRequest(request_id="x").SerializeToString()
PATIENCE_S = 60.0
TURNS = 60
MOMENT_S = 0.05


def entry(token: str) -> str:
    digest = sha256(token.encode()).hexdigest()
    return f'[clients.{token}]\ntoken_sha256 = "{digest}"\nrights = ["read"]\n'


class Writer(threading.Thread):
    """Keeps one token, changes another, and leaves the file empty, cut and deleted for moments."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ended = threading.Event()
        self.turn = 0

    def run(self) -> None:
        """Write until told to end."""
        while not self.ended.is_set():
            self.turn += 1
            whole = entry("kept") + entry(f"turn-{self.turn}")
            if self.turn % 4 == 0:
                self.path.unlink()
            else:
                self.path.write_text(whole[: len(whole) // 3] if self.turn % 4 == 1 else "")
            self.ended.wait(MOMENT_S)
            self.path.write_text(whole)
            self.ended.wait(MOMENT_S)


def allowed(channel: grpc.Channel, token: str) -> bool:
    """Whether a call with a token is served; any other failure is raised."""
    query: Any = channel.unary_unary(QUERY, None, None)
    try:
        query(REQUEST, metadata=(("authorization", f"Bearer {token}"),), timeout=PATIENCE_S)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise
        return False
    return True


def test_a_valid_token_is_served_and_a_revoked_one_is_not(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(entry("kept") + entry("old"))
    node = NodeProcess(
        copy_cluster(tmp_path / "data"), ("--client-token-file", str(tokens))
    ).start()
    deadline, writer = time.monotonic() + PATIENCE_S, Writer(tokens)
    try:
        with grpc.insecure_channel(node.listen) as channel:
            assert allowed(channel, "old")
            writer.start()
            while allowed(channel, "old"):
                assert allowed(channel, "kept")
                assert time.monotonic() < deadline, "a revoked token is served on"
                time.sleep(PAUSE_S)
            while writer.turn < TURNS:
                assert allowed(channel, "kept")
            writer.ended.set()
            writer.join()
            tokens.write_text("")
            while allowed(channel, "kept"):
                assert time.monotonic() < deadline, "a revoked token is served on"
                time.sleep(PAUSE_S)
    finally:
        writer.ended.set()
        node.close()
