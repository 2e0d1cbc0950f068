"""The JSON codec of ``/api/v1``, in both directions, generated from the messages of the schema.

Names are those of protobuf's JSON. Hashes are hexadecimal, cursors base64 for URLs, other bytes
base64, and signed numbers of 64 bits decimal strings: JavaScript would round them; requests may
have numbers. A field of a request whose message is `INLINED` is replaced by the fields of that
message. Parameters of a URL are the fields of the type that a POST takes as its body.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec import UNSET, Meta, Struct, UnsetType

from store.serving.failure import malformed
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.sds.codec import decode as decode_sds
from storenode.wire.storenode.v1.store_pb2 import SdsStoredMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

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

DEFAULTS: Final[dict[str, object]] = {"include_data": True, "pagination_limit": 0}

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
Digits = Annotated[str, Meta(description="Unix time in nanoseconds, as a decimal string.")]
HashText = Annotated[str, Meta(description="A message hash: 0x and 64 hexadecimal digits.")]
ClaimedId = Annotated[str, Meta(description="The SDS message ID that was asked for.")]
Proven = Annotated[
    bool,
    Meta(
        description="Whether that ID is the hash of what the message says. Any other message may"
        " have been put under the ID by somebody else."
    ),
]


class Flag(int):
    """A truth value of a request; unlike msgspec, protobuf's JSON has no number or text as one."""


_FLAG_TEXTS: Final = {"true": True, "1": True, "false": False, "0": False}
"""Truth values of parameters of a URL."""

ITEMS: Final = frozenset({"messages", "steps"})
"""Fields of a page whose entries are lines by themselves."""

STATUS: Final = frozenset({"request_id", "status_code", "status_desc"})
"""Fields of ``StoreQueryResponse`` that the status of HTTP stands for."""

Kind: TypeAlias = type[Message] | type[Struct]
"""The type of a request or an answer: a message of the schema, or the JSON itself."""

encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _FieldForm:
    """The JSON of the value of a field, or of an entry if it is a list.

    ``asked``, ``answered``: its types in requests and answers. ``read`` takes the value of a
    request, ``write`` returns that of an answer.
    """

    asked: Any
    answered: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def is_required(field: FieldDescriptor) -> bool:
    """Return True for a field that a request must have, or that an answer always has."""
    return field.name in REQUIRED.get(cast("Descriptor", field.containing_type).name, ())


def hex_of(digest: bytes) -> str:
    """Return a hash as answers spell it."""
    return f"0x{digest.hex()}"


def _read_hash(text: str) -> bytes:
    return bytes.fromhex(text.lower().removeprefix("0x"))


def _read_cursor(text: str) -> bytes:
    try:
        return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise malformed(
            "the cursor is none of this node's: pass it as it was sent, or leave it out"
        ) from None


def cursor_of(cursor: bytes) -> str:
    """Return a cursor as answers spell it."""
    return urlsafe_b64encode(cursor).decode().rstrip("=")


def _same(value: Any) -> Any:  # noqa: ANN401 - whatever the field holds
    return value


_HASH: Final = _FieldForm(Hash, HashText, _read_hash, hex_of)
_COUNT: Final = _FieldForm(Count, int, _same, _same)
_DURATION: Final = _FieldForm(Seconds, Seconds, lambda seconds: timedelta(seconds=seconds), _same)
_BY_NAME: Final = {
    "cursor": _FieldForm(str, str, _read_cursor, cursor_of),
    "timestamp": _FieldForm(MessageTime, Digits, _same, str),
}
_BY_TYPE: Final = {
    FieldDescriptor.TYPE_BOOL: _FieldForm(Flag, bool, bool, _same),
    FieldDescriptor.TYPE_BYTES: _FieldForm(Base64, Base64, _same, _same),
    FieldDescriptor.TYPE_SINT64: _FieldForm(Nanoseconds, Digits, _same, str),
    FieldDescriptor.TYPE_STRING: _FieldForm(str, str, _same, _same),
}


def _form(field: FieldDescriptor) -> _FieldForm:
    message = field.message_type
    if message is not None:
        if message.full_name == "google.protobuf.Duration":
            return _DURATION
        write = _sds_json if message is SdsStoredMessage.DESCRIPTOR else to_json
        return _FieldForm(
            _request_type(message), answer_type(message), partial(_values, message), write
        )
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        kind: Any = Literal[tuple(names.values())]
        return _FieldForm(kind, kind, _same, names.__getitem__)
    if field.name in HASHES:
        return _HASH
    return _BY_NAME.get(field.name) or _BY_TYPE.get(field.type, _COUNT)


# Requests


class NoParameters(Struct, forbid_unknown_fields=True):
    """A request without parameters."""


def request_type(kind: Kind) -> type[Struct]:
    """Return the type of the JSON of a request, which its fields are checked against."""
    if issubclass(kind, Struct):
        return kind
    return _request_type(cast("Descriptor", kind.DESCRIPTOR))


