"""Frames of strangers at every state of a session: they end it, or they are answered."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.codec import encode_head
from reconcile.ids import SyncId
from store.sync.errors import EXPECTED, FrameTooLargeError, MalformedFrameError
from store.sync.frames import Reconcile
from store.sync.limits import MAX_SEARCH_SPANS
from storenode.wire.storenode.v1.peer_pb2 import ReconcileExtension, ReconcileFrame, SumSearch
from tests.support.verifying_pair import EVERYTHING, Side, reconcile

SKIPS: Final = bytes([1, 0, 1, 0])
IDS: Final = sorted((at, random.Random(at).randbytes(32)) for at in range(1, 40))
MODES: Final = {"base": (None, True), "compact": (0, True), "compact by slices": (0, False)}

Change = Callable[[Reconcile], Reconcile]


def sides(mode: str) -> tuple[Side, Side]:
    """Return an initiator and a responder whose sets differ in four IDs."""
    compact_from, offers = MODES[mode]
    one, other = (
        Side(set(ids), compact_from=compact_from, offers=offers) for ids in (IDS[2:], IDS[:-2])
    )
    return one, other


async def check_ends(pair: tuple[Side, Side], liar: int, nth: int, change: Change) -> None:
    """Check that both sides end by a result or an error of the protocol, whatever one sends."""
    count = -1

    def tamper(frame: Reconcile) -> Reconcile:
        nonlocal count
        count += 1
        return change(frame) if count == nth else frame

    pair[liar].tamper = tamper
    await reconcile(*pair, EVERYTHING)
    for side in pair:
        assert side.result is not None or isinstance(side.error, EXPECTED)


async def test_a_frame_of_skips_is_an_empty_payload() -> None:
    ids: set[SyncId] = set(IDS)
    one, other = Side(set(ids)), Side(set(ids))
    await check_ends((one, other), 0, 0, lambda _: Reconcile(SKIPS))
    assert other.error is None
    assert other.result is not None
    assert not len(other.result.to_send) + len(other.result.to_receive)
    assert [frame.payload for frame in other.sent] == [b""]


def changed_bytes(rng: random.Random, value: bytes) -> bytes:
    """Return bytes that are random, cut off, longer, or changed in one place."""
    flipped = bytearray(value or b"\0")
    flipped[rng.randrange(len(flipped))] ^= 1 + rng.randrange(255)
    head = encode_head(1, ())
    return rng.choice(
        [
            b"",
            bytes(flipped),
            value[: rng.randint(0, len(value))],
            value + rng.randbytes(rng.choice([1, 8, 16, 32, 56])),
            rng.randbytes(rng.choice([1, 7, 16, 32, 48, 200])),
            head + rng.randbytes(rng.randrange(60)),
            SKIPS,
        ]
    )


def change_message(rng: random.Random, message: Message) -> None:
    """Change a field of a message, or of a message in it."""
    field: Any = rng.choice(list(message.DESCRIPTOR.fields))
    value: Any = getattr(message, field.name)
    repeated = field.is_repeated
    if field.type == FieldDescriptor.TYPE_MESSAGE and not repeated:
        change_message(rng, value)
        return
    if rng.random() < 0.2:
        message.ClearField(field.name)
        return
    limit = 2**32 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 else 2**63

    def scalar() -> int:
        return rng.choice([0, 1, 2, 3, 24, rng.randrange(limit), limit - 1])

    match field.type:
        case FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, changed_bytes(rng, value))
        case FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, not value)
        case FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, rng.choice(["", "a", value * 2]))
        case FieldDescriptor.TYPE_ENUM:
            value.append(rng.randrange(6))
        case _ if repeated:
            value.extend(sorted(scalar() for _ in range(rng.randint(1, 4))))
        case _:
            setattr(message, field.name, scalar())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("liar", [0, 1], ids=["initiator", "responder"])
@settings(max_examples=120, deadline=None)
@given(nth=st.integers(0, 5), seed=st.integers(0, 2**32))
async def test_a_changed_frame_raises_nothing_but_errors_of_the_protocol(
    mode: str, liar: int, nth: int, seed: int
) -> None:
    def change(frame: Reconcile) -> Reconcile:
        rng = random.Random(seed)
        message = ReconcileFrame.FromString(frame.encode())
        for _ in range(rng.randint(1, 3)):
            change_message(rng, message)
        try:
            return Reconcile.parse(message.SerializeToString())
        except (FrameTooLargeError, MalformedFrameError):
            return frame

    await check_ends(sides(mode), liar, nth, change)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (SumSearch(spans=[1], sums=b""), MalformedFrameError),
        (SumSearch(spans=[1, 2], sums=bytes(31)), MalformedFrameError),
        (SumSearch(sums=bytes(32)), MalformedFrameError),
        (SumSearch(listed=[1]), MalformedFrameError),
        (SumSearch(listed=[1, 2], messages=bytes(55)), MalformedFrameError),
        (SumSearch(listed=range(2 * MAX_SEARCH_SPANS + 2)), FrameTooLargeError),
    ],
)
def test_steps_whose_parts_do_not_fit_are_malformed(
    step: SumSearch, error: type[Exception]
) -> None:
    frame = ReconcileFrame(extension=ReconcileExtension(search=step))
    with pytest.raises(error):
        Reconcile.parse(frame.SerializeToString())


@given(st.binary(max_size=300))
def test_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    with suppress(MalformedFrameError, FrameTooLargeError):
        assert Reconcile.parse(Reconcile.parse(data).encode()) == Reconcile.parse(data)
