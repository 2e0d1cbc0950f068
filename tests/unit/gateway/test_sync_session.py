"""Reconciliation with nwaku: the codec and the session, by what nwaku itself has written."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from store.gateway.limits import MAX_SYNC_FRAMES, MAX_SYNC_RANGES
from store.gateway.sync_session import (
    Id,
    ItemSet,
    MessageIds,
    Range,
    SyncPayload,
    SyncSession,
    decode_payload,
    encode_payload,
)
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import varint
from tests.sim.mutant import Plant, edit
from tests.support.nwaku import SimulatedNwaku

VECTORS: Final = Path("tests/vectors/nwaku")
NOW_NS: Final = 1_780_000_000_000_000_000
SECOND_NS: Final = 10**9
HOUR_NS: Final = 3_600 * SECOND_NS
BYTES: Final = 8_000
BYTES_PER_DIFFERENCE: Final = 12_000
LIAR_FRAMES: Final = 6
TOPICS: Final = ("/waku/2/rs/7/0", "/waku/2/rs/7/1")
MAX_FRAMES: Final = 40

Side = SyncSession | SimulatedNwaku


def vectors(name: str) -> Any:  # noqa: ANN401 - JSON
    with gzip.open(VECTORS / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        found = json.load(file)
    return found.get("vectors") or found.get("conversations") or found


def id_of(recorded: dict[str, str]) -> Id:
    return int(recorded["t"]), bytes.fromhex(recorded["h"])


def ranges_of(recorded: dict[str, Any]) -> list[Range]:
    """Return recorded ranges with bounds of whole nanoseconds; the first Skip begins at 0."""
    found: list[Range] = []
    for each in recorded["ranges"]:
        content: bytes | ItemSet | None = None
        if each["type"] == "Fingerprint":
            content = bytes.fromhex(each["fingerprint"])
        elif each["type"] == "ItemSet":
            content = ItemSet([id_of(item) for item in each["elements"]], each["reconciled"])
        found.append(Range(id_of(each["lower"])[0], id_of(each["upper"])[0], content))
    return found


def is_whole(recorded: dict[str, Any]) -> bool:
    bounds = [each[side] for each in recorded["ranges"] for side in ("lower", "upper")]
    return not any(id_of(each)[1].strip(b"\0") for each in bounds) and all(
        id_of(each["lower"])[0] < id_of(each["upper"])[0] for each in recorded["ranges"]
    )


def without_skips(data: bytes) -> list[Range]:
    return [each for each in decode_payload(data).ranges if each.content is not None]


def test_payloads_are_encoded_as_nwaku_does() -> None:
    encoded = 0
    for vector in vectors("encode"):
        recorded = vector["data"]
        if not is_whole(recorded):
            continue
        topics = recorded["pubsub"], recorded["content"]
        ranges = ranges_of(recorded)
        mine, theirs = encode_payload(SyncPayload(*topics, ranges)), bytes.fromhex(vector["bytes"])
        if any(each.content is not None for each in ranges):
            encoded += 1
            assert without_skips(mine) == without_skips(theirs)
            assert ranges[0].content is None or mine == theirs
        else:
            assert mine == b"\0"
    assert encoded >= 50


@pytest.mark.parametrize("name", ["encode", "decode", "bounds"])
def test_payloads_are_decoded_as_nwaku_does(name: str) -> None:
    decoded = 0
    for vector in vectors(name):
        answer = vector.get("answer") or vector.get("decoded") or {"data": vector["data"]}
        data = bytes.fromhex(vector["bytes"])
        if "error" not in answer:
            payload, recorded = decode_payload(data), answer["data"]
            expected = ranges_of(recorded)
            if expected and expected[0].lower_ns:
                expected.insert(0, Range(0, expected[0].lower_ns, None))
            assert list(payload.ranges) == expected, vector
            topics = [recorded[kind] for kind in ("pubsub", "content")]
            # A topic that is not UTF-8 equals none, here and there.
            replaced = [
                [text.replace("\udcff\udcfe", "\ufffd\ufffd") for text in t] for t in topics
            ]
            assert [list(payload.pubsub_topics), list(payload.content_topics)] == replaced
            decoded += 1
        elif answer["error"] not in {"Cannot decode topic count", "Cannot decode timestamp"}:
            # nwaku's limits on the shortest payload are not ours.
            with pytest.raises(ValueError, match=r"payload|item set|varint"):
                decode_payload(data)
    assert decoded >= 3


MALFORMED: Final = {
    "a time after 2^63": b"\0\0" + varint(2**63 - 2) + b"\x05\0",
    "a difference past 2^63": b"\0\0" + b"\xff" * 9 + b"\x01\0",
    "too many topics": varint(2**40) + bytes(100),
    "a topic that is too long": b"\x01" + varint(10**6) + bytes(100),
    "too many ranges": b"\0\0\x01" + b"\x01\0" * (MAX_SYNC_RANGES + 1),
    "too many IDs": b"\0\0\x01\x05\x02" + varint(10**9) + bytes(100),
    "IDs that are not there": b"\0\0\x01\x05\x02" + varint(10_000) + bytes(100),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_payloads_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"payload|item set|varint"):
        decode_payload(data)


def test_the_first_frame_is_that_of_a_live_nwaku() -> None:
    for recorded in vectors("live-frames")["first_frames"]:
        payload = decode_payload(bytes.fromhex(recorded))
        ids = MessageIds(np.zeros(0, np.int64), b"")
        _, only = payload.ranges
        mine = SyncSession(ids, only.lower_ns, only.upper_ns, payload.pubsub_topics).begin()
        # An empty side has a fingerprint of zeros.
        assert mine == bytes.fromhex(recorded)[:-32] + bytes(32)
        assert payload.pubsub_topics == list(TOPICS)
        assert only.upper_ns - only.lower_ns == 3600 * SECOND_NS


def test_the_simulated_nwaku_answers_as_nwaku_does() -> None:
    for vector in vectors("process"):
        elements, answer = vector["elements"], vector["answer"]
        nwaku = SimulatedNwaku(
            [id_of(each) for each in elements],
            vector["threshold"],
            vector["partitions"],
            {id_of(each)[1]: (each["pubsub_topic"], each["content_topic"]) for each in elements},
        )
        answered = nwaku.answer(bytes.fromhex(vector["payload"]))
        if "in" not in answer:
            assert answered is None
        else:
            assert answered == bytes.fromhex(answer["bytes"])
            assert nwaku.sends == set(map(bytes.fromhex, answer["send"]))
            assert nwaku.receives == set(map(bytes.fromhex, answer["recv"]))


def session_of(ids: Iterable[Id], low_ns: int, high_ns: int) -> SyncSession:
    ordered = sorted(ids)
    timestamps = np.array([at_ns for at_ns, _ in ordered], np.int64)
    hashes = b"".join(digest for _, digest in ordered)
    return SyncSession(MessageIds(timestamps, hashes), low_ns, high_ns, TOPICS)


def sent_by(side: Side) -> set[bytes]:
    if isinstance(side, SimulatedNwaku):
        return side.sends
    assert side.has_ended
    found = {digest for _, digest in side.to_send}
    assert len(found) == len(side.to_send)
    return found


def converse(frame: bytes | None, responder: Side, initiator: Side) -> list[bytes]:
    """Pass frames between two sides until one ends the session, and return them."""
    sides, frames = [responder, initiator], []
    while frame is not None:
        frames.append(frame)
        assert len(frames) < MAX_FRAMES
        side = sides[0]
        if isinstance(side, SyncSession):
            frame = side.receive(decode_payload(frame))
        else:
            frame = side.answer(frame)
        sides.reverse()
    return frames


def test_recorded_conversations_are_those_of_the_simulated_nwaku() -> None:
    incomplete = 0
    for recorded in vectors("conversations"):
        rules = recorded["threshold"], recorded["partitions"]
        sides = [
            SimulatedNwaku([(int(t), bytes.fromhex(h)) for t, h in recorded[role]], *rules)
            for role in ("initiator", "responder")
        ]
        low_ns, high_ns = map(int, recorded["window"])
        frames = converse(sides[0].begin(low_ns, high_ns), sides[1], sides[0])
        assert [frame.hex() for frame in frames] == recorded["frames"]
        for side, role in zip(sides, ("initiator", "responder"), strict=True):
            assert side.sends == set(map(bytes.fromhex, recorded[f"{role}_sends"]))
        incomplete += not recorded["complete"]
    assert incomplete == 6


# Random sets, and a peer that lies

spans = st.sampled_from([5, 8, 20, 1_000, HOUR_NS])
"""Widths of a window in nanoseconds: in the narrow ones many messages have one timestamp."""

seeds = st.integers(0, 2**32)


def ids_of(rng: random.Random, span_ns: int, count: int) -> set[Id]:
    """Draw IDs of which some are outside of the window."""
    times = [rng.randint(-span_ns // 4, span_ns + span_ns // 4) for _ in range(count)]
    return {(NOW_NS + each, rng.randbytes(HASH_BYTES)) for each in times}


@settings(max_examples=120, deadline=None)
@given(
    seed=seeds,
    span_ns=spans,
    shared=st.sampled_from([0, 5, 150, 1_500]),
    only=st.sampled_from([0, 1, 40, 300]),
    nwaku=st.sampled_from(["none", "begins", "answers"]),
    is_clipped=st.booleans(),
)
@example(seed=0, span_ns=HOUR_NS, shared=1_500, only=1, nwaku="begins", is_clipped=False)
@example(seed=0, span_ns=HOUR_NS, shared=1_500, only=0, nwaku="answers", is_clipped=False)
@example(seed=1, span_ns=HOUR_NS, shared=1_500, only=1, nwaku="none", is_clipped=False)
@example(seed=1, span_ns=5, shared=5, only=40, nwaku="answers", is_clipped=True)
def test_two_sides_find_what_the_other_lacks(
    *, seed: int, span_ns: int, shared: int, only: int, nwaku: str, is_clipped: bool
) -> None:
    check_sides(seed, span_ns, shared, only, nwaku, is_clipped=is_clipped)


def check_sides(
    seed: int, span_ns: int, shared: int, only: int, nwaku: str, *, is_clipped: bool
) -> None:
    """Let two sides compare random sets, and verify what both find, in few frames and bytes."""
    rng = random.Random(seed)
    both, high_ns = ids_of(rng, span_ns, shared), NOW_NS + span_ns
    mine, theirs = (both | ids_of(rng, span_ns, only) for _ in range(2))
    low_ns = NOW_NS + (span_ns // 4 if is_clipped else 0)
    begins: Side = session_of(mine, low_ns, high_ns)
    answers: Side = session_of(theirs, NOW_NS, high_ns)
    if nwaku == "begins":
        begins = SimulatedNwaku(sorted(mine))
    if nwaku == "answers":
        answers = SimulatedNwaku(sorted(theirs))
    if isinstance(begins, SyncSession):
        frames = converse(begins.begin(), answers, begins)
    else:
        frames = converse(begins.begin(low_ns, high_ns, TOPICS), answers, begins)
    assert len(frames) <= MAX_SYNC_FRAMES
    lacking = [
        {digest for at_ns, digest in own - other if low_ns <= at_ns < high_ns}
        for own, other in ((mine, theirs), (theirs, mine))
    ]
    assert [sent_by(side) for side in (begins, answers)] == lacking
    if span_ns == HOUR_NS and not is_clipped:
        differences = sum(map(len, lacking))
        assert sum(map(len, frames)) <= BYTES + BYTES_PER_DIFFERENCE * differences
    for side, lacked in zip((begins, answers), reversed(lacking), strict=True):
        if isinstance(side, SyncSession):
            # What an empty range lacks is transferred without having been listed.
            assert bool(lacked and shared) <= side.missing <= len(lacked)


def in_session(name: str, *texts: str) -> Plant:
    """Plant a fault in a session."""
    return edit(SyncSession, name, *texts)


PLANTED: Final = {
    "a bound belongs to both ranges": edit(MessageIds, "_places", "high_ns))", "high_ns + 1))"),
    "ranges of few nanoseconds are divided": in_session(
        "_show", "high_ns - low_ns < PARTS or", "", "end_ns - low_ns < PARTS or", ""
    ),
    "the rest of a division is left out": in_session("_show", " + (number < rest)", ""),
    "a final set is answered": in_session("_answer_items", "theirs.reconciled or ", ""),
    "listed IDs are not counted": in_session("_answer_items", "+= unknown", "+= 0"),
    "listed IDs are sent": in_session("_answer_items", "if each not in listed", ""),
    "fingerprints are equal": in_session("_answer", "== asked.content", "!= b''"),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_often()


def check_often() -> None:
    for seed, span_ns in enumerate((5, 20, 1_000, HOUR_NS) * 2):
        for nwaku in ("none", "begins", "answers"):
            check_sides(seed, span_ns, 1_500, 40, nwaku, is_clipped=seed > 3)


def test_no_fault_is_found_where_none_is_planted() -> None:
    check_often()


@settings(max_examples=80, deadline=None)
@given(seed=seeds, span_ns=spans, count=st.sampled_from([5, 150, 1_500]))
def test_a_liar_gets_little_and_only_what_is_in_the_window(
    seed: int, span_ns: int, count: int
) -> None:
    rng, high_ns = random.Random(seed), NOW_NS + span_ns
    own = ids_of(rng, span_ns, count)
    side = session_of(own, NOW_NS, high_ns)
    false = session_of(ids_of(rng, span_ns, 40) | set(sorted(own)[:40]), NOW_NS, high_ns)
    frame = side.begin() if rng.random() < 0.5 else b""
    for _ in range(LIAR_FRAMES):
        false_frame = lie(rng, span_ns, false, frame)
        try:
            frame = side.receive(decode_payload(false_frame)) or b""
        except ValueError:
            break
        assert len(frame) <= 50 * len(own) + 400 * len(false_frame) + 100
        if side.has_ended:
            break
    found = list(side.to_send)
    assert len(set(found)) == len(found)
    assert all(each in own and NOW_NS <= each[0] < high_ns for each in found)


def lie(rng: random.Random, span_ns: int, false: SyncSession, answered: bytes) -> bytes:
    """Return a frame that no honest peer sends."""
    invented = ItemSet(sorted(ids_of(rng, span_ns, 20)), reconciled=rng.random() < 0.5)
    content = rng.choice((invented, ItemSet((), reconciled=False), bytes(HASH_BYTES)))
    kind = rng.randrange(4)
    if kind == 0 and answered:
        genuine = bytearray(false.receive(decode_payload(answered)) or answered)
        genuine[rng.randint(0, len(genuine) - 1)] ^= rng.randint(1, 255)
        return bytes(genuine)
    if kind == 1:
        starts = range(NOW_NS, NOW_NS + min(span_ns, 400))
        return encoded([Range(each, each + 1, rng.randbytes(HASH_BYTES)) for each in starts])
    beyond_ns = SECOND_NS if kind == 2 else 0
    return encoded([Range(NOW_NS - beyond_ns, NOW_NS + span_ns + beyond_ns, content)])


def encoded(ranges: list[Range]) -> bytes:
    return encode_payload(SyncPayload(TOPICS, (), ranges))
