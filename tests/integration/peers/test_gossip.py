"""Live gossip between nodes that are processes of their own, and publishing that waits for it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from storenode.client.messages import hash_of, new_message
from storenode.client.node import connect
from storenode.client.sds_messages import sds_payload
from storenode.client.types import PublishResult, WakuMessageAndTopic
from tests.integration.run.helpers import get
from tests.support.command import Command, Ended
from tests.support.fleet import (
    CONTENT,
    PUBSUB,
    Fleet,
    exchanging,
    hashes,
    held,
    made,
    status,
    synchronize,
)
from tests.support.node import COMMAND, NodeProcess, clean_environment
from tests.support.pages import ROOT, matches, steps
from tests.support.peer_proxy import PeerProxy, proxied
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import HeldPort

ON = ("--gossip", "on")
SENT_BYTES = 'storenode_gossip_body_bytes_total{direction="sent"}'
LONG = ("--confirm-timeout", "60s")
UNREAD_OF_TWO = "select from storenode.unread where needed <= 2 and expired_at is null limit 1"


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[Fleet]:
    nodes = Fleet(tmp_path_factory.mktemp("gossip"), new_database=new_store)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def triangle(fleet: Fleet) -> list[NodeProcess]:
    """Three nodes, each of which has a stream with both others."""
    nodes: list[NodeProcess] = []
    for _ in range(3):
        nodes.append(fleet.start(*ON, peers=list(nodes)))
    for node in nodes:
        exchanging(node, 2)
    return nodes


def gossip(node: NodeProcess) -> dict[str, Any]:
    return dict(status(node)["gossip"])


def settle(node: NodeProcess) -> None:
    """Wait until nothing is unread at a node that the two others can confirm."""

    def look() -> bool:
        assert node.database_url is not None
        with psycopg.connect(node.database_url) as connection:
            return connection.execute(UNREAD_OF_TWO).fetchone() is None

    assert eventually(look)


def metric(node: NodeProcess, name: str) -> float:
    text = get(node.metrics, "/metrics")[1]
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)
    )


def publish(node: NodeProcess, text: str, *arguments: str) -> tuple[Ended, dict[str, Any]]:
    """``storenode publish --json``: how it ended, and its one result."""
    ended = Command.of(node)("publish", "--json", "--content-topic", CONTENT, *arguments, text)
    (result,) = ended.objects
    return ended, result


async def store(
    node: NodeProcess, messages: list[WakuMessageAndTopic], min_confirms: int = 0
) -> list[PublishResult]:
    async with connect(node.listen) as client:
        published = client.publish_all(
            messages, min_confirms=min_confirms, confirm_timeout_s=PATIENCE_S
        )
        return [result async for _, result in published]


def equal(nodes: list[NodeProcess], messages: list[WakuMessageAndTopic]) -> bool:
    wanted = hashes(messages)
    return all(wanted <= held(node) for node in nodes)


TOLD = steps((ROOT / "docs" / "gossip.md").read_text(encoding="utf-8"))
"""What the operator's page shows, in its order."""


def as_told(node: NodeProcess, number: int, code: int = 0) -> None:
    """Run a command of the page; it must print what the page shows."""
    step = TOLD[number]
    path = f"{Path(COMMAND).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", step.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=clean_environment(PATH=path, A=node.listen, ADMIN_A=node.admin),
        timeout=PATIENCE_S,
        check=False,
    )
    printed = done.stdout.decode()
    assert (done.returncode, matches(step.output, printed)) == (code, True), printed


def test_the_page_for_operators_tells_the_truth(triangle: list[NodeProcess]) -> None:
    first, _, third = triangle
    as_told(first, 0)
    settle(first)
    as_told(first, 1)
    third.kill()
    exchanging(first, 1)
    as_told(first, 2, code=1)
    as_told(first, 3)
    third.start()
    exchanging(first, 2)
    settle(first)
    as_told(first, 4)
    assert len(TOLD) == 5


def test_a_message_is_confirmed_by_both_others(triangle: list[NodeProcess]) -> None:
    ended, result = publish(triangle[0], "one", "--min-confirms", "2", *LONG)
    assert ended.code == 0, ended
    assert (result["outcome"], result["confirms"], result["reason"]) == ("STORED", 2, "")
    digest = bytes.fromhex(result["message_hash"])
    assert all(digest in held(node) for node in triangle), "who confirms has it"
    shown = Command.of(triangle[1]).ok(
        "publish", "--content-topic", CONTENT, "--min-confirms", "1", *LONG, "two"
    )
    assert "confirmed by " in shown.out
    settle(triangle[0])


