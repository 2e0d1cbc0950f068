"""The checker of logs bites."""

from __future__ import annotations

from dataclasses import replace

from bench.soak.checker.participants import Entry, Log, check_participants

ENTRIES = [
    Entry(1, "alice-1", "alice", "hello"),
    Entry(2, "bob-1", "bob", "hi"),
    Entry(2, "bob-2", "bob", "there"),
]
SAID = {"alice": {"alice-1": "hello"}, "bob": {"bob-1": "hi", "bob-2": "there"}}
LOGS = [Log(name, "kitchen", SAID[name], ENTRIES) for name in ("alice", "bob")]


def rules(*logs: Log) -> list[str]:
    return [each.rule for each in check_participants(logs)]


def test_equal_logs_have_no_violation() -> None:
    assert rules(*LOGS) == []


def test_a_message_that_one_log_lacks_is_a_violation_unless_its_loss_is_named() -> None:
    shorter = replace(LOGS[1], entries=ENTRIES[1:])
    assert rules(LOGS[0], shorter) == ["unnamed loss"]
    assert rules(LOGS[0], replace(shorter, lost=frozenset({"alice-1"}))) == []


def test_what_its_own_sender_lacks_is_found() -> None:
    assert rules(replace(LOGS[0], entries=ENTRIES[1:]), LOGS[1]) == ["unnamed loss"]


def test_an_entry_that_nobody_said_is_found() -> None:
    extra = [*ENTRIES, Entry(3, "carol-1", "carol", "boo")]
    assert rules(LOGS[0], replace(LOGS[1], entries=extra)) == ["unheard"]


def test_another_content_or_sender_under_an_id_is_found() -> None:
    for spoilt in (replace(ENTRIES[1], content="ho"), replace(ENTRIES[1], sender="alice")):
        changed = [ENTRIES[0], spoilt, ENTRIES[2]]
        assert rules(LOGS[0], replace(LOGS[1], entries=changed)) == ["unheard", "unequal logs"]


def test_another_place_in_the_log_is_found() -> None:
    moved = [ENTRIES[1], ENTRIES[2], replace(ENTRIES[0], lamport=3)]
    assert rules(LOGS[0], replace(LOGS[1], entries=moved)) == ["unequal logs"]


def test_a_log_out_of_order_and_an_entry_twice_are_found() -> None:
    assert rules(LOGS[0], replace(LOGS[1], entries=ENTRIES[::-1])) == ["unequal logs"]
    twice = [*ENTRIES, ENTRIES[2]]
    assert rules(LOGS[0], replace(LOGS[1], entries=twice)) == ["unequal logs"]


def test_channels_have_nothing_to_do_with_each_other() -> None:
    elsewhere = Log("carol", "garden", {"carol-1": "x"}, [Entry(1, "carol-1", "carol", "x")])
    assert rules(*LOGS, elsewhere) == []
