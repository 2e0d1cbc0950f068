"""Nodes without TLS that share a secret, and nodes with a token file that believe no name."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from storenode.client.messages import hash_of, new_message
from storenode.wire.storenode.v1.peer_pb2 import Events, GossipFrame
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.peers.test_gossip_hostile import stream
from tests.integration.run.helpers import run_to_end
from tests.support.command import Command
from tests.support.fleet import CONTENT, PUBSUB, Fleet, held, made, publish, status
from tests.support.node import NodeProcess
from tests.support.polling import eventually

METADATA = (
    ("storenode-node-id", "stranger"),
    ("storenode-store-id", "store-of-stranger"),
    ("storenode-version", "6.6.6"),
)
QUERY = "/storenode.v1.Store/Query"


def secret_file(directory: Path, text: str = "0123456789abcdef", mode: int = 0o600) -> str:
    path = directory / f"secret-{len(list(directory.glob('secret-*')))}"
    path.write_text(text + "\n")
    path.chmod(mode)
    return str(path)


def token_file(directory: Path) -> str:
    path = directory / "tokens.toml"
    rights = "rights = ['read', 'publish']"
    path.write_text(f"[clients.a]\ntoken_sha256 = '{sha256(b'token').hexdigest()}'\n{rights}\n")
    return str(path)


async def refusal(node: NodeProcess) -> tuple[grpc.StatusCode, str]:
    """How a node answers a query of somebody who only says that it is a node."""
    async with grpc.aio.insecure_channel(node.listen) as channel:
        request = StoreQueryRequest(include_data=True).SerializeToString()
        try:
            query: Any = channel.unary_unary
            await query(QUERY)(request, metadata=METADATA)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def gossiped(node: NodeProcess) -> tuple[grpc.StatusCode, str, bool]:
    """How a node ends a stream of the same, and whether it stored what was pushed to it."""
    message = new_message(b"pushed", CONTENT, PUBSUB, time.time_ns())
    async with stream(node.listen, "stranger") as pushing:
        await pushing.send(GossipFrame(events=Events(messages=[message])))
        code, sentence = await pushing.ending()
    return code, sentence, hash_of(message) in held(node)


async def test_peers_that_share_a_secret_sync_and_gossip(fleet: Fleet, tmp_path: Path) -> None:
    options = ("--peer-secret-file", secret_file(tmp_path), "--gossip", "on")
    first = fleet.start(*options)
    second = fleet.start(*options, peers=[first])
    await publish(first, made(30, time.time_ns()))
    assert "result    in sync\n" in Command.of(second).ok("sync").out
    assert held(first) == held(second)
    eventually(lambda: status(second)["gossip"]["peers"][0].get("connected"))
    later = made(3, time.time_ns(), seed=2)
    await publish(second, later)
    eventually(lambda: {hash_of(each) for each in later} <= held(first))


async def test_without_the_secret_nobody_is_a_peer(fleet: Fleet, tmp_path: Path) -> None:
    node = fleet.start("--peer-secret-file", secret_file(tmp_path), "--gossip", "on")
    code, sentence = await refusal(node)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "does not prove" in sentence
    code, sentence, stored = await gossiped(node)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "does not prove" in sentence
    assert not stored
    await publish(node, made(5, time.time_ns()))
    for other in ((), ("--peer-secret-file", secret_file(tmp_path, "another secret, long"))):
        stranger = fleet.start(*other, peers=[node])
        ended = Command.of(stranger)("sync")
        assert ended.code != 0
        assert "does not prove that it knows the secret of --peer-secret-file" in ended.out
        assert not held(stranger)


async def test_a_callee_that_lacks_the_secret_is_told_nothing(fleet: Fleet, tmp_path: Path) -> None:
    callee = fleet.start()
    caller = fleet.start("--peer-secret-file", secret_file(tmp_path), peers=[callee])
    await publish(caller, made(5, time.time_ns()))
    ended = Command.of(caller)("sync")
    assert ended.code != 0
    assert f"what answers at {callee.peer} does not prove" in ended.out
    assert not held(callee)


async def test_with_a_token_file_a_name_in_clear_makes_nobody_a_peer(
    fleet: Fleet, tmp_path: Path
) -> None:
    tokens = ("--client-token-file", token_file(tmp_path), "--gossip", "on")
    node = fleet.start(*tokens)
    code, sentence = await refusal(node)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in sentence
    async with stream(node.listen, "stranger") as pushing:
        code, sentence = await pushing.ending()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "--peer-secret-file" in sentence
    separate = fleet.start(*tokens, "--peer-listen", "127.0.0.1:0")
    async with stream(separate.peer, "stranger") as pushing:
        assert (await pushing.ending())[0] is grpc.StatusCode.PERMISSION_DENIED
    named = fleet.start(*tokens, "--allow-peer", "stranger")
    assert (await refusal(named))[0] is grpc.StatusCode.OK, "the operator said so"


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("short", 0o600, "must have 16 to 4,096 bytes"),
        ("0123456789abcdef", 0o604, "can be read by everybody (mode 0604)"),
    ],
)
def test_a_file_that_keeps_no_secret_is_refused(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    path = secret_file(tmp_path, text, mode)
    ended = run_to_end(tmp_path / "data", "--peer-secret-file", path)
    assert ended.code == 2
    assert words in ended.sentence
    assert text not in ended.log
    assert not (tmp_path / "data/postgres").exists()