@cache
def _request_type(descriptor: Descriptor) -> type[Struct]:
    fields = [field for _, field in _request_fields(descriptor)]
    return msgspec.defstruct(
        descriptor.name,
        [_request_field(field) for field in fields],
        rename={field.name: NAMES.get(field.name, field.camelcase_name) for field in fields},
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _request_fields(descriptor: Descriptor) -> Iterator[tuple[str, FieldDescriptor]]:
    """Yield the fields of a request, behind the name of the field that they are inlined from."""
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.name in INLINED:
            yield from ((field.name, each) for each in field.message_type.fields)
        elif field.name not in HIDDEN:
            yield "", field


def _request_field(field: FieldDescriptor) -> Any:  # noqa: ANN401 - what defstruct takes
    kind: Any = _form(field).asked
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


def decode(kind: Kind, body: bytes) -> Struct:
    """Read a body, whose integers may be texts.

    Raises:
        msgspec.ValidationError: it is not of this type.
        msgspec.DecodeError: it is no JSON.
    """
    flag = partial(_read_flag, {})
    return msgspec.json.decode(body, type=request_type(kind), strict=False, dec_hook=flag)


def _read_flag(texts: Mapping[str, bool], _kind: type[Flag], given: object) -> Flag:
    found = texts.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(found, bool):
        raise ValueError("Expected `true` or `false`")  # noqa: TRY004 - msgspec names the place
    return Flag(found)


def from_parameters(kind: Kind, given: Mapping[str, list[str]]) -> Struct:
    """Read the parameters of a URL.

    Raises:
        CallError: a parameter that is no list is given twice.
        msgspec.ValidationError: they are not of this type.
    """
    kind = request_type(kind)
    lists = {
        each.encode_name for each in msgspec.structs.fields(kind) if each.default_factory is list
    }
    found: dict[str, Any] = {}
    for name, values in given.items():
        if name not in lists and len(values) > 1:
            raise malformed(f"the parameter `{name[:64]}` is given twice: send it once")
        found[name] = values if name in lists else values[0]
    return msgspec.convert(found, kind, strict=False, dec_hook=partial(_read_flag, _FLAG_TEXTS))


def to_message(kind: type[Message], asked: Struct) -> bytes:
    """Encode a request.

    Raises:
        CallError: a cursor cannot be read.
    """
    return kind(**_values(cast("Descriptor", kind.DESCRIPTOR), asked)).SerializeToString()


def _values(descriptor: Descriptor, asked: Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, holder, read, is_list in _readers(descriptor):
        value = getattr(asked, name)
        if value is not None:
            within = found.setdefault(holder, {}) if holder else found
            within[name] = [read(each) for each in value] if is_list else read(value)
    return found


@cache
def _readers(descriptor: Descriptor) -> list[tuple[str, str, Callable[[Any], Any], bool]]:
    return [
        (field.name, holder, _form(field).read, field.is_repeated)
        for holder, field in _request_fields(descriptor)
    ]


# Answers


class ErrorDetail(Struct, rename="camel"):
    """The reason for which a request failed."""

    code: Annotated[str, Meta(description="The name of the gRPC status code.")]
    message: Annotated[str, Meta(description="What was wrong, and what to do.")]
    request_id: str


class Error(Struct):
    """The body of every error."""

    error: ErrorDetail


@cache
def answer_type(descriptor: Descriptor) -> type[Struct]:
    """Return the type of the JSON that `to_json` makes of a message, for its description."""
    fields: list[Any] = []
    bases: tuple[type[Struct], ...] = ()
    if descriptor is SdsStoredMessage.DESCRIPTOR:
        bases = (answer_type(WakuMessageKeyValue.DESCRIPTOR),)
        fields = [("messageId", ClaimedId), ("proven", Proven | UnsetType, UNSET)]
    else:
        for field, name in _answer_fields(descriptor):
            kind: Any = _form(field).answered
            if field.is_repeated:
                kind = list[kind]
            fields.append((name, kind) if is_required(field) else (name, kind | UnsetType, UNSET))
    return msgspec.defstruct(descriptor.full_name, fields, bases=bases, kw_only=True)


def line_types(page: Descriptor) -> Iterator[tuple[str, type[Struct]]]:
    """Yield the types of the lines of a page, as `to_lines` makes them, each with its field."""
    for field, name in _answer_fields(page):
        kind = _form(field).answered
        if field.name not in ITEMS:
            kind = msgspec.defstruct(f"{page.full_name}.{name}", [(name, kind)])
        yield name, kind


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON has it, the fields first that are always there."""
    found = {}
    for field, name, write, always, has_presence, is_list in _writers(
        cast("Hashable", type(message))
    ):
        value = getattr(message, field)
        if not (always or (message.HasField(field) if has_presence else value)):
            continue
        found[name] = [write(each) for each in value] if is_list else write(value)
    return found


def to_lines(page: Message) -> Iterator[dict[str, Any]]:
    """Yield the lines of a page: its items, then an object for each other field or entry."""
    for name, value in to_json(page).items():
        if name in ITEMS:
            yield from value
        else:
            yield from ({name: each} for each in (value if isinstance(value, list) else [value]))


def _answer_fields(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, str]]:
    """Yield the fields of an answer and their names."""
    for field in descriptor.fields:
        if field.name not in STATUS:
            yield field, "cursor" if field.name == "pagination_cursor" else field.camelcase_name


@cache
def _writers(kind: type[Message]) -> list[tuple[str, str, Callable[[Any], Any], bool, bool, bool]]:
    """Return each field: its names, how it becomes JSON, and if it is always there, or a list."""
    found = [
        (
            *(each.name, name, _form(each).write),
            *(is_required(each), each.has_presence, each.is_repeated),
        )
        for each, name in _answer_fields(cast("Descriptor", kind.DESCRIPTOR))
    ]
    return sorted(found, key=itemgetter(3), reverse=True)


def _sds_json(found: SdsStoredMessage) -> dict[str, Any]:
    said = {**to_json(found.stored), "messageId": found.entry.message_id}
    claimed = decode_sds(found.stored.message.payload)
    if claimed is not None:
        said["proven"] = claimed.proven
    return said
