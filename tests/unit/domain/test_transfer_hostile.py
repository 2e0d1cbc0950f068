"""A transfer with a peer that breaks the rules, floods, or does nothing."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.ids import SyncIds
from store.domain.admission import Admitted, Verdict
from store.messages.record import RecordBatch
from store.sync.limits import SILENCE_NS
from store.sync.transfer.core import Transfer
from store.sync.transfer.events import (
    Begin,
    Counted,
    Find,
    Found,
    Input,
    Persist,
    Persisted,
    SendFrame,
    SendReady,
    Ticked,
    TransferEnded,
    TransferFault,
    TransferReceived,
)
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.hashing import message_hash
from storenode.message.rules import Policy, Refusal
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame, TransferRefusal
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.unit.builders import CONTENT, NOW_NS, PUBSUB, entry
from tests.unit.domain.transfer_world import (
    POLICY,
    SESSION,
    SMALL,
    Node,
    Store,
    began,
    ended,
    ids_of,
    messages,
    raw,
    require_silence,
    run,
    sent_form,
    store_of,
)

PEER = store_of(messages(6))
"""What the peer holds; the first ones are what a session has found missing."""

HASHES = sorted(PEER.frames, key=lambda digest: (PEER.frames[digest][0], digest))
seeds = st.integers(0, 2**32)


def receiver(count: int = 3, policy: Policy = POLICY) -> Node:
    """Return a node that expects the first ``count`` messages of the peer."""
    return began(Store(), None, ids_of(PEER, HASHES[:count]), policy=policy)


def sender(count: int = 3) -> Node:
    """Return a node that has ``count`` messages for the peer."""
    store = store_of(messages(count, 100))
    return began(store, ids_of(store, store.frames))


def settle(node: Node) -> None:
    """Let the node do all that it can without its peer."""
    run(random.Random(0), node)


def labels(node: Node) -> dict[bytes, str]:
    """Return what the node has refused by name, and the label of the reason."""
    return {digest: reason.partition(":")[0] for digest, reason in node.refusals()}


@given(seeds)
def test_unsolicited_messages_are_refused_by_name_and_not_stored(seed: int) -> None:
    node = receiver()
    order = random.Random(seed).sample(HASHES, len(HASHES))
    node.receive(raw(items=sent_form(PEER, order)))
    settle(node)
    assert sorted(node.store.frames) == sorted(HASHES[:3])
    assert labels(node) == dict.fromkeys(HASHES[3:], "unsolicited")
    node.receive(raw(done=True))
    settle(node)
    assert (ended(node).unsolicited, ended(node).stored, ended(node).equal) == (3, 3, True)
    assert sum(each.count for each in node.counted if each.reason == "unsolicited") == 3


@given(seeds, st.booleans())
def test_what_comes_twice_is_stored_and_answered_once(seed: int, at_once: bool) -> None:
    rng, node = random.Random(seed), receiver()
    items = sent_form(PEER, HASHES[:3])
    if at_once:
        node.receive(raw(items=items + items[1:]))
    else:
        node.receive(raw(items=items))
        if rng.random() < 0.5:
            settle(node)
        node.receive(raw(items=items[1:]))
    node.receive(raw(done=True))
    run(rng, node)
    assert sorted(node.stored()) == sorted(HASHES[:3])
    assert labels(node) == dict.fromkeys(HASHES[1:3], "sent twice")
    assert (ended(node).repeated, ended(node).stored) == (2, 3)


def test_a_message_with_another_hash_is_not_the_one_expected() -> None:
    node = receiver()
    forged = entry(b"forged", timestamp=PEER.frames[HASHES[0]][0])
    node.receive(raw(items=[forged.SerializeToString()], done=True))
    settle(node)
    digest = message_hash(PUBSUB, b"forged", CONTENT, None, forged.message.timestamp)
    assert labels(node) == {digest: "unsolicited", **dict.fromkeys(HASHES[:3], "not received")}
    assert not node.store.frames
    assert (ended(node).undelivered, ended(node).equal) == (3, False)


def test_an_id_that_was_announced_with_another_time_does_not_exist() -> None:
    timestamp, digest = PEER.frames[HASHES[0]][0], HASHES[0]
    node = began(Store(), None, SyncIds.of([(timestamp - 1, digest)]))
    node.receive(raw(items=sent_form(PEER, [digest]), done=True))
    settle(node)
    assert not node.store.frames
    assert (ended(node).unsolicited, ended(node).undelivered) == (1, 1)


def test_messages_without_a_hash_are_counted() -> None:
    node = began(Store(), None, SyncIds.of([(NOW_NS, bytes(32))]))
    nameless = [
        entry(timestamp=None).SerializeToString(),
        b"",
        entry(timestamp=0).SerializeToString(),
    ]
    node.receive(raw(items=nameless, done=True))
    settle(node)
    assert ended(node).unsolicited == 3
    assert node.refusals() == [(bytes(32), "not received")]


def test_a_message_is_not_taken_in_a_form_that_is_not_kept() -> None:
    node = receiver(1)
    (data,) = sent_form(PEER, HASHES[:1])
    item = WakuMessageAndTopic.FromString(data)
    item.message.ephemeral = True
    node.receive(raw(items=[item.SerializeToString()], done=True))
    settle(node)
    assert labels(node) == {HASHES[0]: "ephemeral"}
    assert not node.store.frames


def test_a_peer_that_never_delivers_is_reported() -> None:
    node = receiver(6)
    node.receive(raw(done=True))
    settle(node)
    assert node.refusals() == [(digest, "not received") for digest in HASHES]
    assert (ended(node).undelivered, ended(node).error, ended(node).equal) == (6, "", False)


Breach = Callable[[], tuple[Node, bytes]]
OWN = next(iter(sender().store.frames))
"""A message that `sender` has for the peer."""


def sender_after(**frame: Any) -> Node:  # noqa: ANN401 - the parts of a frame
    """Return a sender that has received a frame."""
    node = sender()
    node.receive(raw(**frame))
    return node


def _short_hash() -> bytes:
    refusal = TransferRefusal(message_hash=b"short", reason="no")
    return TransferFrame(session_id=SESSION, refused=[refusal]).SerializeToString()


BREACHES: dict[str, Breach] = {
    "sends messages after it was done": lambda: (
        sender_after(done=True),
        raw(items=sent_form(PEER, HASHES[:1])),
    ),
    "second time": lambda: (sender_after(stored=[OWN]), raw(refused=[(OWN, "too_large: now")])),
    "an ID for the second time": lambda: (sender(), raw(stored=[OWN, OWN])),
    "which it was not sent": lambda: (sender(), raw(stored=[HASHES[0]])),
    f"{HASHES[1].hex()}": lambda: (sender(), raw(refused=[(HASHES[1], "no")])),
    "more IDs than are open": lambda: (sender(1), raw(stored=[bytes(32)] * 2)),
    "does not have 32 bytes": lambda: (sender(), _short_hash()),
    "names another session": lambda: (receiver(), raw(session_id="other")),
    "or the first one none": lambda: (receiver(), raw(session_id="")),
}


@pytest.mark.parametrize("words", BREACHES)
def test_a_peer_that_breaks_the_rules_ends_the_transfer(words: str) -> None:
    node, frame = BREACHES[words]()
    settle(node)
    before = replace(node.machine.report)
    node.receive(frame)
    report = ended(node)
    assert report.fault is TransferFault.PROTOCOL
    assert words in report.error
    assert (report.stored_by_peer, report.stored) == (before.stored_by_peer, before.stored)


def test_a_frame_is_taken_whole_or_not_at_all() -> None:
    store = store_of(messages(1, 100))
    mine = ids_of(store, store.frames)
    node = began(store, mine, ids_of(PEER, HASHES[:1]))
    node.receive(
        raw(items=sent_form(PEER, HASHES[:1]), stored=[mine.at(0)[1]], refused=[(HASHES[2], "no")])
    )
    report = ended(node)
    assert report.fault is TransferFault.PROTOCOL
    assert (report.stored_by_peer, report.unanswered, report.outstanding) == (0, 1, 1)
    assert not node.writes


def test_too_many_unsolicited_messages_end_the_transfer() -> None:
    node = receiver(1)
    flood = sent_form(store := store_of(messages(11, 300)), store.frames)
    node.receive(raw(items=flood[:6] + sent_form(PEER, HASHES[:1])))
    settle(node)
    node.receive(raw(items=flood[6:]))
    assert ended(node).fault is TransferFault.LIMIT
    assert "limit of 10 messages" in ended(node).error
    assert list(node.store.frames) == HASHES[:1]


def test_a_peer_that_sends_faster_than_the_database_is_not_read() -> None:
    store = store_of(messages(200, 100, 60))
    node = began(Store(), None, ids_of(store, store.frames))
    items, frames = sent_form(store, store.frames), 0
    for item in items:
        if node.machine.reading:
            node.receive(raw(items=[item]))
            frames += 1
    assert frames == -(-SMALL.unstored_bytes // len(raw(items=items[:1])))
    settle(node)
    assert node.machine.reading
    assert len(node.store.frames) == frames


def test_silence_ends_it_and_empty_frames_are_silence() -> None:
    node = receiver()
    node.receive(raw())
    for second in range(0, 60, 10):
        node.now_ns = NOW_NS + second * 10**9
        node.receive(raw())
        node.give(Ticked())
    assert node.report is None
    node.now_ns = NOW_NS + SILENCE_NS
    node.give(Ticked())
    assert ended(node).fault is TransferFault.SILENCE
    assert "60 s" in ended(node).error


MINE = store_of(messages(2, 100))
MINE_IDS = ids_of(MINE, MINE.frames)


@pytest.mark.parametrize(
    "what",
    [
        {"items": sent_form(PEER, HASHES[:1])},
        {"stored": [MINE_IDS.at(0)[1]]},
        {"refused": [(MINE_IDS.at(0)[1], "not received")]},
        {"done": True},
    ],
)
def test_what_counts_breaks_the_silence(what: dict[str, Any]) -> None:
    node = began(store_of(messages(2, 100)), MINE_IDS, ids_of(PEER, HASHES[:2]))
    node.receive(raw())
    settle(node)
    node.now_ns += SILENCE_NS - 1
    node.receive(raw(**what))
    settle(node)
    require_silence(node)


def test_a_slow_database_is_not_the_peer_s_silence() -> None:
    node = receiver()
    node.receive(raw(items=sent_form(PEER, HASHES[:3])))
    for _ in range(3):
        node.now_ns += SILENCE_NS
        node.give(Ticked())
    settle(node)
    assert require_silence(node).stored == 3


def test_a_peer_that_takes_no_frame_is_silent_and_costs_little() -> None:
    node = sender(100)
    for _ in range(1000):
        loads = [work for work in node.work if work is not SendReady]
        if not loads:
            break
        node.work.remove(loads[0])
        node.give(loads[0]())
    assert node.unsent_bytes <= SMALL.unsent_bytes + 100
    node.now_ns += SILENCE_NS
    node.give(Ticked())
    assert ended(node).fault is TransferFault.SILENCE


digests = st.sampled_from([*HASHES, *MINE.frames, bytes(32)])
frames = st.builds(
    raw,
    session_id=st.sampled_from([SESSION, SESSION, SESSION, "", "other"]),
    items=st.lists(st.sampled_from(sent_form(PEER, HASHES)), max_size=4),
    stored=st.lists(digests, max_size=2),
    refused=st.lists(st.tuples(digests, st.sampled_from(["no", "too_large: x"])), max_size=2),
    done=st.sampled_from([False, False, False, True]),
)


@settings(max_examples=150)
@given(seeds, st.lists(frames, max_size=8))
def test_whatever_a_peer_says_only_what_is_expected_is_stored(
    seed: int, script: list[bytes]
) -> None:
    rng = random.Random(seed)
    expected = HASHES[:4]
    node = began(store_of(messages(2, 100)), MINE_IDS, ids_of(PEER, expected))
    for frame in script:
        run(rng, node, steps=rng.randrange(10))
        if node.report is not None:
            break
        node.receive(frame)
    settle(node)
    added = node.store.frames.keys() - MINE.frames.keys()
    assert added <= set(expected)
    answers = node.stored() + [
        digest for digest, reason in node.refusals() if not reason.startswith(("uns", "sent"))
    ]
    assert len(answers) == len(set(answers))
    assert set(answers) <= set(expected)
    assert set(node.stored()) <= added
    assert node.report is None or node.report.fault or set(answers) == set(expected)


COUNT = 50_000
FRAME = 200
REMEMBERED = 1_000
BYTES_PER_ID = 48


def random_ids(count: int) -> SyncIds:
    """Return random IDs as a peer may announce them."""
    noise = np.random.default_rng(7)
    return SyncIds(
        np.arange(count, dtype=np.int64) + NOW_NS - 10**12,
        noise.integers(0, 256, (count, 32), np.uint8),
    )


class Silent:
    """A machine whose frames are never taken; what it wants stored is stored at once."""

    def __init__(self, to_send: SyncIds, to_receive: SyncIds) -> None:
        self.machine = Transfer(
            SESSION, to_send, to_receive, memory=PolicyMemory(REMEMBERED), peer="b"
        )

    def give(self, given: Input) -> None:
        for effect in self.machine.step(NOW_NS, given):
            match effect:
                case Persist(token, batch):
                    self.give(Persisted(token, [True] * len(batch)))
                case Find(ids):
                    self.give(Found([False] * len(ids)))
                case TransferEnded() | SendFrame() | Counted():
                    pass


def published(ids: SyncIds, verdict: Verdict) -> Admitted:
    """Return what admission would say of some messages."""
    pairs = ids.pairs()
    if verdict is Verdict.REJECTED:
        reasons = {at: Refusal("too_large", f"number {at} is too large") for at in range(len(ids))}
        return Admitted(
            [verdict] * len(ids), [-1] * len(ids), [h for _, h in pairs], refusals=reasons
        )
    batch = RecordBatch(
        [t for t, _ in pairs], [h for _, h in pairs], [b"k" * 16] * len(ids),
        [h[:16] for _, h in pairs], [b""] * len(ids),
        [b""] * len(ids), [b""] * len(ids), {b"k" * 16: ("p", "c")},
    )  # fmt: skip
    return Admitted([verdict] * len(ids), list(range(len(ids))), batch.hashes, batch)


@contextmanager
def no_more_than(size_bytes: int) -> Iterator[None]:
    """Check that what the block leaves takes less."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < size_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", ["stored", "refused", "not received"])
