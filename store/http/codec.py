"""The JSON codec of ``/api/v1``, in both directions, generated from the messages of the schema.

Names are those of protobuf's JSON. Hashes are hexadecimal, cursors base64 for URLs, other bytes
base64, and signed numbers of 64 bits decimal strings: JavaScript would round them; requests may
have numbers. A field of a request whose message is `INLINED` is replaced by the fields of that
message. Parameters of a URL are the fields of the type that a POST takes as its body.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec import UNSET, Meta, Struct

from store.serving.failure import malformed
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.sds.codec import decode as decode_sds
from storenode.wire.storenode.v1.store_pb2 import SdsStoredMessage

HASHES: Final = frozenset(
    {"fingerprint", "message_hash", "message_hashes", "pagination_cursor", "retrieval_hint"}
)
"""Names of the fields that hold hashes."""

INLINED: Final = frozenset({"ContentFilter", "WakuMessage"})
HIDDEN: Final = frozenset({"request_id", "nwaku_rules", "sender_id"})
"""Fields of requests that JSON has not."""

NAMES: Final = {
    "message_hashes": "hashes",
    "pagination_cursor": "cursor",
    "pagination_limit": "limit",
    "pagination_forward": "forward",
    "confirm_timeout": "confirmTimeoutS",
}
"""Names of fields of requests that are not those of protobuf's JSON."""

REQUIRED: Final = {
    "AnswerCoverage": {"state", "time_start", "time_end"},
    "CoverageStep": {"time_start", "time_end", "intake"},
    "GetSdsMessagesRequest": {"channel_id", "entries"},
    "GetCausalHistoryRequest": {"channel_id", "heads"},
    "HistoryEntry": {"message_id"},
    "PublishRequest": {"messages"},
    "PublishResponse": {"results"},
    "PublishResult": {"outcome"},
    "StoreQueryResponse": {"messages"},
    "WakuMessage": {"content_topic", "payload", "timestamp"},
    "WakuMessageAndTopic": {"pubsub_topic"},
}
"""Fields that a request must have, and that an answer has although they are unset, by message."""

DEFAULTS: Final[dict[str, object]] = {"include_data": True, "pagination_limit": 0, "step": "HOUR"}

NOTES: Final = {
    "channel_id": "An SDS channel. Of coverage: count the parents that its messages lack.",
    "confirm_timeout": "How long to wait for that. Unset: 5 s.",
    "content_topics": "Messages of any of these content topics. None: of any.",
    "coverage": "True: the answer says how complete it is.",
    "cursor": "Go on after this cursor, which an answer had. For events the header `Last-Event-ID`"
    " goes before it.",
    "from_beginning": "Without a cursor. True: begin with the oldest message held.",
    "include_data": "False: hashes alone, which is far cheaper.",
    "known_ids": "What the caller has: not sent, nor are their parents.",
    "max_depth": "Generations to go back. 0: unlimited.",
    "max_messages": "0: the node's limit.",
    "message_hashes": "Messages with these hashes; times must be unset.",
    "min_confirms": "Other stores that must confirm each message first.",
    "page_size": "Messages between two cursors. 0: the node chooses.",
    "pagination_cursor": "`cursor` of the page before. Unset: the first page.",
    "pagination_forward": "True: the oldest messages first. False: the newest page first.",
    "pagination_limit": "Messages of the page. 0: the node chooses.",
    "prefer_proven": "Of the messages that claim an ID, those that it proves come first, whatever"
    " their age; a hint to another selects them, too.",
    "pubsub_topic": "Messages of this pubsub topic. Unset: of any.",
    "retrieval_hint": "Selects one of several messages with the same ID.",
    "time_end": "Before this timestamp, exclusive.",
    "time_start": "From this timestamp on, inclusive.",
    "timestamp": "A message whose time is not greater than 0 is rejected.",
}
"""Descriptions of the fields of requests."""

_TIME: Final = {
    "description": "Unix time in nanoseconds, as a number or a decimal string.",
    "extra_json_schema": {"type": ["integer", "string"], "format": "int64"},
}
Nanoseconds = Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_NS, **_TIME)]
MessageTime = Annotated[int, Meta(ge=-(2**63), le=MAX_TIMESTAMP_NS, **_TIME)]
Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=300)]
Hash = Annotated[
    str,
    Meta(
        pattern="^(0[xX])?[0-9a-fA-F]{64}$",
        description="A message hash: 64 hexadecimal digits, with or without 0x.",
    ),
]
Base64 = Annotated[bytes, Meta(description="Base64.")]

