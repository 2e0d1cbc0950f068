"""Nodes that run as processes of their own and are peers: sync, resume, schedule, conflicts."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from store.sync.limits import COMPACT_FROM_IDS
from storenode.client import AsyncClient
from storenode.client.messages import hash_of, new_message
from storenode.client.node import connect
from storenode.client.sds_messages import sds_payload
from storenode.client.types import PublishResult
from storenode.wire.storenode.v1.store_pb2 import StoreCoverage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.peers.test_gossip import ON
from tests.integration.run.helpers import get, sampled
from tests.support.command import Command, Ended
from tests.support.fleet import (
    CONTENT,
    NS_PER_S,
    PUBSUB,
    Fleet,
    exchanging,
    finished_resume,
    hashes,
    holdings,
    made,
    pretend_last_online,
    publish,
    status,
    synchronize,
)
from tests.support.node import NodeProcess
from tests.support.participant import claiming, genuine, genuine_id
from tests.support.polling import eventually, until

DAY_S = 86_400
DAY_NS = DAY_S * 10**9


def events(node: NodeProcess, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in node.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == name]


async def test_the_whole_history_is_reconciled_when_asked_for(fleet: Fleet) -> None:
    first = fleet.start()
    second = fleet.start(peers=[first])
    old = made(500, time.time_ns() - 20 * DAY_S * 10**9, span_s=5 * DAY_S)
    await publish(first, old)

    ended, report = synchronize(second)
    assert (ended.code, report["missing_here"]) == (0, 0), "the usual window ends before that"
    ended, report = synchronize(second, "--from", "0")
    assert (ended.code, report["messages_received"]) == (0, 500)
    assert holdings(second) == hashes(old)
    _, again = synchronize(second, "--from", "0")
    assert (again["missing_here"], again["round_trips"]) == (0, 1)
    found = by_day(second, old)
    assert sum(messages for messages, _ in found.values()) == 500
    assert {states for _, states in found.values()} == {("EQUAL",)}

    # The last day, which the heat map shows hour by hour.
    shown = eventually(lambda: json.loads(get(second.metrics, "/status.json")[1])["coverage"])
    (store,) = shown["stores"]
    assert {run[2] for run in store["runs"]} <= {"equal", "unconfirmed"}
    assert "equal" in {run[2] for run in store["runs"]}

    assert second.terminate() == 0
    second.start()
    assert by_day(second, old) == found
    late = made(1, old[-1].message.timestamp, seed=2)
    withdrawn = late[0].message.timestamp // DAY_NS * DAY_NS
    one_day = ("query", "--from", str(withdrawn), "--to", str(withdrawn + DAY_NS), "--coverage")
    assert "complete as far as 1 store (" in Command.of(second).ok(*one_day).err
    scanned = Command.of(second).ok("scan", *one_day[1:], "--json")
    assert scanned.objects[-1]["coverage"]["state"] == "COMPLETE"
    await publish(second, late)
    assert "Coverage: not confirmed: no comparison" in Command.of(second).ok(*one_day).err
    found[withdrawn] = found[withdrawn][0] + 1, ("UNCONFIRMED",)
    assert by_day(second, old) == found
    shown = Command.of(second).ok("coverage", "--from", str(withdrawn), "--to", str(withdrawn + 1))
    assert "not confirmed by" in shown.out


def by_day(
    node: NodeProcess, messages: list[WakuMessageAndTopic]
) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Return ``storenode coverage --by-day`` of the days of messages: counts and states."""
    times = [each.message.timestamp for each in messages]
    bounds = ("--from", str(min(times)), "--to", str(max(times) + 1))
    steps = Command.of(node).ok("coverage", "--by-day", "--json", *bounds).objects
    return {
        int(step["time_start"]): (
            int(step["messages"]),
            tuple(each["state"] for each in step["stores"]),
        )
        for step in steps
    }


