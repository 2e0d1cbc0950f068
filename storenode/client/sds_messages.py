"""SDS messages as people and examples write and read them: payloads of stored messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storenode.sds import codec
from storenode.sds.limits import MAX_HISTORY_ENTRIES, MAX_ID_BYTES
from storenode.wire.storenode.internal.v1.sds_raw_pb2 import RawSdsMessage


@dataclass(frozen=True, slots=True)
class SdsView:
    """An SDS message with the claims of its publisher.

    ``parents`` are the message IDs of its causal history, each with the hash of the message that is
    meant (the retrieval hint), or ``None``. ``content`` is empty where there is none. ``proven``:
    the ID is the hash of what the message says, so it is the message that the ID was made for.
    Other content under the ID may be forged.
    """

    channel_id: str
    message_id: str
    sender_id: str
    lamport: int | None
    parents: list[tuple[str, bytes | None]]
    content: bytes
    proven: bool


def sds_view(payload: bytes) -> SdsView | None:
    """Read a payload as an SDS message; ``None`` when a store node would not read it as one."""
    metadata = codec.decode(payload)
    if metadata is None:
        return None
    return SdsView(
        channel_id=metadata.channel_id.decode(),
        message_id=metadata.message_id.decode(),
        sender_id=metadata.sender_id.decode(),
        lamport=metadata.lamport,
        parents=[(name.decode(), hint) for name, hint in metadata.parents],
        # The raw schema reads both revisions of the causal history.
        content=RawSdsMessage.FromString(payload).content,
        proven=metadata.proven,
    )


def sds_payload(
    channel_id: str,
    message_id: str,
    content: bytes,
    *,
    sender_id: str = "",
    lamport: int | None = None,
    parents: Iterable[tuple[str, bytes | None]] = (),
) -> bytes:
    """Write an SDS message; ``parents`` are (message ID, retrieval hint or ``None``).

    Raises:
        ValueError: A store node would not read it as an SDS message.
    """
    payload = codec.encode(
        channel_id,
        message_id,
        sender_id=sender_id,
        lamport=lamport,
        parents=parents,
        content=content,
    )
    if codec.decode(payload) is None:
        raise ValueError(
            f"The message {message_id!r} of channel {channel_id!r} would not be read as an SDS "
            f"message: IDs have 1 to {MAX_ID_BYTES} bytes, and a causal history at most "
            f"{MAX_HISTORY_ENTRIES} entries."
        )
    return payload
