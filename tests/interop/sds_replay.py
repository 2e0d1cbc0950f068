"""Replays a recorded conversation against `MessageChannel`, step for step.

What the recording has, and ours has on purpose not, is stated here: a duplicate is handed out
again and its filter counted again (ours counts it only), the sweep names a missing message once
per message that waits for it (ours once), and says so when nothing is missing (ours is silent).
"""

import gzip
import json
import random
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from storenode.sds.bloom import FilterShape, filter_of
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry, MessageKind, SdsMessage, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    BroadcastReason,
    Event,
    Message,
    Missing,
    Packet,
    PossiblyAcknowledged,
    Received,
    Sent,
)

NAMES: dict[type[Event], str] = {
    Sent: "sds:out:message-sent",
    Received: "sds:in:message-received",
    Message: "sds:in:message-delivered",
    Acknowledged: "sds:out:message-acknowledged",
}
TRACE = Path(__file__).parent.parent / "vectors" / "sds_trace_clean.compact.json.gz"
Names = list[tuple[str, Any]]


@cache
def load_trace() -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(TRACE.read_bytes()))
    return trace


@dataclass
class Replay:
    """The participants of the recording, and the packets that were sent."""

    trace: dict[str, Any]

    def __post_init__(self) -> None:
        self.channels: dict[str, MessageChannel] = {}
        self.wire = [self._wire(message) for message in self.trace["messages"]]

    def config(self, name: str) -> ChannelConfig:
        options = self.trace["config"]["explicit_options"]
        return ChannelConfig(
            self.trace["config"]["channel_id"],
            name,
            history_entries=options["causalHistorySize"],
            possible_acks=options["possibleAcksThreshold"],
            gap_entries=0,
            filter_every=1,
            name_heads=False,
            lost_after_ms=None,
            release_at_sweep=True,
            repair=None,
        )

    def run(self, step: dict[str, Any]) -> tuple[Names, bytes | None]:
        """Take one step, and return our events by the recording's names, and what was broadcast."""
        name, now, op = step["p"], step["t"], step["op"]
        if op == "create":
            self.channels[name] = MessageChannel(self.config(name), now, random.Random(name))
            return [], None
        events = self._events(self.channels[name], step, now)
        sent = [event.payload for event in events if isinstance(event, Broadcast)]
        return names_of(events), sent[0] if sent else None

    def _events(self, channel: MessageChannel, step: dict[str, Any], now: int) -> list[Event]:
        match step["op"]:
            case "send":
                content = bytes.fromhex(step["payload"])
                message_id = sha256(content).hexdigest()
                events = channel.send(now, content, message_id)
                return events + channel.published(message_id, bytes.fromhex(step["hint"]))
            case "sync":
                return channel.send_sync(now, self.trace["messages"][step["msg"]]["message_id"])
            case "receive":
                packet = Packet(self.wire[step["msg"]], bytes.fromhex(step["hint"]))
                return channel.receive(now, [packet])
            case "sweep_incoming":
                return channel.sweep_incoming(now)
            case "sweep_outgoing":
                return []
            case other:
                raise AssertionError(other)

    def _wire(self, message: dict[str, Any]) -> bytes:
        bloom, content = message["bloom"], message.get("content")
        inserted = self.trace["final"].get(bloom["sender"], {}).get("bloom_inserted", [])
        payload = encode_message(
            SdsMessage(
                message["channel_id"],
                message["message_id"],
                message["sender_id"],
                message["lamport_timestamp"],
                tuple(
                    Entry(
                        entry["message_id"],
                        bytes.fromhex(entry["retrieval_hint"]),
                        entry["sender_id"],
                    )
                    for entry in message["causal_history"]
                ),
                filter_of(FilterShape(), inserted[: bloom["first_n"]]),
                content=bytes.fromhex(content) if content else None,
            )
        )
        assert len(payload) == message["wire_length"]
        assert sha256(payload).hexdigest() == message["wire_sha256"]
        return payload


def state_of(channel: MessageChannel) -> dict[str, int]:
    return {
        "lamport": channel.clock.value,
        "log": len(channel.log),
        "in": len(channel.incoming),
        "out": len(channel.outgoing),
        "bloom": len(channel.filter),
    }


def names_of(events: list[Event]) -> Names:
    """Return our events as the recording has them, without `Broadcast` of content."""
    found: Names = []
    for event in events:
        match event:
            case Broadcast(reason=BroadcastReason.SYNC):
                found.append(("sds:out:sync-sent", event.message_id))
            case Broadcast():
                pass
            case Received(kind=MessageKind.SYNC):
                found.append(("sds:in:sync-received", event.message_id))
            case PossiblyAcknowledged():
                seen = [event.message_id, event.filters]
                found.append(("sds:out:message-possibly-acknowledged", seen))
            case Missing():
                ids = [entry.message_id for entry in event.messages]
                found.append(("sds:in:message-missing", ids))
            case Sent() | Received() | Message() | Acknowledged():
                found.append((NAMES[type(event)], event.message_id))
            case other:
                raise AssertionError(other)
    return found
