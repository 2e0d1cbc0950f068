"""Reconciliation with nwaku: the codec and the session, by what nwaku itself has written."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from sim.nwaku import SimulatedNwaku
from store.gateway.limits import MAX_SYNC_RANGES
from store.gateway.sync_codec import (
    Id,
    ItemSet,
    PayloadError,
    Range,
    SyncPayload,
    decode_payload,
    encode_payload,
)
from store.gateway.sync_session import MessageIds, SyncSession
from storenode.message.varint import varint

VECTORS: Final = Path("tests/vectors/nwaku")
NOW_NS: Final = 1_780_000_000_000_000_000
SECOND_NS: Final = 10**9
TOPICS: Final = ("/waku/2/rs/7/0", "/waku/2/rs/7/1")
MAX_FRAMES: Final = 40


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
            with pytest.raises(PayloadError):
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
    with pytest.raises(PayloadError):
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


def session_of(ids: Sequence[Id], low_ns: int, high_ns: int) -> SyncSession:
    timestamps = np.array([at_ns for at_ns, _ in ids], np.int64)
    sorted_ids = MessageIds(timestamps, b"".join(digest for _, digest in ids))
    return SyncSession(sorted_ids, low_ns, high_ns, TOPICS)


def sent_by(side: SyncSession | SimulatedNwaku) -> set[bytes]:
    if isinstance(side, SimulatedNwaku):
        return side.sends
    found = {digest for _, digest in side.to_send}
    assert len(found) == len(side.to_send)
    return found


def converse(
    frame: bytes | None,
    responder: SyncSession | SimulatedNwaku,
    initiator: SyncSession | SimulatedNwaku,
) -> list[bytes]:
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


@pytest.mark.parametrize("begins", [True, False])
def test_recorded_conversations_are_complete_with_one_side_of_ours(begins: bool) -> None:
    for recorded in vectors("conversations"):
        low_ns, high_ns = map(int, recorded["window"])
        rules = recorded["threshold"], recorded["partitions"]
        names = ("initiator", "responder") if begins else ("responder", "initiator")
        own, theirs = ([(int(t), bytes.fromhex(h)) for t, h in recorded[role]] for role in names)
        ours, nwaku = session_of(own, low_ns, high_ns), SimulatedNwaku(theirs, *rules)
        if begins:
            converse(ours.begin(), nwaku, ours)
        else:
            converse(nwaku.begin(low_ns, high_ns), ours, nwaku)
        assert ours.has_ended
        assert sent_by(ours) == {digest for _, digest in set(own) - set(theirs)}
        assert sent_by(nwaku) == {digest for _, digest in set(theirs) - set(own)}


def test_a_difference_is_found_in_few_bytes() -> None:
    rng = random.Random(1)
    both = [(NOW_NS + rng.randrange(3600 * SECOND_NS), rng.randbytes(32)) for _ in range(20_000)]
    ours = session_of([*both, (NOW_NS, bytes(31) + b"x")], NOW_NS, NOW_NS + 3600 * SECOND_NS)
    nwaku = SimulatedNwaku(both)
    frames = converse(ours.begin(), nwaku, ours)
    assert len(ours.to_send) == 1
    assert sum(map(len, frames)) < 20_000
