"""Nodes that run as processes of their own and are peers: sync, resume, schedule, reports."""

from __future__ import annotations

import json
import time
from typing import Any

from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.run.helpers import get
from tests.support.command import Command
from tests.support.fleet import (
    Fleet,
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
from tests.support.polling import eventually

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
    (shown,) = json.loads(get(second.metrics, "/status.json")[1])["peers"]
    assert (shown["address"], shown["connected"]) == (first.peer, False)
    assert "could not be reached" in shown["error"]
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
