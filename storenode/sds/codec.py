"""The wire format of SDS messages: decoding for store nodes, both directions for participants.

Two revisions of SDS share field 11. An entry is of the newer one when its bytes parse as a
``HistoryEntry`` that has a message ID; else it is a plain message ID of the older one.

A **store node** (`decode`) receives arbitrary payloads. One *is* an SDS message when it parses
as ``sds.v1.Message`` without unknown fields (nested ones included; a known number with a wrong wire
type is unknown), its channel and message ID are not empty and at most 256 bytes, and its causal
history has at most 256 entries, each of one of the two revisions: a plain ID is UTF-8 and not
empty. Parents are kept as claimed. One whose ID is longer than 256 bytes can never be held, since
no readable message has such an ID; it stays listed, so that a causal walk reports it missing
instead of calling the history complete. The size of the message bounds it.

A **participant** (`decode_message`) takes the bytes of its channel for SDS messages, so it ignores
unknown fields. A malformed repair request is dropped alone, and so are requests past the first 256
and a retrieval hint that is too long: none costs the message. The cause that such a hint belongs to
is still waited for, by its ID. A causal history has as many entries as a participant can wait for.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import Any, Final, Self

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from storenode.common.errors import ArgumentError
from storenode.sds.limits import (
    ENTRY_BYTES,
    MAX_CAUSES,
    MAX_HINT_BYTES,
    MAX_HISTORY_ENTRIES,
    MAX_ID_BYTES,
    MAX_REPAIR_ENTRIES,
    MAX_SDS_MESSAGE_BYTES,
    SDS_KEY_BYTES,
)
from storenode.sds.proofs import ID_BYTES, message_digest, proves_content
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.internal.v1.sds_raw_pb2 import RawSdsMessage

# Low byte of each known field's tag. The high bit is set where the tag continues, as that of field
# 20 must, and those of the others may, since parsers accept tags that are longer than needed.
_SHORT_TAGS: Final = (0x0A, 0x12, 0x1A, 0x50, 0x5A, 0x62, 0x6A)
_FIRST_BYTES: Final = frozenset((*_SHORT_TAGS, *(tag | 0x80 for tag in _SHORT_TAGS), 0xA2))


class MessageKind(Enum):
    """The kind of a message, which follows from its fields."""

    CONTENT = "content"
    SYNC = "sync"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a causal history or a repair request; the sender may be unknown."""

    message_id: str
    hint: bytes | None = None
    sender_id: str | None = None