async def test_batches_are_confirmed_and_reach_all(triangle: list[NodeProcess]) -> None:
    messages = made(3_000, time.time_ns() - 60 * 10**9)
    results = await store(triangle[2], messages, 2)
    assert {(result.outcome, result.confirms) for result in results} == {(PublishResult.STORED, 2)}
    assert equal(triangle, messages)
    again = await store(triangle[0], messages[:50], 2)
    assert {(r.outcome, r.confirms) for r in again} == {(PublishResult.DUPLICATE, 2)}
    settle(triangle[0])
    sent = sum(metric(node, SENT_BYTES) for node in triangle)
    one_copy = sum(message.ByteSize() for message in messages)
    assert sent < 3 * 1.2 * one_copy, "a body crosses each link about once"


def test_more_confirmations_than_there_are_stores_are_refused_at_once(
    triangle: list[NodeProcess],
) -> None:
    began = time.monotonic()
    many, caller = ("--min-confirms", "3"), triangle[2]
    ended, result = publish(caller, "three", *many, "--confirm-timeout", "300s")
    assert time.monotonic() - began < 250, "it does not wait for what cannot come"
    assert ended.code == 1
    assert result["outcome"] == "UNCONFIRMED"
    assert "of 3 stores confirmed: this node exchanges messages with 2 other" in result["reason"]
    assert bytes.fromhex(result["message_hash"]) in held(caller)
    ended, result = publish(caller, "now", *many, "--ephemeral")
    assert (ended.code, result["outcome"]) == (0, "EPHEMERAL")


def test_the_peers_of_any_node_on_the_database_confirm(fleet: Fleet) -> None:
    others = [fleet.start(*ON) for _ in range(2)]
    nobody = HeldPort()
    asked = fleet.start(*ON, "--peer", nobody.address)
    connected = fleet.start(*ON, peers=others, database_url=asked.database_url)
    exchanging(connected, 2)
    ended, result = publish(asked, "beside it", "--min-confirms", "2", *LONG)
    assert (ended.code, result["outcome"], result["confirms"]) == (0, "STORED", 2)


def test_a_node_that_calls_nobody_waits_for_who_calls_it(fleet: Fleet) -> None:
    lone = fleet.start(*ON)
    with ThreadPoolExecutor() as threads:
        publishing = threads.submit(publish, lone, "alone as yet", "--min-confirms", "1", *LONG)
        eventually(lambda: gossip(lone)["unread"] == 1)
        fleet.start(*ON, peers=[lone])
        ended, result = publishing.result()
    assert (ended.code, result["outcome"], result["confirms"]) == (0, "STORED", 1)


async def test_an_event_waits_for_its_parents(triangle: list[NodeProcess]) -> None:
    now_ns = time.time_ns()
    parent = _event("parent", now_ns)
    child = _event("child", now_ns + 1, ("parent", hash_of(parent)))
    await store(triangle[0], [child])
    assert eventually(lambda: gossip(triangle[1])["waiting"] == 1)
    assert hash_of(child) in held(triangle[1])
    await store(triangle[2], [parent])
    for node in triangle:
        assert eventually(lambda node=node: gossip(node)["waiting"] == 0)  # type: ignore[misc]


async def test_what_is_unread_survives_and_is_confirmed_when_the_store_is_back(
    triangle: list[NodeProcess],
) -> None:
    first, _, third = triangle
    settle(first)
    before = gossip(first)["unread"]
    third.kill()
    ended, result = publish(first, "four", "--min-confirms", "2", "--confirm-timeout", "1s")
    assert (ended.code, result["outcome"]) == (1, "UNCONFIRMED")
    assert "of 2 stores confirmed" in result["reason"]
    assert gossip(first)["unread"] == before + 1
    # What the database holds is read for the metrics now and then.
    assert eventually(lambda: metric(first, "storenode_unread_events") == before + 1)
    assert metric(first, "storenode_unread_oldest_seconds") > 0
    assert "unread, the oldest for" in Command.of(first).ok("status").out
    first.kill()
    first.start()
    assert gossip(first)["unread"] == before + 1, "it survives a restart"

    third.start()

    digest = bytes.fromhex(result["message_hash"])
    assert eventually(lambda: digest in held(third))
    assert eventually(lambda: gossip(first)["unread"] == before)
    exchanging(first, 2)
    ended, result = publish(first, "five", "--min-confirms", "2", *LONG)
    assert (result["outcome"], result["confirms"]) == ("STORED", 2)


