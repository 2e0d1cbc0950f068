"""`storenode sync --ids`: peers are asked for exactly the listed messages."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from storenode.client.messages import hash_of, new_message
from storenode.client.sds_messages import sds_payload
from storenode.client.types import WakuMessageAndTopic
from tests.support.command import Command, Ended
from tests.support.fleet import CONTENT, PUBSUB, Fleet, hashes, holdings, publish
from tests.support.node import NodeProcess
from tests.support.sds_claims import claiming, genuine, genuine_id

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
    # Now that what is held is proven, nobody is asked.
    assert fetch(asking, path)[2]["messages_stored"] == 0
