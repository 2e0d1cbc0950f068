"""Admission of messages as the schema's own classes, as tests make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from store.domain.admission import Admission, Admitted
from store.domain.ports import Source
from storenode.message.rules import Policy
from storenode.message.varint import delimited, varint
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic


class Decoding(Admission):
    """Decodes every message, whatever its form."""

    def _recognize(self, messages: Sequence[bytes]) -> Any:  # noqa: ANN401 - private tuples
        seen, times, _ = super()._recognize([b""] * len(messages))
        return seen, times, []


def encoded(messages: Iterable[WakuMessageAndTopic]) -> list[bytes]:
    """Return the messages as they are sent."""
    return [message.SerializeToString() for message in messages]


def admit(
    messages: Iterable[WakuMessageAndTopic | bytes],
    now_ns: int,
    policy: Policy,
    kind: type[Admission] = Admission,
) -> Admitted:
    """Judge the messages of one request of a client."""
    admission = kind(policy, now_ns, Source.CLIENT)
    admission.admit(
        [each if isinstance(each, bytes) else each.SerializeToString() for each in messages]
    )
    return admission.admitted


UNKNOWN_FIELDS: Final = b"\xf8\x7f\x01" + varint(1000 << 3 | 2) + b"\x02hi"
"""Unknown fields, which are dropped behind a message that is stored."""


def encode_entry(message: bytes, topic: bytes) -> bytes:
    """Encode a ``WakuMessageAndTopic`` around the bytes of its message."""
    return delimited(b"\x0a", message) + delimited(b"\x12", topic)


def bad_messages(good: WakuMessageAndTopic) -> dict[str, bytes]:
    """Return what becomes of a good message in each of the ways in which it may be bad."""
    body, whole = good.message.SerializeToString(), good.SerializeToString()
    topic, content_topic = good.pubsub_topic.encode(), good.message.content_topic.encode()

    def changed(**fields: object) -> bytes:
        made = WakuMessageAndTopic.FromString(whole)
        for name, value in fields.items():
            setattr(made.message, name, value)
        return made.SerializeToString()

    not_utf8 = b"\xff\xfe" + content_topic[2:]
    return {
        "content topic is no UTF-8": encode_entry(body.replace(content_topic, not_utf8), topic),
        "pubsub topic is no UTF-8": encode_entry(body, b"/waku/\xff"),
        "broken message": encode_entry(b"\x0a\x7fshort", topic),
        "cut off": whole[:-3],
        "message of another wire type": b"\x08\x01" + delimited(b"\x12", topic),
        "content topic of another wire type": encode_entry(b"\x10\x01" + body[-10:], topic),
        "nothing": b"",
        "too large": changed(payload=bytes(150 * 1024)),
        "before 1970": changed(timestamp=-5),
        "no content topic": changed(content_topic=""),
        "meta too long": changed(meta=bytes(65)),
    }
