"""Admission of messages as the schema's own classes, as tests make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from store.domain.admission import Admission, Admitted
from store.domain.ports import Source
from storenode.message.rules import Policy
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
