from hypothesis import example, given

from store.messages.transfer import transferred
from storenode.message.rules import Policy
from storenode.message.varint import delimited
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entries, entry

POLICY = Policy(max_drift_ns=10**10, publisher=False)


def stored_frame(item: WakuMessageAndTopic) -> bytes:
    """Return the frame of a message as the node stores it."""
    item = WakuMessageAndTopic.FromString(item.SerializeToString())
    item.message.ClearField("ephemeral")
    return admit([item], NOW_NS, POLICY).batch.frame(0)


@given(entries)
@example(entry(b""))
@example(entry(b"", version=0, meta=b"", proof=b""))
@example(entry(bytes(40)))
@example(entry(bytes(127)))
@example(entry(bytes(128)))
@example(entry(bytes(16_384), pubsub="/p" * 100))
@example(entry(bytes(150_000), pubsub="/p" * 400))
def test_a_stored_frame_becomes_what_protobuf_writes_with_its_payload_present(
    item: WakuMessageAndTopic,
) -> None:
    item.message.ClearField("ephemeral")
    message = item.message.SerializeToString()
    if not item.message.payload:
        message = b"\x0a\x00" + message
    sent = delimited(b"\x0a", message) + delimited(b"\x12", item.pubsub_topic.encode())
    assert transferred(stored_frame(item)) == sent


@given(entries)
def test_what_is_sent_comes_in_as_it_was_stored(item: WakuMessageAndTopic) -> None:
    frame = stored_frame(item)
    assert admit([transferred(frame)], NOW_NS, POLICY).batch.frame(0) == frame