@dataclass(frozen=True, slots=True)
class SdsMessage:
    """A message of a channel. ``lamport`` is None just for ephemeral ones."""

    channel_id: str
    message_id: str
    sender_id: str = ""
    lamport: int | None = None
    history: tuple[Entry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[Entry, ...] = ()
    content: bytes | None = None

    @property
    def kind(self) -> MessageKind:
        """Content, sync or ephemeral (SDS, "Periodic sync message", "Ephemeral messages")."""
        if self.lamport is None:
            return MessageKind.EPHEMERAL
        return MessageKind.CONTENT if self.content else MessageKind.SYNC

    def bare(self) -> Self:
        """Return the message without its sender's state: the filter and the requests."""
        return replace(self, bloom_filter=None, repair_request=())


class MessageError(ValueError):
    """An error for bytes that are no message, or break a limit; the ID is "" where unknown."""

    def __init__(self, sentence: str, message_id: str = "") -> None:
        super().__init__(sentence)
        self.message_id = message_id


@dataclass(slots=True)
class SdsMetadata:
    """The metadata that a payload claims as an SDS message; only ``proven`` is verified.

    IDs are UTF-8 and may hold NUL. ``parents`` are (message ID, retrieval hint or ``None``) in
    the order of the causal history, as claimed: repeats, cycles, IDs of any length and hints of
    any size included. ``lamport`` is an unsigned 64-bit number. ``proven``: the message has
    content, and its ID proves the content or all of it (`storenode.sds.proofs`).
    """

    channel_id: bytes
    message_id: bytes
    lamport: int | None
    sender_id: bytes
    parents: list[tuple[bytes, bytes | None]]
    proven: bool = False


def decode(payload: bytes) -> SdsMetadata | None:
    """Read the metadata of an SDS message; ``None`` for any other payload.

    Never raises. Source: SDS, "Wire format", in both revisions, and the module's docstring.
    """
    if not payload or payload[0] not in _FIRST_BYTES:
        return None
    try:
        message = RawSdsMessage.FromString(payload)
        requests = map(HistoryEntry.FromString, message.repair_request)
        if _has_unknown_fields(message) or any(map(_has_unknown_fields, requests)):
            return None
        channel_id, message_id = message.channel_id.encode(), message.message_id.encode()
        if not 0 < len(channel_id) <= MAX_ID_BYTES or not 0 < len(message_id) <= MAX_ID_BYTES:
            return None
        if len(message.causal_history) > MAX_HISTORY_ENTRIES:
            return None
        parents = [_parent(entry) for entry in message.causal_history]
    except (DecodeError, ValueError):
        return None
    lamport = message.lamport_timestamp if message.HasField("lamport_timestamp") else None
    sender_id = message.sender_id.encode()
    found = SdsMetadata(channel_id, message_id, lamport, sender_id, parents)
    # No other ID need be hashed.
    if len(message_id) == ID_BYTES and message.content:
        named = [parent for parent, _ in parents]
        digest = message_digest(channel_id, sender_id, lamport or 0, named, message.content)
        found.proven = message.message_id == digest or proves_content(
            message.message_id, message.content
        )
    return found


def channel_key(channel_id: bytes) -> bytes:
    """Index key (16 bytes, a UUID column) of a channel: the first 128 bits of its SHA-256."""
    return sha256(channel_id).digest()[:SDS_KEY_BYTES]


def sds_key(channel_id: bytes, message_id: bytes) -> bytes:
    """Index key (16 bytes, a UUID column) of a message ID in its channel.

    The first 128 bits of SHA-256 over both as UTF-8, each after its length as four bytes
    big-endian.
    """
    lengths = len(channel_id).to_bytes(4), len(message_id).to_bytes(4)
    preimage = b"%b%b%b%b" % (lengths[0], channel_id, lengths[1], message_id)
    return sha256(preimage).digest()[:SDS_KEY_BYTES]


def encode(
    channel_id: str,
    message_id: str,
    *,
    sender_id: str = "",
    lamport: int | None = None,
    parents: Iterable[tuple[str, bytes | None]] = (),
    bloom_filter: bytes | None = None,
    content: bytes | None = None,
) -> bytes:
    """Encode an SDS message of the newest revision; ``parents`` are (message ID, hint).

    Raises:
        ValueError: ``lamport`` does not fit 64 unsigned bits.
    """
    history = tuple([Entry(*parent) for parent in parents])
    return encode_message(
        SdsMessage(
            channel_id, message_id, sender_id, lamport, history, bloom_filter, content=content
        )
    )


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
    try:
        raw = RawSdsMessage.FromString(payload)
    except DecodeError as error:
        raise MessageError("the bytes do not parse as an SDS message") from error
    if (count := len(raw.causal_history)) > MAX_CAUSES:
        raise MessageError(f"a message of {count} causes is over {MAX_CAUSES}")
    for text in (raw.channel_id, raw.message_id):
        _check_size(text)
    try:
        _check_size(raw.sender_id, may_be_empty=True)
        history = tuple([_checked(_entry(each)) for each in raw.causal_history])
    except MessageError as error:
        raise MessageError(str(error), raw.message_id) from None
    requests = []
    for each in raw.repair_request[:MAX_REPAIR_ENTRIES]:
        with suppress(DecodeError, MessageError):
            requests.append(_checked(_from_wire(HistoryEntry.FromString(each))))
    lamport = raw.lamport_timestamp if raw.HasField("lamport_timestamp") else None
    content = raw.content or None
    if lamport is None and content is None:
        raise MessageError("a message has neither a clock nor content", raw.message_id)
    return SdsMessage(
        raw.channel_id,
        raw.message_id,
        raw.sender_id,
        lamport,
        history,
        raw.bloom_filter or None,
        tuple(requests),
        content,
    )


def encode_message(message: SdsMessage) -> bytes:
    """Encode in the newest revision, fields in ascending order.

    Raises:
        ValueError: the clock does not fit 64 unsigned bits.
    """
    return _encode(
        message,
        [_wire_entry(entry) for entry in message.history],
        [_wire_entry(entry) for entry in message.repair_request],
    )


def encode_older(message: SdsMessage) -> bytes:
    """Encode in the older revision: the history is plain IDs, and repair is not known.

    Raises:
        ValueError: the clock does not fit 64 unsigned bits.
    """
    return _encode(message, [entry.message_id.encode() for entry in message.history], [])


def encode_history(history: Iterable[Entry]) -> bytes:
    """Encode a causal history alone, as it is in a message."""
    entries = [_wire_entry(entry) for entry in history]
    return RawSdsMessage(causal_history=entries).SerializeToString()


def decode_history(encoded: bytes) -> tuple[Entry, ...]:
    """Read what `encode_history` wrote.

    Raises:
        MessageError: the bytes are something else.
    """
    try:
        raw = RawSdsMessage.FromString(encoded)
    except DecodeError as error:
        raise MessageError("a causal history does not parse") from error
    return tuple([_entry(entry) for entry in raw.causal_history])


def size_of(entry: Entry) -> int:
    """Return the largest size of an entry on the wire, in bytes."""
    names = len(entry.message_id.encode()) + len((entry.sender_id or "").encode())
    return names + len(entry.hint or b"") + 13


def bytes_of(thing: Any) -> int:  # noqa: ANN401 - a message or any event
    """Return the approximate memory that a message, or an event with its content, takes."""
    names = len(getattr(thing, "messages", ())) + len(getattr(thing, "message_ids", ()))
    # In memory a text takes one to four times its size on the wire.
    entries = sum(2 * size_of(each) + ENTRY_BYTES for each in getattr(thing, "history", ()))
    content: Any = getattr(thing, "content", None) or getattr(thing, "payload", b"")
    return len(getattr(content, "content", content)) + entries + ENTRY_BYTES * (names + 1)


def check_id(name: str, value: str, *, may_be_empty: bool = False) -> None:
    """Check an ID that an application gives.

    Raises:
        ValueError: it is empty, too long, or not text that UTF-8 can carry.
    """
    given: object = value
    if not isinstance(given, str):
        raise ArgumentError(f"{name} is {type(given).__name__}, not str")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} is {value!r}, which UTF-8 cannot carry") from None
    if size > MAX_ID_BYTES or not (size or may_be_empty):
        raise ArgumentError(f"{name} has {size} bytes: give it 1 to {MAX_ID_BYTES}")


