"""SDS messages as a participant reads and writes them: all fields, both revisions.

A participant knows that the bytes of its channel are SDS messages, so it reads more than a store
node does (`sds.codec`): fields that it does not know are ignored. An entry of field 11 is of the
newer revision when it parses as a ``HistoryEntry`` with a message ID; else it is a plain ID.

A malformed repair request is dropped alone, and so are requests past the first 256 and a retrieval
hint that is too long: none costs the message. The cause that such a hint belongs to is still waited
for, by its ID. A causal history may be as long as the message has room for; the limit of 256
entries is the store node's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from google.protobuf.message import DecodeError

from storenode.sds.limits import (
    MAX_HINT_BYTES,
    MAX_ID_BYTES,
    MAX_REPAIR_ENTRIES,
    MAX_SDS_MESSAGE_BYTES,
)
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.internal.v1 import sds_raw_pb2

_SAFE_ID_CHARS: Final = MAX_ID_BYTES // 4
"""IDs this short cannot be too long as UTF-8."""


class Kind(Enum):
    """What a message is; follows from which fields it has."""

    CONTENT = "content"
    SYNC = "sync"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a causal history or a repair request; the sender may be unknown."""

    message_id: str
    hint: bytes | None = None
    sender_id: str | None = None


@dataclass(frozen=True, slots=True)
class SdsMessage:
    """One message of a channel. ``lamport`` is None just for ephemeral ones."""

    channel_id: str
    message_id: str
    sender_id: str = ""
    lamport: int | None = None
    history: tuple[Entry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[Entry, ...] = ()
    content: bytes | None = None

    @property
    def kind(self) -> Kind:
        """Content, sync or ephemeral (SDS, "Periodic sync message", "Ephemeral messages")."""
        if self.lamport is None:
            return Kind.EPHEMERAL
        return Kind.CONTENT if self.content else Kind.SYNC

    def bare(self) -> Self:
        """The same without what speaks of its sender's state: the filter and the requests."""
        if self.bloom_filter is None and not self.repair_request:
            return self
        return type(self)(
            self.channel_id,
            self.message_id,
            self.sender_id,
            self.lamport,
            self.history,
            content=self.content,
        )


class MessageError(ValueError):
    """An error for bytes that are no message, or break a limit; the ID is "" where unknown."""

    def __init__(self, sentence: str, message_id: str = "") -> None:
        super().__init__(sentence)
        self.message_id = message_id


def decode_message(payload: bytes, *, stored: bool = False) -> SdsMessage:
    """Read a message of either revision.

    ``stored``: this participant wrote it down. It may be longer than what comes from others, since
    entries of the older revision take less room than those that are written.

    Raises:
        MessageError: the bytes do not parse, the message is neither content nor sync nor
            ephemeral, or one of its parts breaks a limit.
    """
    if len(payload) > MAX_SDS_MESSAGE_BYTES and not stored:
        raise MessageError(f"a message of {len(payload)} bytes is over {MAX_SDS_MESSAGE_BYTES}")
    raw: message_pb2.Message | sds_raw_pb2.RawSdsMessage
    try:
        raw = message_pb2.Message.FromString(payload)
        history = tuple([_entry(entry) for entry in raw.causal_history])
        if not all(entry.message_id for entry in history):
            raw, history = _decode_legacy(payload)
    except DecodeError:
        raw, history = _decode_legacy(_without_malformed_requests(payload))
    return _checked(raw, history)


def encode_message(message: SdsMessage) -> bytes:
    """Encode in the newest revision, fields in ascending order.

    Raises:
        ValueError: the clock does not fit 64 unsigned bits.
    """
    return message_pb2.Message(
        sender_id=message.sender_id,
        message_id=message.message_id,
        channel_id=message.channel_id,
        lamport_timestamp=message.lamport,
        causal_history=[_wire_entry(entry) for entry in message.history],
        bloom_filter=message.bloom_filter,
        repair_request=[_wire_entry(entry) for entry in message.repair_request],
        content=message.content,
    ).SerializeToString()


def encode_older(message: SdsMessage) -> bytes:
    """Encode in the older revision: the history is plain IDs, and repair is not known.

    Raises:
        ValueError: the clock does not fit 64 unsigned bits.
    """
    return sds_raw_pb2.RawSdsMessage(
        sender_id=message.sender_id,
        message_id=message.message_id,
        channel_id=message.channel_id,
        lamport_timestamp=message.lamport,
        causal_history=[entry.message_id.encode() for entry in message.history],
        bloom_filter=message.bloom_filter,
        content=message.content,
    ).SerializeToString()


def encode_history(history: Iterable[Entry]) -> bytes:
    """A causal history alone, as it is in a message."""
    entries = [_wire_entry(entry) for entry in history]
    return message_pb2.Message(causal_history=entries).SerializeToString()


def decode_history(encoded: bytes) -> tuple[Entry, ...]:
    """Read what `encode_history` wrote.

    Raises:
        MessageError: the bytes are something else.
    """
    try:
        raw = message_pb2.Message.FromString(encoded)
    except DecodeError as error:
        raise MessageError("a causal history does not parse") from error
    return tuple([_entry(entry) for entry in raw.causal_history])


def size_of(entry: Entry) -> int:
    """Bytes of an entry on the wire, at most."""
    names = len(entry.message_id.encode()) + len((entry.sender_id or "").encode())
    return names + len(entry.hint or b"") + 13


def check_id(name: str, value: str, *, may_be_empty: bool = False) -> None:
    """Check an ID that an application gives.

    Raises:
        ValueError: it is empty, too long, or not text that UTF-8 can carry.
    """
    size = len(value.encode())
    if size > MAX_ID_BYTES or not (size or may_be_empty):
        raise ValueError(f"{name} has {size} bytes: give it 1 to {MAX_ID_BYTES}")


def _decode_legacy(payload: bytes) -> tuple[sds_raw_pb2.RawSdsMessage, tuple[Entry, ...]]:
    try:
        raw = sds_raw_pb2.RawSdsMessage.FromString(payload)
    except DecodeError as error:
        raise MessageError("the bytes do not parse as an SDS message") from error
    return raw, tuple([_legacy_entry(entry) for entry in raw.causal_history])


def _legacy_entry(raw: bytes) -> Entry:
    try:
        entry = message_pb2.HistoryEntry.FromString(raw)
        if entry.message_id:
            return _entry(entry)
    except DecodeError:
        pass
    try:
        return Entry(raw.decode())
    except UnicodeDecodeError as error:
        raise MessageError("an entry of a causal history is neither an entry nor text") from error


def _entry(raw: message_pb2.HistoryEntry) -> Entry:
    # Asking for a field by name is the dear way: only an empty value needs it.
    hint = raw.retrieval_hint or (b"" if raw.HasField("retrieval_hint") else None)
    if hint and len(hint) > MAX_HINT_BYTES:
        hint = None
    return Entry(raw.message_id, hint, raw.sender_id or None)


def _wire_entry(entry: Entry) -> message_pb2.HistoryEntry:
    return message_pb2.HistoryEntry(
        message_id=entry.message_id, retrieval_hint=entry.hint, sender_id=entry.sender_id
    )


def _checked(
    raw: message_pb2.Message | sds_raw_pb2.RawSdsMessage, history: tuple[Entry, ...]
) -> SdsMessage:
    for text in (raw.channel_id, raw.message_id):
        _check_size(text)
    try:
        _check_size(raw.sender_id, may_be_empty=True)
        for entry in history:
            _check_entry(entry)
    except MessageError as error:
        raise MessageError(str(error), raw.message_id) from None
    asked = raw.repair_request[:MAX_REPAIR_ENTRIES] if raw.repair_request else ()
    repair = tuple(_acceptable(map(_entry, asked)))
    lamport = raw.lamport_timestamp or (0 if raw.HasField("lamport_timestamp") else None)
    content = raw.content or None
    if lamport is None and content is None:
        raise MessageError("a message has neither a clock nor content", raw.message_id)
    bloom_filter = raw.bloom_filter or None
    return SdsMessage(
        raw.channel_id,
        raw.message_id,
        raw.sender_id,
        lamport,
        history,
        bloom_filter,
        repair,
        content,
    )


def _check_entry(entry: Entry) -> None:
    _check_size(entry.message_id)
    if entry.sender_id is not None:
        _check_size(entry.sender_id)


def _acceptable(entries: Iterable[Entry]) -> Iterator[Entry]:
    for entry in entries:
        try:
            _check_entry(entry)
        except MessageError:
            continue
        yield entry


def _without_malformed_requests(payload: bytes) -> bytes:
    """The message without repair requests that do not parse; one would spoil the whole."""
    try:
        raw = sds_raw_pb2.RawRepairRequests.FromString(payload)
    except DecodeError:
        return payload
    kept = [entry for entry in raw.repair_request[:MAX_REPAIR_ENTRIES] if _parses(entry)]
    raw.ClearField("repair_request")
    raw.repair_request.extend(kept)
    return raw.SerializeToString()


def _parses(entry: bytes) -> bool:
    try:
        message_pb2.HistoryEntry.FromString(entry)
    except DecodeError:
        return False
    return True


def _check_size(text: str, *, may_be_empty: bool = False) -> None:
    if not text and not may_be_empty:
        raise MessageError("an ID is empty")
    if len(text) > _SAFE_ID_CHARS and len(text.encode()) > MAX_ID_BYTES:
        raise MessageError(f"an ID is longer than {MAX_ID_BYTES} bytes")
