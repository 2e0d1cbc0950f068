"""Messages that are judged without being decoded, against the same messages decoded."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from store.domain.admission import Verdict
from store.messages import transfer
from store.messages.shapes import TIME_BYTES, read_lead, read_names, read_times
from storenode.message.rules import Policy, Reason
from storenode.message.varint import delimited, varint
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import Decoding, admit
from tests.unit.builders import NOW_NS, entries, entry

POLICY = Policy(max_drift_ns=20 * 10**9)
USUAL = entry(b"x" * 200).SerializeToString()
SMALL = entry(b"x", version=1).SerializeToString()


def refuse_to_decode(_: bytes) -> None:
    """Fail: a message was decoded."""
    raise AssertionError("a message was decoded")


@pytest.mark.parametrize("size", [1, 79, 80, 81, 127, 128, 129, 200, 1_000, 16_000, 16_383])
@pytest.mark.parametrize("version", [None, 0, 1, 127])
def test_a_usual_message_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch, size: int, version: int | None
) -> None:
    messages = [entry(bytes((number,)) * size, version=version) for number in range(3)]
    encoded = [message.SerializeToString() for message in messages]
    expected = admit(messages, NOW_NS, POLICY, Decoding)
    assert expected.verdicts == [Verdict.ACCEPTED] * 3
    if len(messages[0].message.SerializeToString()) < 1 << 14:
        undecoded = SimpleNamespace(FromString=refuse_to_decode)
        monkeypatch.setattr(transfer, "WakuMessageAndTopic", undecoded)
    assert admit(encoded, NOW_NS, POLICY) == expected


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a message with some of its bytes changed, left out or added."""
    data = bytearray(draw(st.sampled_from([USUAL, SMALL]) | entries.map(encode)))
    for _ in range(draw(st.integers(0, 3))):
        # What is not payload is at both ends.
        end = draw(st.booleans())
        at = min(draw(st.integers(0, 90)), len(data))
        at = len(data) - at if end else at
        length = draw(st.sampled_from([0, 0, 1, 1, 2]))
        data[at : at + length] = draw(st.binary(max_size=2))
    return bytes(data)


def encode(message: WakuMessageAndTopic) -> bytes:
    """Return the encoding of a message."""
    return message.SerializeToString()


@given(st.lists(damaged(), max_size=6))
@example([USUAL, USUAL])
@example([USUAL, SMALL, USUAL])
@example([USUAL[:-1], USUAL])
@example([USUAL + b"\x12\x00"])
@example([USUAL.replace(varint(2 * NOW_NS), varint(2 * NOW_NS + 1))])
@example([USUAL.replace(varint(2 * NOW_NS), varint(2 * (NOW_NS + 10**11)))])
@example([USUAL.replace(varint(2 * NOW_NS), varint(2 * NOW_NS)[:-1] + b"\xbf\x00")])
def test_the_verdict_is_that_on_the_decoded_message(encoded: list[bytes]) -> None:
    messages = list[WakuMessageAndTopic]()
    readable = list[bytes]()
    for each in encoded:
        with suppress(DecodeError):
            messages.append(WakuMessageAndTopic.FromString(each))
            readable.append(each)
    found = admit(encoded, NOW_NS, POLICY)
    assert len(found.verdicts) == len(encoded)
    malformed = [each.label for each in found.refusals.values()].count(Reason.MALFORMED)
    assert malformed == len(encoded) - len(readable)
    assert found.batch == admit(readable, NOW_NS, POLICY).batch
    assert admit(readable, NOW_NS, POLICY) == admit(messages, NOW_NS, POLICY, Decoding)


def test_messages_may_be_duplicates_of_each_other_however_they_are_encoded() -> None:
    odd = USUAL + b"\x98\x06\x01"
    assert (
        WakuMessageAndTopic.FromString(odd).message == WakuMessageAndTopic.FromString(USUAL).message
    )
    admission = admit([odd, USUAL, USUAL, odd], NOW_NS, POLICY)
    assert admission.verdicts == [Verdict.ACCEPTED, *[Verdict.DUPLICATE] * 3]
    assert admission.positions == [0] * 4
    assert len(admission.batch) == 1


@pytest.mark.parametrize(
    "lead",
    [
        b"",
        b"\x0a",
        b"\x0a\x20\x0a",
        b"\x12\x20\x0a\x05xx",
        b"\x0a\x20\x12\x05xx",
        b"\x0a\xa0\x80\x01\x0a\x05",
        b"\x0a\xa0\x00\x0a\x05x",
        b"\x0a\x20\x0a\x00\x12\x01",
        b"\x0a\x20\x0a\x15xx",
    ],
)
def test_other_leads_are_not_read(lead: bytes) -> None:
    assert read_lead(lead) is None


TOPIC = delimited(b"\x12", b"topic")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\x50", TOPIC),
        (TOPIC, TOPIC),
        (TOPIC + b"\x50\x50", TOPIC),
        (TOPIC + b"\x18\x80\x50", TOPIC),
        (TOPIC + b"\x18\x01", TOPIC),
        (TOPIC + b"\x50", b""),
        (TOPIC + b"\x50", TOPIC[:-1]),
        (TOPIC + b"\x50", TOPIC + b"\x12\x01a"),
        (TOPIC + b"\x50", delimited(b"\x12", b"\xff")),
        (delimited(b"\x12", b"\xed\xa0\x80") + b"\x50", TOPIC),
        (delimited(b"\x12", b"c" * 3_000) + b"\x50", TOPIC),
    ],
)
def test_what_surrounds_a_time_otherwise_is_not_read(before: bytes, after: bytes) -> None:
    assert read_names(TOPIC + b"\x50", TOPIC) == ("topic", "topic")
    assert read_names(before, after) is None


@given(st.lists(st.integers(2**55, 2**62 - 1), min_size=1))
def test_times_are_read_as_they_were_written(timestamps: list[int]) -> None:
    found, valid = read_times([varint(2 * timestamp) for timestamp in timestamps])
    assert found.tolist() == timestamps
    assert valid.all()


def test_times_of_another_form_are_not_valid() -> None:
    right = varint(2 * NOW_NS)
    wrong = [
        bytes(TIME_BYTES),
        varint(2 * NOW_NS + 1),
        right[:-1] + b"\x00",
        right[:-1] + b"\x81",
        b"\x01" + right[1:],
    ]
    for repeats in (1, 10):
        _, valid = read_times([right, *wrong] * repeats)
        assert valid.tolist() == [True, *[False] * len(wrong)] * repeats
    assert read_times([])[1].tolist() == []
