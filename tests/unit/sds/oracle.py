"""A slow reading of SDS payloads that follows the rules one by one, for comparison."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from storenode.sds.codec import SdsMetadata
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.internal.v1.sds_raw_pb2 import RawSdsMessage

Parent = tuple[bytes, bytes | None]
M = TypeVar("M", bound=Message)


def parse(kind: type[M], raw: bytes) -> M | None:
    try:
        return kind.FromString(raw)
    except DecodeError:
        return None


def is_known(message: Message) -> bool:
    return len(UnknownFieldSet(message)) == 0


def read_parent(raw: bytes) -> Parent | None:
    entry = parse(HistoryEntry, raw)
    if entry is not None and is_known(entry) and entry.message_id != "":
        has_hint = entry.HasField("retrieval_hint")
        return entry.message_id.encode(), entry.retrieval_hint if has_hint else None
    try:
        text = raw.decode("utf-8", errors="strict")
    except UnicodeDecodeError:
        return None
    return None if text == "" else (raw, None)


def is_id(text: str) -> bool:
    return 1 <= len(text.encode()) <= 256


def read(payload: bytes) -> SdsMetadata | None:
    raw = parse(RawSdsMessage, payload)
    if raw is None or not is_known(raw):
        return None
    requests = [parse(HistoryEntry, request) for request in raw.repair_request]
    if not all(request is not None and is_known(request) for request in requests):
        return None
    if not is_id(raw.channel_id) or not is_id(raw.message_id):
        return None
    found = [read_parent(entry) for entry in raw.causal_history]
    parents = [parent for parent in found if parent is not None]
    if len(parents) < len(found) or len(found) > 256:
        return None
    has_lamport = raw.HasField("lamport_timestamp")
    return SdsMetadata(
        raw.channel_id.encode(),
        raw.message_id.encode(),
        raw.lamport_timestamp if has_lamport else None,
        raw.sender_id.encode(),
        parents,
    )