ITEMS: Final = frozenset({"messages", "steps"})
"""Fields of a page whose entries are lines by themselves."""

STATUS: Final = frozenset({"request_id", "status_code", "status_desc"})
"""Fields of ``StoreQueryResponse`` that the status of HTTP stands for."""

encode: Final = msgspec.json.Encoder().encode


# Requests


class NoParameters(Struct, forbid_unknown_fields=True):
    """A request without parameters."""


def request_type(message: type[Message] | None) -> type[Struct]:
    """Return the type of the JSON of a request, which its fields are checked against."""
    return (
        NoParameters if message is None else _request_type(cast("Descriptor", message.DESCRIPTOR))
    )


@cache
def _request_type(descriptor: Descriptor) -> type[Struct]:
    fields = list(_request_fields(descriptor))
    names = {field.name: _request_name(field) for field in fields}
    return msgspec.defstruct(
        descriptor.name,
        [_request_field(field) for field in fields],
        rename=names,
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _request_fields(descriptor: Descriptor) -> Iterator[FieldDescriptor]:
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.name in INLINED:
            yield from field.message_type.fields
        elif field.name not in HIDDEN:
            yield field


def _request_name(field: FieldDescriptor) -> str:
    return NAMES.get(field.name, field.camelcase_name)


def _request_field(field: FieldDescriptor) -> Any:  # noqa: ANN401 - what defstruct takes
    kind: Any = _request_value(field)
    if field.is_repeated:
        kind = list[kind]
    note = NOTES.get(field.name)
    needed = is_required(field)
    is_optional = field.has_presence and not needed and field.name not in DEFAULTS
    if is_optional:
        kind = kind | None
    if note is not None:
        kind = Annotated[kind, Meta(description=note)]
    if needed:
        return field.name, kind
    if field.is_repeated:
        return field.name, kind, msgspec.field(default_factory=list)
    default = None if is_optional else DEFAULTS.get(field.name, field.default_value)
    if field.enum_type is not None and not is_optional:
        default = field.enum_type.values_by_number[field.default_value].name
    # The empty cursor is a text here.
    return field.name, kind, "" if default == b"" else default


def _request_value(field: FieldDescriptor) -> Any:  # noqa: ANN401 - a type
    if field.message_type is not None:
        is_duration = field.message_type.full_name == "google.protobuf.Duration"
        return Seconds if is_duration else _request_type(field.message_type)
    if field.enum_type is not None:
        return Literal[tuple(field.enum_type.values_by_name)]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return Hash if field.name in HASHES else str if field.name == "cursor" else Base64
    if field.type == FieldDescriptor.TYPE_SINT64:
        return MessageTime if field.name == "timestamp" else Nanoseconds
    return {FieldDescriptor.TYPE_BOOL: bool, FieldDescriptor.TYPE_STRING: str}.get(
        field.type, Count
    )


def decode(kind: type[Struct], body: bytes) -> Struct:
    """Read a body.

    Raises:
        msgspec.ValidationError: it is not of this type.
        msgspec.DecodeError: it is no JSON.
    """
    return msgspec.json.decode(body, type=kind, strict=False)


def from_parameters(kind: type[Struct], given: Mapping[str, list[str]]) -> Struct:
    """Read the parameters of a URL.

    Raises:
        CallError: a parameter that is no list is given twice.
        msgspec.ValidationError: they are not of this type.
    """
    lists = {
        each.encode_name for each in msgspec.structs.fields(kind) if each.default_factory is list
    }
    found: dict[str, Any] = {}
    for name, values in given.items():
        if name not in lists and len(values) > 1:
            raise malformed(f"the parameter `{name[:64]}` is given twice: send it once")
        found[name] = values if name in lists else values[0]
    return msgspec.convert(found, kind, strict=False)


def to_message(kind: type[Message], asked: Struct) -> bytes:
    """Encode a request; a field that its message lacks is that of a message within it.

    Raises:
        CallError: a cursor cannot be read.
    """
    return kind(**_values(cast("Descriptor", kind.DESCRIPTOR), asked)).SerializeToString()


def _values(descriptor: Descriptor, asked: Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in asked.__struct_fields__:
        value = getattr(asked, name)
        if value is None or value is UNSET:
            continue
        field = descriptor.fields_by_name.get(name)
        if field is not None:
            found[name] = _value(field, value)
        else:
            within = _holder(descriptor, name)
            found.setdefault(within, {})[name] = value
    return found


@cache
def _holder(descriptor: Descriptor, name: str) -> str:
    """Return the field whose message has a field of this name."""
    return next(
        each.name
        for each in descriptor.fields
        if each.message_type is not None
        and not each.is_repeated
        and name in each.message_type.fields_by_name
    )


def _value(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - whatever the field holds
    if isinstance(value, list):
        return [_value(field, each) for each in value]
    if isinstance(value, Struct):
        assert field.message_type is not None
        return _values(field.message_type, value)
    if isinstance(value, float):
        return timedelta(seconds=value)
    if field.name in HASHES:
        return bytes.fromhex(value.lower().removeprefix("0x"))
    return _read_cursor(value) if field.name == "cursor" else value


def _read_cursor(text: str) -> bytes:
    try:
        return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (BinasciiError, ValueError):
        raise malformed(
            "the cursor is none of this node's: pass it as it was sent, or leave it out"
        ) from None


# Answers


class ErrorDetail(Struct, rename="camel"):
    """The reason for which a request failed."""

    code: Annotated[str, Meta(description="The name of the gRPC status code.")]
    message: Annotated[str, Meta(description="What was wrong, and what to do.")]
    request_id: str


class Error(Struct):
    """The body of every error."""

    error: ErrorDetail


def hex_of(digest: bytes) -> str:
    """Return a hash as answers spell it."""
    return f"0x{digest.hex()}"


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON has it, the fields first that are always there."""
    found = {}
    for field, name, convert, always, has_presence, is_list in _conversions(
        cast("Hashable", type(message))
    ):
        value = getattr(message, field)
        if not (always or (message.HasField(field) if has_presence else value)):
            continue
        found[name] = [convert(each) for each in value] if is_list else convert(value)
    return found


def to_lines(page: Message) -> Iterator[dict[str, Any]]:
    """Yield the lines of a page: its items, then an object for each other field or entry."""
    for name, value in to_json(page).items():
        if name in ITEMS:
            yield from value
        else:
            yield from ({name: each} for each in (value if isinstance(value, list) else [value]))


@cache
def _conversions(
    kind: type[Message],
) -> list[tuple[str, str, Callable[[Any], Any], bool, bool, bool]]:
    """Return each field: its names, how it becomes JSON, and if it is always there, or a list."""
    descriptor = cast("Descriptor", kind.DESCRIPTOR)
    fields = [each for each in descriptor.fields if each.name not in STATUS]
    fields.sort(key=is_required, reverse=True)
    return [
        (
            *(each.name, name_of(each), _converter(each)),
            *(is_required(each), each.has_presence, each.is_repeated),
        )
        for each in fields
    ]


def is_required(field: FieldDescriptor) -> bool:
    """Return True for a field that a request must have, or that an answer always has."""
    return field.name in REQUIRED.get(cast("Descriptor", field.containing_type).name, ())


def name_of(field: FieldDescriptor) -> str:
    """Return the name of a field in the JSON of answers."""
    return "cursor" if field.name == "pagination_cursor" else field.camelcase_name


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _sds_json if field.message_type is SdsStoredMessage.DESCRIPTOR else to_json
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return names.__getitem__
    if field.type == FieldDescriptor.TYPE_SINT64:
        return str
    if field.name in HASHES:
        return hex_of
    return _write_cursor if field.name == "cursor" else _same


def _write_cursor(cursor: bytes) -> str:
    return urlsafe_b64encode(cursor).decode().rstrip("=")


def _same(value: Any) -> Any:  # noqa: ANN401 - whatever the field holds
    return value


def _sds_json(found: SdsStoredMessage) -> dict[str, Any]:
    said = {**to_json(found.stored), "messageId": found.entry.message_id}
    claimed = decode_sds(found.stored.message.payload)
    if claimed is not None:
        said["proven"] = claimed.proven
    return said