async def test_every_node_is_killed_in_its_turn_and_catches_up(
    triangle: list[NodeProcess],
) -> None:
    for number, node in enumerate(triangle):
        node.kill()
        missed = made(100, time.time_ns() - (number + 1) * 10**9)
        await store(triangle[number - 1], missed)
        node.start()
        assert eventually(lambda missed=missed: equal(triangle, missed))  # type: ignore[misc]
    for node in triangle:
        exchanging(node, 2)


HOUR_BEHIND = """
import time
right, right_ns = time.time, time.time_ns
time.time = lambda: right() - 3600
time.time_ns = lambda: right_ns() - 3600 * 10**9
"""


async def test_a_node_whose_clock_is_an_hour_off_harms_nobody(
    fleet: Fleet, triangle: list[NodeProcess], tmp_path: Path
) -> None:
    node = fleet.start(*ON, "--max-clock-drift", "20s", peers=triangle[:2])
    node.kill()
    (tmp_path / "sitecustomize.py").write_text(HOUR_BEHIND)
    node.env["PYTHONPATH"] = str(tmp_path)
    node.start()
    exchanging(node, 2)
    messages = [new_message(b"%d" % n, CONTENT, PUBSUB, time.time_ns() - n) for n in range(100)]
    results = await store(triangle[0], messages, 2)
    assert {(r.outcome, r.confirms) for r in results} == {(PublishResult.STORED, 2)}
    too_new = 'storenode_messages_rejected_total{reason="too_new",source="gossip"}'
    assert eventually(lambda: metric(node, too_new) >= 100), "refused by name"
    assert equal(triangle, messages)
    assert not hashes(messages) & held(node), "nobody has counted it"
    node.kill()
    del node.env["PYTHONPATH"]
    node.start()
    exchanging(node, 2)
    synchronize(node, "--peer", triangle[0].peer, "--from", "0")
    assert eventually(lambda: equal([node], messages))
    node.kill()
    for each in triangle[:2]:
        exchanging(each, 2)


@dataclass
class Pair:
    """Each calls the other through a proxy; at the second every message must be confirmed."""

    first: NodeProcess
    second: NodeProcess
    proxies: tuple[PeerProxy, PeerProxy]
    history: list[WakuMessageAndTopic]


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> Iterator[Pair]:
    with proxied() as there, proxied() as back:
        first = fleet.start(*ON, peers=[there.address])
        # More than gossip remembers after a restart: the rest is for reconciliation.
        history = made(9_000, time.time_ns() - 60 * 10**9)
        asyncio.run(store(first, history))
        first.kill()
        first.start()
        back.target = first.peer
        second = fleet.start(*ON, "--max-confirms", "1", peers=[back.address])
        there.target = second.peer
        yield Pair(first, second, (there, back), history)


async def test_neither_gossip_nor_transfer_sends_back_what_the_other_brought(pair: Pair) -> None:
    first, second = pair.first, pair.second
    assert eventually(lambda: len(held(second)) > 5_000)
    assert eventually(lambda: synchronize(second, "--from", "0")[1]["in_sync"])
    assert equal([first, second], pair.history)
    assert metric(second, "storenode_transfer_messages_total") > 0, "both had something to do"
    received = 'storenode_gossip_events_total{what="bodies_received"}'
    before = metric(first, received)
    await store(second, made(1, time.time_ns(), seed=5), 1)
    assert metric(first, received) - before == 1
    assert metric(first, 'storenode_messages_duplicate_total{source="gossip"}') == 0
    assert metric(first, 'storenode_transfer_messages_total{direction="received"') == 0
    assert eventually(lambda: gossip(second)["unread"] == 0)


async def test_a_network_that_was_cut_heals_without_a_reconciliation(pair: Pair) -> None:
    first, second = pair.first, pair.second
    exchanging(first, 1)
    for proxy in pair.proxies:
        proxy.cut()
    exchanging(second, 0)
    # Newer than the history: of what came while a node had no peer, it tells the newest.
    messages = made(400, time.time_ns(), span_s=5.0, seed=9)
    await store(first, messages[:200])
    await store(second, messages[200:])
    assert gossip(first)["unread"] == 0
    assert gossip(second)["unread"] == 200, "--max-confirms 1"
    for proxy in pair.proxies:
        proxy.heal()
    assert eventually(lambda: equal([first, second], messages))
    assert eventually(lambda: gossip(second)["unread"] == 0)
    for node in (first, second):
        exchanging(node, 1)
        assert metric(node, 'storenode_gossip_peers{state="connected"}') == 1, "not one each way"


def _event(message_id: str, timestamp_ns: int, *parents: tuple[str, bytes]) -> WakuMessageAndTopic:
    payload = sds_payload("c", message_id, b"x", parents=parents)
    return new_message(payload, CONTENT, PUBSUB, timestamp_ns)
