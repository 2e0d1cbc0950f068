"""Reading a stored frame back into the fields of its message: the inverse of `messages.record`."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from store.messages.record import begin_frame, pubsub_suffix, split_frame
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

_TAG = 0x0A
_MAX_LENGTH_BYTES = 5


class FrameError(ValueError):
    """The bytes are not a frame in its one canonical form; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Unframed:
    """The fields of a frame that identify its message; ``meta`` and ``timestamp`` None: absent.

    Topics are UTF-8, ``timestamp`` is in nanoseconds, and ``message_hash`` is what the frame says.
    """

    message_hash: bytes
    pubsub_topic: bytes
    content_topic: bytes
    payload: bytes
    meta: bytes | None
    timestamp: int | None


def unframe(head: bytes, payload: bytes, tail: bytes) -> Unframed:
    """Read the frame that the three parts join to.

    The parts must be exactly what `messages.record.split_frame` makes of the same message: laid out
    around the payload, fields in ascending order, no unknown ones.

    Raises:
        FrameError: they are not.
    """
    item = _parsed(head + payload + tail)
    message = item.message
    suffix = pubsub_suffix(item.pubsub_topic.encode())
    laid_out = split_frame(message.SerializeToString(), len(message.payload), suffix)
    if message.payload != payload:
        raise FrameError("the payload lies elsewhere in the frame")
    beginning = begin_frame(item.message_hash, len(laid_out[0]) + len(payload) + len(tail))
    if (beginning + laid_out[0], laid_out[1]) != (head, tail):
        raise FrameError("the frame is not in its canonical form")
    return Unframed(
        message_hash=item.message_hash,
        pubsub_topic=item.pubsub_topic.encode(),
        content_topic=message.content_topic.encode(),
        payload=payload,
        meta=message.meta if message.HasField("meta") else None,
        timestamp=message.timestamp if message.HasField("timestamp") else None,
    )


def _parsed(frame: bytes) -> WakuMessageKeyValue:
    size, start = 0, 1
    if frame[:1] != bytes((_TAG,)):
        raise FrameError("the frame does not begin with its tag")
    for shift, byte in enumerate(frame[1 : 1 + _MAX_LENGTH_BYTES]):
        size |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            start = 2 + shift
            break
    if len(frame) - start != size:
        raise FrameError(f"the frame has {len(frame) - start} bytes and says {size}")
    try:
        return WakuMessageKeyValue.FromString(frame[start:])
    except DecodeError as error:
        raise FrameError("the frame does not decode") from error
