"""A message as it leaves: with the Bloom filter or without, in the chosen revision."""

from dataclasses import replace

from storenode.sds.bloom import RollingFilter
from storenode.sds.config import ChannelConfig
from storenode.sds.envelope import SdsMessage, encode_message, encode_older
from storenode.sds.events import Broadcast, Reason
from storenode.sds.limits import MAX_SDS_MESSAGE_BYTES


def broadcast_of(
    config: ChannelConfig, message: SdsMessage, reason: Reason, shown: RollingFilter | None
) -> Broadcast:
    """Encode a message with a filter, which is left out where it need not go along and is too much.

    Raises:
        ValueError: the message is too large.
    """
    older = config.older_revision
    sent = replace(
        message,
        bloom_filter=None if shown is None else shown.encode(),
        repair_request=() if older else message.repair_request,
    )
    payload = encode_older(sent) if older else encode_message(sent)
    if len(payload) <= MAX_SDS_MESSAGE_BYTES:
        passes = reason in (Reason.RESEND, Reason.EPHEMERAL)
        return Broadcast(payload, message.message_id, reason, passes)
    if shown is not None and (reason is Reason.RESEND or config.filter_every > 1):
        return broadcast_of(config, message, reason, None)
    raise ValueError(
        f"the message has {len(payload)} bytes with its filter and history: "
        f"{MAX_SDS_MESSAGE_BYTES} fit"
    )