def test_memory_is_bounded_while_the_peer_takes_no_answers(what: str) -> None:
    ids = random_ids(COUNT)
    answers = 4 * COUNT
    with no_more_than(COUNT * BYTES_PER_ID + answers + 1_000_000):
        side = Silent(SyncIds.empty(), ids[np.arange(COUNT)])
        side.give(Begin(NOW_NS))
        verdict = Verdict.REJECTED if what == "refused" else Verdict.ACCEPTED
        for start in range(0, 0 if what == "not received" else COUNT, FRAME):
            part = published(ids[start : start + FRAME], verdict)
            side.give(TransferReceived("" if start else SESSION, part, 5_000))
        side.give(TransferReceived(SESSION, Admitted(), 10, done=True))


def test_memory_of_ids_to_send_is_bounded() -> None:
    with no_more_than(COUNT * BYTES_PER_ID + 100_000):
        side = Silent(random_ids(COUNT), SyncIds.empty())
        side.give(Begin(NOW_NS))


def test_the_same_rules_hold_for_what_the_node_does_not_keep() -> None:
    strict = replace(POLICY, max_message_bytes=10)
    node = receiver(3, policy=strict)
    node.receive(raw(items=sent_form(PEER, HASHES), done=True))
    settle(node)
    assert labels(node) == {
        **dict.fromkeys(HASHES[:3], "too_large"),
        **dict.fromkeys(HASHES[3:], "unsolicited"),
    }
    assert dict(ended(node).refused) == {"too_large": 3}
    assert len(node.memory) == 3
