"""Rules for logs: each difference breaks them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.checker.logs import Entry, Log, check_logs

ENTRIES = [
    Entry(1, "alice-1", "alice", "hello"),
    Entry(2, "bob-1", "bob", "hi"),
    Entry(2, "bob-2", "bob", "there"),
]
SENT = {"alice": {"alice-1": "hello"}, "bob": {"bob-1": "hi", "bob-2": "there"}}
LOGS = [Log(name, "kitchen", SENT[name], ENTRIES) for name in ("alice", "bob")]


def rules(*logs: Log) -> list[str]:
    return [each.rule for each in check_logs(logs)]


def test_equal_logs_have_no_violation() -> None:
    assert rules(*LOGS) == []


ALICE_1, BOB_1, BOB_2 = ENTRIES


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([BOB_1, BOB_2], ["unnamed loss"]),
        ([*ENTRIES, Entry(3, "carol-1", "carol", "boo")], ["unknown entry"]),
        ([ALICE_1, replace(BOB_1, content="ho"), BOB_2], ["unknown entry", "unequal logs"]),
        ([ALICE_1, replace(BOB_1, sender="alice"), BOB_2], ["unknown entry", "unequal logs"]),
        ([BOB_1, BOB_2, replace(ALICE_1, lamport=3)], ["unequal logs"]),
        (ENTRIES[::-1], ["unequal logs"]),
        ([*ENTRIES, BOB_2], ["unequal logs"]),
    ],
)
def test_another_log_is_a_violation(entries: list[Entry], found: list[str]) -> None:
    assert rules(LOGS[0], replace(LOGS[1], entries=entries)) == found


def test_a_loss_may_be_reported_but_not_by_the_sender() -> None:
    reported = replace(LOGS[1], entries=ENTRIES[1:], lost=frozenset({"alice-1"}))
    assert rules(LOGS[0], reported) == []
    assert rules(replace(LOGS[0], entries=ENTRIES[1:]), LOGS[1]) == ["unnamed loss"]


def test_channels_are_compared_separately() -> None:
    elsewhere = Log("carol", "garden", {"carol-1": "x"}, [Entry(1, "carol-1", "carol", "x")])
    assert rules(*LOGS, elsewhere) == []
