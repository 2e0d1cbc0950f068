"""Reading a stored row back into the fields of its message: the inverse of `messages.record`."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from store.messages.record import pubsub_suffix, split_frame
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue


class FrameError(ValueError):
    """The parts do not join to a frame in its one canonical form; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Unframed:
    """The fields of a frame that identify its message; ``meta`` and ``timestamp`` None: absent.

    Topics are UTF-8, ``timestamp`` is in nanoseconds.
    """

    pubsub_topic: bytes
    content_topic: bytes
    payload: bytes
    meta: bytes | None
    timestamp: int | None


def unframe(head: bytes, payload: bytes, tail: bytes) -> Unframed:
    """Read the frame that the hash and the three parts join to.

    The parts must be exactly what `messages.record.split_frame` makes of the same message: laid out
    around the payload, fields in ascending order, no unknown ones.

    Raises:
        FrameError: they are not.
    """
    try:
        item = WakuMessageKeyValue.FromString(head + payload + tail)
    except DecodeError as error:
        raise FrameError("the frame does not decode") from error
    message = item.message
    suffix = pubsub_suffix(item.pubsub_topic.encode())
    laid_out = split_frame(message.SerializeToString(), len(message.payload), suffix)
    if message.payload != payload:
        raise FrameError("the payload lies elsewhere in the frame")
    if laid_out != (head, tail):
        raise FrameError("the frame is not in its canonical form")
    return Unframed(
        pubsub_topic=item.pubsub_topic.encode(),
        content_topic=message.content_topic.encode(),
        payload=payload,
        meta=message.meta if message.HasField("meta") else None,
        timestamp=message.timestamp if message.HasField("timestamp") else None,
    )