async def test_missed_messages_are_resumed_as_soon_as_a_peer_is_there(fleet: Fleet) -> None:
    first = fleet.start()
    second = fleet.start(peers=[first])
    eventually(lambda: events(second, "serving"))
    second.terminate()
    pretend_last_online(second, time.time_ns() - 2 * DAY_S * 10**9)
    missed = made(3_000, time.time_ns() - 10**9, span_s=DAY_S)
    await publish(first, missed)

    second.start()

    resume = eventually(lambda: finished_resume(second))
    assert (resume["messages"], resume["stored"]) == (3_000, 3_000)
    assert holdings(second) == hashes(missed)
    metrics = get(second.metrics, "/metrics")[1]
    assert 'storenode_messages_stored_total{source="resume"} 3000.0' in metrics
    assert len(resume["peers"]) == 1
    yesterday = str(time.time_ns() - DAY_S * 10**9)
    shown = Command.of(second).ok("coverage", "--from", yesterday, "--to", yesterday[:-9] + "9" * 9)
    assert "in part resumed from a peer" in shown.out
    reported = f"resume    finished, 3,000 messages, 3,000 new, from {resume['peers'][0]}\n"
    assert reported in Command.of(second).ok("status").out

    # A resume waits for its peer, holds nothing up, and is not forgotten.
    second.terminate()
    pretend_last_online(second, time.time_ns() - DAY_S * 10**9)
    late = made(200, time.time_ns() - 10**9, seed=2)
    await publish(first, late)
    first.kill()
    second.start()
    assert eventually(lambda: status(second).get("resume", {}).get("error"))
    assert status(second)["ready"], "it serves although its resume waits"
    assert status(second)["peers"][0]["last_error"].startswith("resume: ")
    second.kill()
    first.start()
    second.start()
    assert eventually(lambda: finished_resume(second))
    assert holdings(second) == hashes(missed) | hashes(late)


async def test_peers_reconcile_by_themselves_and_report_one_that_is_away(fleet: Fleet) -> None:
    first = fleet.start()
    await publish(first, made(300, time.time_ns() - 60 * 10**9))
    second = fleet.start("--sync-interval", "1s", peers=[first])

    eventually(lambda: len(holdings(second)) == 300)

    ended = eventually(lambda: events(second, "session_ended"))
    assert (ended[0]["role"], ended[0]["outcome"]) == ("initiator", "done")
    answered = eventually(lambda: events(first, "session_ended"))
    assert (answered[0]["role"], answered[0]["sent"]) == ("responder", 300)
    metrics = eventually(lambda: get(second.metrics, "/metrics")[1])
    assert 'storenode_sync_sessions_total{outcome="done",role="initiator"}' in metrics
    assert 'storenode_transfer_messages_total{direction="received",outcome="stored"} 300.0' in (
        metrics
    )
    assert f'storenode_peer_last_sync_timestamp_seconds{{peer="{first.peer}"}}' in metrics

    first.kill()

    def away() -> dict[str, Any] | None:
        (peer,) = status(second)["peers"]
        # A session that was under way fails first, with another error.
        return peer if "could not be reached" in peer.get("last_error", "") else None

    failed = eventually(away)
    assert failed["failures"] >= 1
    assert not failed["connected"]
    (shown,) = json.loads(get(second.metrics, "/status.json")[1])["status"]["peers"]
    assert (shown["address"], shown["connected"]) == (first.peer, False)
    assert "could not be reached" in shown["last_error"]
    refused, report = synchronize(second)
    assert refused.code == 1
    assert "could not be reached" in report["error"]
    first.start()
    assert synchronize(second)[0].code == 0
    assert status(second)["peers"][0]["failures"] == 0

    lonely = Command.of(first)("sync")
    assert lonely.code == 1
    assert "this node has no peers: start it with --peer HOST:PORT" in lonely.err
    for bound in (("--to", "5"), ("--from", str(2**62))):
        nothing = Command.of(second)("sync", *bound)
        assert nothing.code == 1, "nothing compared is not equality"
        assert "is empty: give both time_start and time_end" in nothing.err
    wrong = Command.of(second)("sync", "--from", "yesterday")
    assert wrong.code == 2
    unreachable = Command({"STORENODE_ADMIN": "127.0.0.1:1"})("sync")
    assert unreachable.code == 3


SHARED = 200


