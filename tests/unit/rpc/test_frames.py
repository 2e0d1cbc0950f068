from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.sync import frames
from store.sync.errors import FrameTooLargeError, MalformedFrameError
from store.sync.frames import Reconcile, encode_transfer, is_session_id, pieces
from store.sync.transfer.events import Frame
from storenode.wire.storenode.internal.v1.transfer_raw_pb2 import RawTransferFrame
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame, TransferRefusal
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

SESSION_ID = "0123456789abcdef0123456789abcdef"


def messages(count: int, size: int = 10) -> list[WakuMessageAndTopic]:
    return [
        WakuMessageAndTopic(
            message=WakuMessage(payload=bytes([number % 251]) * size, timestamp=number),
            pubsub_topic="topic",
        )
        for number in range(count)
    ]


def whole(parts: list[Frame]) -> TransferFrame:
    """The frame that was cut."""
    return TransferFrame(
        session_id="".join(part.session_id for part in parts),
        messages=[
            WakuMessageAndTopic.FromString(message) for part in parts for message in part.messages
        ],
        stored=[digest for part in parts for digest in part.stored],
        refused=[
            TransferRefusal(message_hash=digest, reason=reason)
            for part in parts
            for digest, reason in part.refused
        ],
        done=parts[-1].done,
    )


@given(
    st.builds(
        TransferFrame,
        session_id=st.sampled_from(["", SESSION_ID]),
        messages=st.integers(0, 40).map(messages),
        stored=st.lists(st.binary(min_size=32, max_size=32), max_size=40),
        refused=st.lists(
            st.builds(TransferRefusal, message_hash=st.binary(max_size=32), reason=st.text()),
            max_size=10,
        ),
        done=st.booleans(),
    ),
    st.booleans(),
)
def test_the_pieces_of_a_frame_are_the_frame(frame: TransferFrame, large: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "MAX_UNCUT_ENTRIES", -1 if large else 10_000)
        patch.setattr(frames, "ADMISSION_CHUNK_MESSAGES", 7)
        patch.setattr(frames, "MAX_PIECE_ANSWERS", 5)
        parts = list(pieces(frame.SerializeToString()))
    assert whole(parts) == frame
    assert not any(part.done for part in parts[:-1])
    assert sum(part.size_bytes for part in parts) <= frame.ByteSize()
    if large:
        assert all(len(part.messages) <= 7 for part in parts)
        assert all(len(part.stored) + len(part.refused) <= 5 for part in parts)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_frame_or_are_refused(data: bytes, large: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "MAX_UNCUT_ENTRIES", -1 if large else 10_000)
        try:
            parts = list(pieces(data))
        except (MalformedFrameError, FrameTooLargeError):
            return
    read = RawTransferFrame.FromString(data)
    assert [message for part in parts for message in part.messages] == read.messages
    assert [digest for part in parts for digest in part.stored] == read.stored


def test_a_large_frame_is_judged_in_portions() -> None:
    frame = TransferFrame(messages=messages(5_000, 200), done=True)
    parts = list(pieces(frame.SerializeToString()))
    assert [len(part.messages) for part in parts] == [1_000] * 5
    assert [part.done for part in parts] == [False] * 4 + [True]


def test_a_frame_of_very_many_entries_is_cut_before_it_is_decoded() -> None:
    data = b"\x12\x00" * 200_000
    first = next(pieces(data))
    assert len(first.messages) == 1_000
    # The same entries, with tags that are longer than they need be.
    assert len(next(pieces(b"\x92\x00\x00" * 200_000)).messages) == 1_000


def test_a_frame_of_unknown_fields_is_refused() -> None:
    with pytest.raises(
        (MalformedFrameError, FrameTooLargeError), match="fields besides its entries"
    ):
        list(pieces(b"\x12\x00" * 140_000 + b"\x78\x00" * 20_000))


def test_a_frame_that_is_sent_is_the_one_that_is_read() -> None:
    digest = bytes(range(32))
    [message] = messages(1)
    sent = Frame(
        SESSION_ID, [message.SerializeToString()], [digest], [(digest, "too large: why")], done=True
    )
    [part] = pieces(encode_transfer(sent))
    assert (part.session_id, part.done) == (SESSION_ID, True)
    assert list(part.messages) == [message.SerializeToString()]
    assert list(part.stored) == [digest]
    assert list(part.refused) == [(digest, "too large: why")]


@given(st.binary(), st.text(), st.text(), st.one_of(st.none(), st.integers(0, 2**64 - 1)))
def test_reconcile_frames_keep_what_they_hold(
    payload: bytes, session_id: str, refusal: str, count: int | None
) -> None:
    frame = Reconcile(payload, session_id, refusal, count)
    assert Reconcile.parse(frame.encode()) == frame


def test_a_count_of_none_is_not_sent() -> None:
    assert not ReconcileFrame.FromString(Reconcile(b"x").encode()).HasField("count")
    assert ReconcileFrame.FromString(Reconcile(b"x", count=0).encode()).HasField("count")


def test_session_ids() -> None:
    assert is_session_id(SESSION_ID)
    for text in ("", SESSION_ID[1:], SESSION_ID.upper(), SESSION_ID[:-1] + "g"):
        assert not is_session_id(text)
