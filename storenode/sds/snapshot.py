"""The whole state of a channel as bytes, and back.

Layout: magic ``SDSC``, one byte of version, a JSON object in which bytes are ``{"": base64}``, then
16 bytes of BLAKE2 over all that precedes them. For how long a peer's filters have lacked something
is not part of it: that begins again. The checksum finds damage; a snapshot is the participant's own
file, and is not meant to be accepted from strangers.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import asdict, astuple
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final

from storenode.sds.buffers import Outgoing, WaitingMessage, Want
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import IdClaims, Unproven
from storenode.sds.codec import SdsMessage, decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Counts
from storenode.sds.log import LogEntry, MessageLog

MAGIC: Final = b"SDSC"
VERSION: Final = 8
CHECKSUM_BYTES: Final = 16

_PLAIN: Final = (
    *("sends", "reported_ms", "asks_in_vain", "lost"),
    *("clock.value", "clock.latest_ms", "clock.set_back_ms"),
    *("pace.active_ms", "pace.spoke_ms", "pace.silence", "pace.limits", "pace.rarer", "pace.owed"),
    *("gaps.looked_ms", "gaps.pending", "showing.due", "showing.last_ms", "heads"),
    *("answers.pending", "answers.epoch"),
)
"""What is written as it is."""

_DAMAGE: Final = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError),
)


class SnapshotError(ValueError):
    """An error for bytes that are no snapshot from which this channel can continue."""


def snapshot(channel: MessageChannel) -> bytes:
    """Encode the whole state; the channel goes on unchanged."""
    state = json.dumps(_state(channel), default=_wrapped, separators=(",", ":"))
    body = MAGIC + bytes([VERSION]) + state.encode()
    return body + _checksum(body)


def restore(config: ChannelConfig, data: bytes) -> MessageChannel:
    """Make a channel that goes on where `snapshot` was taken; times may be in its past.

    Raises:
        SnapshotError: The bytes are damaged, of another version, or of another channel, sender
            or filter than the configuration's.
    """
    body = data[:-CHECKSUM_BYTES]
    if not data.startswith(MAGIC):
        raise SnapshotError("these bytes are no snapshot of a channel")
    if len(body) <= len(MAGIC) or _checksum(body) != data[-CHECKSUM_BYTES:]:
        raise SnapshotError("the snapshot is damaged: restore an older one, or begin a new state")
    version = body[len(MAGIC)]
    if version != VERSION:
        raise SnapshotError(f"the snapshot has version {version}: only {VERSION} can be read")
    try:
        state = json.loads(body[len(MAGIC) + 1 :], object_pairs_hook=_unwrapped)
        return _restored(config, state)
    except SnapshotError:
        raise
    except _DAMAGE as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error


class _FixedRng:
    def uniform(self, a: float, b: float) -> float:
        """Return a value that is replaced at once."""
        return min(a, b)


def _state(channel: MessageChannel) -> dict[str, object]:
    config, log, incoming = channel.config, channel.log, channel.incoming
    claims, answers = channel.claims, channel.answers
    return {
        "identity": (config.channel_id, config.sender_id),
        "filter": (config.filter.bits, config.filter.hashes, channel.filter.pairs()),
        "log": (log.salt, list(map(astuple, log.entries())), sorted(log.older)),
        "counts": asdict(channel.counts),
        "outgoing": [
            (each.message, each.due_ms, each.sends, each.witnesses, each.error)
            for each in channel.outgoing.by_id.values()
        ],
        "waiting": [
            (each.message, each.hint, each.arrived_ms, sorted(each.unmet))
            for each in incoming.waiting.values()
        ],
        "wants": [(key, astuple(each)) for key, each in incoming.wants.items()],
        "plain": [attrgetter(name)(channel) for name in _PLAIN],
        "unproven": [(key, astuple(each)) for key, each in claims.unproven.items()],
        "older": sorted(claims.older),
        "kept": list(answers.kept.values()),
        "answers": (answers.answered, answers.requesters),
        # Not as an object: a sender's name may be empty.
        "spent": list(answers.spent.items()),
    }


def _restored(config: ChannelConfig, state: dict[str, Any]) -> MessageChannel:
    _check_identity(config, state)
    channel = MessageChannel(config, 0, _FixedRng())
    salt, entries, older = state["log"]
    channel.log = MessageLog(salt)
    for each in entries:
        channel.log.insert(LogEntry(*each))
    channel.log.older.update(older)
    channel.filter.fill(state["filter"][2])
    for name, value in zip(_PLAIN, state["plain"], strict=True):
        part, _, field = name.rpartition(".")
        setattr(attrgetter(part)(channel) if part else channel, field, value)
    channel.counts = Counts(**state["counts"])
    for encoded, *rest in state["outgoing"]:
        message = _message(encoded)
        probe = config.filter.probe(message.message_id)
        channel.outgoing.by_id[message.message_id] = Outgoing(message, probe, *rest)
    channel.incoming.restore(
        [
            WaitingMessage(_message(encoded), hint, arrived_ms, set(unmet))
            for encoded, hint, arrived_ms, unmet in state["waiting"]
        ],
        [(key, Want(*fields)) for key, fields in state["wants"]],
    )
    channel.claims = IdClaims(channel.log.digest)
    channel.claims.unproven.update((key, Unproven(*each)) for key, each in state["unproven"])
    channel.claims.older.update(state["older"])
    answers = channel.answers
    for encoded in state["kept"]:
        answers.keep(_message(encoded))
    answered, requesters = state["answers"]
    answers.answered.update(answered)
    answers.requesters.update(requesters)
    answers.spent = Counter(dict(state["spent"]))
    known = len(channel.log) + len(channel.incoming.waiting)
    channel.filter.complete = known <= len(channel.filter)
    return channel


def _check_identity(config: ChannelConfig, state: dict[str, Any]) -> None:
    channel_id, sender_id = state["identity"]
    if (channel_id, sender_id) != (config.channel_id, config.sender_id):
        raise SnapshotError(f"the snapshot is of channel {channel_id!r} and sender {sender_id!r}")
    if state["filter"][:2] != [config.filter.bits, config.filter.hashes]:
        raise SnapshotError("the snapshot was taken with a filter of another shape")


def _message(encoded: bytes) -> SdsMessage:
    return decode_message(encoded, stored=True)


def _wrapped(value: object) -> dict[str, str]:
    data = encode_message(value) if isinstance(value, SdsMessage) else value
    if not isinstance(data, bytes):
        raise TypeError(f"{value!r} is no part of a snapshot")
    return {"": b64encode(data).decode()}


def _unwrapped(pairs: list[tuple[str, Any]]) -> object:
    if len(pairs) == 1 and not pairs[0][0]:
        return b64decode(pairs[0][1], validate=True)
    return dict(pairs)


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=CHECKSUM_BYTES).digest()