async def test_the_session_after_one_that_differed_is_compact(fleet: Fleet) -> None:
    first = fleet.start()
    second = fleet.start(peers=[first.peer])
    messages = made(COMPACT_FROM_IDS + 40, time.time_ns() - 60 * NS_PER_S, seed=3)
    await publish(first, messages[:-20])
    await publish(second, messages[20:])

    ended, report = synchronize(second)

    assert ended.code == 0, ended
    assert holdings(first) == holdings(second) == hashes(messages)
    assert (report["in_sync"], report["equality"], report["compact"]) == (True, "keyed", True)
    assert (report["missing_here"], report["missing_there"], report["round_trips"]) == (20, 20, 2)
    assert 'storenode_sync_modes_total{mode="compact"} 1.0' in get(first.metrics, "/metrics")[1]
    assert "mode      compact\n" in Command.of(second).ok("sync").out
    _, report = synchronize(second)
    assert (report["in_sync"], report["equality"], report["compact"]) == (True, "keyed", False)


NOW = time.time_ns() - 120 * NS_PER_S  # long enough ago that its whole minute is compared
FIRST = new_message(b"transfer 10 to bob/al", "pha/1/x/proto", PUBSUB, NOW)
OTHER = new_message(b"transfer 10 to bob", "/alpha/1/x/proto", PUBSUB, NOW)
SENTENCE = "another message has this hash; change its timestamp"
CONFLICTS = "storenode_conflicts_total"


def _has_gossip_conflict(node: NodeProcess) -> bool:
    return sampled(node.metrics, f'{CONFLICTS}{{source="gossip"}}') == 1


async def test_a_node_rejects_the_second_message_of_a_hash_and_stores_confirm_neither(
    fleet: Fleet,
) -> None:
    assert hash_of(FIRST) == hash_of(OTHER)
    first = fleet.start(*ON)
    async with connect(first.listen) as client:
        for outcome in (PublishResult.STORED, PublishResult.DUPLICATE):
            kept, refused = await client.publish([FIRST, OTHER])
            assert kept.outcome == outcome
            assert (refused.outcome, refused.reason) == (PublishResult.REJECTED, SENTENCE)
        (answer,) = await client.publish([OTHER], min_confirms=1, confirm_timeout_s=60)
        assert (answer.outcome, answer.reason) == (PublishResult.REJECTED, SENTENCE)
    assert sampled(first.metrics, f'{CONFLICTS}{{source="client"}}') == 3
    assert status(first)["conflicts"] == 3
    first.kill()
    other = fleet.start(*ON, peers=[first])
    await publish(other, [OTHER])
    first.start()
    exchanging(other, 1)
    for node in (first, other):
        assert eventually(partial(_has_gossip_conflict, node))
    for node, message in ((first, FIRST), (other, OTHER)):
        async with connect(node.listen) as client:
            (answer,) = await client.publish([message], min_confirms=1, confirm_timeout_s=1)
            assert answer.outcome == PublishResult.UNCONFIRMED
            fresh = new_message(b"fresh", "/alpha/1/x/proto", PUBSUB, time.time_ns())
            (answer,) = await client.publish([fresh], min_confirms=1, confirm_timeout_s=60)
            assert answer.outcome == PublishResult.STORED


async def test_two_contents_of_one_hash_are_a_conflict_of_sessions_and_of_a_resume(
    fleet: Fleet,
) -> None:
    first = fleet.start()
    second = fleet.start(peers=[first.peer])
    shared = made(SHARED, NOW, seed=1)
    await publish(first, [*shared, FIRST])
    await publish(second, [*shared, OTHER])

    for _ in range(2):
        ended, report = synchronize(second)

        assert ended.code == 1, ended
        assert not report["in_sync"]
        assert (report["missing_here"], report["missing_there"], report["hidden"]) == (0, 0, 0)
        assert report["conflicts"] == 1
        (conflict,) = report["shown_conflicts"]
        assert conflict["own_digest"] != conflict["peer_digest"]
        assert "different contents under one hash" in report["notes"][0]
    for node in (first, second):
        said = events(node, "content_conflict")[0]
        assert said["hash"] == hash_of(FIRST).hex()
        assert said["own_digest"] != said["peer_digest"]
    left = 'storenode_peer_differences{peer="' + first.peer + '",window="recent"} 1.0'
    assert left in get(second.metrics, "/metrics")[1]

    async def differs() -> bool:
        async with AsyncClient(second.listen) as client:
            steps = [each async for each in client.coverage(start=NOW, end=NOW + 1)]
        states = [each.state for step in steps for each in step.stores]
        return states == [StoreCoverage.DIFFERS]

    await until(differs)  # statements of a session are written after its report

    second.kill()
    pretend_last_online(second, NOW - 600 * NS_PER_S)
    second.start()
    assert eventually(lambda: finished_resume(second) is not None)
    assert sampled(second.metrics, f'{CONFLICTS}{{source="resume"}}') == 1
    async with connect(second.listen) as client:
        (answer,) = await client.publish([OTHER])
        assert answer.outcome == PublishResult.DUPLICATE


