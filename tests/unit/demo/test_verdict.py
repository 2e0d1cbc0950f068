"""The judge of the demo finds every kind of difference, and no other."""

from __future__ import annotations

from random import Random

import pytest

from store.demo.ledger import Ledger, hash_of
from store.demo.verdict import log_differences, store_differences
from storenode.message.hashing import message_hash
from storenode.sds.aio.events import Message

PUBSUB, CONTENT = "/waku/2/rs/1/0", "/demo/1/room/proto"


def ledger(payloads: list[bytes]) -> tuple[Ledger, set[bytes]]:
    made = Ledger()
    made.offered |= {hash_of(PUBSUB, payload, CONTENT, 1) for payload in payloads}
    made.acknowledged |= made.offered
    return made, set(made.offered)


def log(*said: tuple[str, str]) -> list[Message]:
    return [
        Message(message_id, "ada", place, content.encode())
        for place, (message_id, content) in enumerate(said, 1)
    ]


def test_hashes_are_those_of_the_nodes() -> None:
    rng = Random(5)
    for _ in range(200):
        payload, time_ns = rng.randbytes(rng.randrange(200)), rng.randrange(1, 2**62)
        other = message_hash(PUBSUB, payload, CONTENT, None, time_ns)
        assert hash_of(PUBSUB, payload, CONTENT, time_ns) == other


LACKS = "{} lacks 1 messages that were acknowledged."
INVENTED = "{} holds 1 messages that nobody published."


@pytest.mark.parametrize(
    ("lacking", "more", "told"),
    [
        ("", "", []),
        ("2", "", ["n2 lacks 1 of 3 messages that others hold.", LACKS.format("n2")]),
        ("12", "", [LACKS.format("n1"), LACKS.format("n2")]),
        ("", "12", [INVENTED.format("n1"), INVENTED.format("n2")]),
    ],
)
def test_what_stores_lack_or_invent_is_told(lacking: str, more: str, told: list[str]) -> None:
    made, hashes = ledger([b"a", b"b", b"c"])
    less = set(sorted(hashes)[1:])
    stores = {
        f"n{n}": (less if n in lacking else hashes) | ({bytes(32)} if n in more else set())
        for n in "12"
    }
    assert list(store_differences(stores, made)) == told


def test_what_was_offered_and_not_acknowledged_may_be_held_or_not() -> None:
    made, hashes = ledger([b"a", b"b"])
    made.offered.add(hash_of(PUBSUB, b"c", CONTENT, 3))
    for held in (hashes, set(made.offered)):
        assert list(store_differences({"n1": held}, made)) == []


SAID = {"1": b"one", "2": b"two"}


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (log(("1", "one"), ("2", "two")), []),
        (log(("2", "two"), ("1", "one")), ["are not the same"]),
        (log(("1", "one")), ["are not the same", "bea lacks 1 of 2"]),
        (log(("1", "one"), ("2", "two"), ("2", "two")), ["are not the same", "bea has a message"]),
        (log(("1", "one"), ("2", "too")), ["bea has a message that nobody has said so"]),
        (
            log(("1", "one"), ("2", "two"), ("3", "three")),
            ["are not the same", "bea has a message that nobody has said so"],
        ),
    ],
)
def test_logs_are_compared_in_order_and_with_what_was_said(
    second: list[Message], told: list[str]
) -> None:
    logs = {"ada": log(("1", "one"), ("2", "two")), "bea": second}
    found = list(log_differences("room", SAID, logs))
    assert len(found) == len(told)
    assert all(part in sentence for part, sentence in zip(told, found, strict=True))