def _encode(message: SdsMessage, history: list[bytes], requests: list[bytes]) -> bytes:
    return RawSdsMessage(
        sender_id=message.sender_id,
        message_id=message.message_id,
        channel_id=message.channel_id,
        lamport_timestamp=message.lamport,
        causal_history=history,
        bloom_filter=message.bloom_filter,
        repair_request=requests,
        content=message.content,
    ).SerializeToString()


def _wire_entry(entry: Entry) -> bytes:
    return HistoryEntry(
        message_id=entry.message_id, retrieval_hint=entry.hint, sender_id=entry.sender_id
    ).SerializeToString()


def _newer_entry(raw: bytes) -> HistoryEntry | None:
    try:
        entry = HistoryEntry.FromString(raw)
    except DecodeError:
        return None
    return entry if entry.message_id else None


def _entry(raw: bytes) -> Entry:
    """Read an entry of a causal history as a participant does."""
    entry = _newer_entry(raw)
    if entry is not None:
        return _from_wire(entry)
    try:
        return Entry(raw.decode())
    except UnicodeDecodeError as error:
        raise MessageError("an entry of a causal history is neither an entry nor text") from error


def _parent(raw: bytes) -> tuple[bytes, bytes | None]:
    """Read an entry of a causal history as a store node does; a ValueError if it is none."""
    entry = _newer_entry(raw)
    if entry is not None and not _has_unknown_fields(entry):
        return entry.message_id.encode(), _hint(entry)
    if not raw.decode():
        raise ValueError("an ID is empty")
    return raw, None


def _from_wire(entry: HistoryEntry) -> Entry:
    hint = _hint(entry)
    if hint and len(hint) > MAX_HINT_BYTES:
        hint = None
    return Entry(entry.message_id, hint, entry.sender_id or None)


def _hint(entry: HistoryEntry) -> bytes | None:
    # HasField is slow, and only an empty value needs it.
    return entry.retrieval_hint or (b"" if entry.HasField("retrieval_hint") else None)


def _has_unknown_fields(message: Message) -> bool:
    return len(UnknownFieldSet(message)) > 0


def _checked(entry: Entry) -> Entry:
    _check_size(entry.message_id)
    _check_size(entry.sender_id or "", may_be_empty=True)
    return entry


def _check_size(text: str, *, may_be_empty: bool = False) -> None:
    if not text and not may_be_empty:
        raise MessageError("an ID is empty")
    if len(text.encode()) > MAX_ID_BYTES:
        raise MessageError(f"an ID is longer than {MAX_ID_BYTES} bytes")