HOUR_NS = 3_600_000_000_000


def said(number: int, *, channel: str = "room", at: int | None = None) -> WakuMessageAndTopic:
    payload = sds_payload(channel, f"id-{number}", b"content", lamport=number)
    return new_message(payload, CONTENT, PUBSUB, at or time.time_ns() - HOUR_NS + number)


def encrypted(number: int) -> WakuMessageAndTopic:
    return new_message(b"\0sealed%d" % number, CONTENT, PUBSUB, time.time_ns() - HOUR_NS + number)


def wanted(name: str, hint: bytes | None = None, channel: str = "room") -> dict[str, str]:
    given = {"channel": channel, "message_id": name}
    return given if hint is None else {**given, "hint": hint.hex()}


def write(path: Path, lines: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


def fetch(node: NodeProcess, path: Path, *arguments: str) -> tuple[Ended, list[Any], Any]:
    """Return how it ended, what it says of IDs that did not come, and its summary."""
    ended = Command.of(node)("sync", "--json", "--ids", str(path), *arguments)
    assert ended.objects, ended
    return ended, ended.objects[:-1], ended.objects[-1]


async def test_exactly_the_listed_messages_come(fleet: Fleet, tmp_path: Path) -> None:
    first, second = fleet.start(), fleet.start()
    asking = fleet.start(peers=[first, second])
    everything = [said(number) for number in range(1_200)]
    sealed = encrypted(1)
    await publish(first, [each for number, each in enumerate(everything) if number % 2])
    await publish(second, [*everything[::4], sealed])
    await publish(asking, [everything[8]])
    ids = [wanted(f"id-{number}") for number in range(4, 1_200)]
    hidden = [wanted("sealed", hash_of(sealed)), wanted("lost", bytes(32)), wanted("long" * 100)]
    path = write(tmp_path / "ids", [*ids, *hidden])

    ended, left, summary = fetch(asking, path)
    numbers = [number for number in range(4, 1_200) if number % 2 or number % 4 == 0]
    assert holdings(asking) == hashes([everything[number] for number in numbers]) | {
        hash_of(sealed)
    }
    absent = [wanted(f"id-{number}") for number in range(6, 1_200, 4)]
    assert sorted(map(str, left)) == sorted(
        str({**line, "outcome": "missing"}) for line in [*absent, *hidden[1:]]
    )
    assert ended.code == 1
    assert summary["held"] == 1
    assert summary["found"] == {first.peer: 598, second.peer: 299}
    assert (summary["missing"], summary["refused"], summary["unasked"]) == (len(left), 0, 0)
    assert summary["messages_stored"] == 897

    ended, left, again = fetch(asking, path, "--peer", second.peer)
    assert (again["held"], again["messages_stored"], again["found"]) == (898, 0, {})
    assert len(left) == summary["missing"]

    known = write(tmp_path / "known", ids[:1])
    assert fetch(asking, known)[0].code == 0
    reported = Command.of(asking)("sync", "--ids", str(path))
    assert reported.code == 1
    assert "missing: id-6 of room\n" in reported.out


async def test_a_forged_message_here_does_not_keep_the_genuine_one_away(
    fleet: Fleet, tmp_path: Path
) -> None:
    first = fleet.start()
    asking = fleet.start(peers=[first])
    name, then = genuine_id("room", b"genuine"), time.time_ns() - HOUR_NS
    payloads = [claiming("room", name, b"forged %d" % number) for number in range(20)]
    *forged, real = (
        new_message(payload, CONTENT, PUBSUB, then + number)
        for number, payload in enumerate([*payloads, genuine("room", b"genuine")])
    )
    await publish(first, [*forged[1:], real])
    await publish(asking, forged[:1])
    path = write(tmp_path / "ids", [wanted(name)])
    ended, left, summary = fetch(asking, path)
    assert (ended.code, left, summary["held"]) == (0, [], 1)
    assert hash_of(real) in holdings(asking)
    # The stored message is proven now, so no peer is asked.
    assert fetch(asking, path)[2]["messages_stored"] == 0
