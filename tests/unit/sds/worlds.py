"""Channels to try: made at a fixed time, with the noise of pacing out of the way."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from storenode.sds.bloom import FilterShape, filter_of
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message, encode_older
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Broadcast, Event, Message, Packet, Recall
from storenode.sds.limits import MAX_SDS_MESSAGE_BYTES

NOW = 1_763_625_600_000
CHANNEL = "room"
SMALL = FilterShape(1_000, 0.001)
QUICK_REPAIR = RepairConfig(100, 400, kept_messages=0)
E = TypeVar("E", bound=Event)


def config(sender: str = "me", **given: object) -> ChannelConfig:
    plain = {"repair": None, "gap_entries": 0, "filter_every": 1, "name_heads": False}
    values: dict[str, Any] = {"filter": SMALL} | plain | given
    return ChannelConfig(CHANNEL, sender, **values)


def channel(sender: str = "me", **given: object) -> MessageChannel:
    return MessageChannel(config(sender, **given), NOW, make_rng())


def make_rng(seed: int = 0) -> random.Random:
    return random.Random(seed)


def of(kind: type[E], events: Iterable[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def payloads(events: Iterable[Event]) -> list[bytes]:
    return [event.payload for event in of(Broadcast, events)]


def delivered(events: Iterable[Event]) -> list[str]:
    return [event.message_id for event in of(Message, events)]


def log_ids(of_channel: MessageChannel) -> list[str]:
    return [entry.message_id for entry in of_channel.log.entries()]


def wire(
    message_id: str,
    *,
    after: Iterable[str | Entry] = (),
    lamport: int | None = NOW,
    sender: str = "peer",
    content: bytes | None = b"text",
    seen: Iterable[str] | None = None,
    bloom_filter: bytes | None = None,
    asks: Iterable[str | Entry] = (),
    room: str = CHANNEL,
) -> bytes:
    """Return a message of another participant; ``seen`` are the IDs of its filter."""
    return encode_message(
        SdsMessage(
            room,
            message_id,
            sender,
            lamport,
            tuple(Entry(entry) if isinstance(entry, str) else entry for entry in after),
            bloom_filter if seen is None else filter_of(SMALL, seen),
            tuple(Entry(entry) if isinstance(entry, str) else entry for entry in asks),
            content,
        )
    )


def grows_when_written(causes: Iterable[str]) -> bytes:
    """Return a message of the older revision that is too long in the newer one."""
    history = tuple(Entry(cause) for cause in causes)
    full = SdsMessage(CHANNEL, "full", "bob", NOW, history, content=b"x")
    room = MAX_SDS_MESSAGE_BYTES - len(encode_older(full)) - 2
    payload = encode_older(replace(full, content=bytes(room)))
    assert len(payload) <= MAX_SDS_MESSAGE_BYTES < len(encode_message(decode_message(payload)))
    return payload


def take(into: MessageChannel, *messages: bytes, now: int = NOW) -> list[Event]:
    events = into.receive(now, [Packet(message) for message in messages])
    into.check()
    return events


def later(me: MessageChannel, *seconds: int) -> list[Event]:
    """Return what a channel does by itself at these moments."""
    return [event for each in seconds for event in me.tick(NOW + each * 1_000, make_rng())]


def answers(me: MessageChannel, now_ms: int, *stored: bytes) -> list[Event]:
    """Return a channel's answers of this moment to repair requests, from what is ``stored``."""
    known = {message.message_id: message for message in map(decode_message, stored)}
    wanted = [key for event in of(Recall, me.tick(now_ms, make_rng())) for key in event.message_ids]
    return me.recalled([known[key] for key in wanted])
