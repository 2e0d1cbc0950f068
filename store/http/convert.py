"""Conversion between the JSON of ``/api/v1`` and the messages of the schema, in both directions.

Requests become what the handlers of gRPC take, and their pages become JSON. Names are those of
protobuf's JSON. Hashes are hexadecimal, cursors base64 for URLs, other bytes base64, and signed
numbers of 64 bits decimal strings: JavaScript would round them.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Hashable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec import UNSET, Struct

from store.http.failure import bad_request
from storenode.sds.codec import decode
from storenode.wire.storenode.v1.store_pb2 import SdsStoredMessage

HASHES: Final = frozenset(
    {"fingerprint", "message_hash", "message_hashes", "pagination_cursor", "retrieval_hint"}
)
"""Names of the fields that hold hashes."""

REQUIRED: Final[dict[str, dict[str, Any]]] = {
    "WakuMessage": {"payload": "", "contentTopic": "", "timestamp": "0"},
    "StoreQueryResponse": {"messages": []},
    "PublishResponse": {"results": []},
    "PublishResult": {"outcome": "OUTCOME_UNSPECIFIED"},
    "CoverageStep": {"timeStart": "0", "timeEnd": "0", "intake": "INTAKE_UNSPECIFIED"},
    "AnswerCoverage": {"state": "STATE_UNSPECIFIED", "timeStart": "0", "timeEnd": "0"},
    "HistoryEntry": {"messageId": ""},
}
"""What is in the JSON of a message although its fields are unset."""

ITEMS: Final = frozenset({"messages", "steps"})
"""Fields of a page whose entries are lines by themselves."""

STATUS: Final = frozenset({"request_id", "status_code", "status_desc"})
"""Fields of ``StoreQueryResponse`` that the status of HTTP stands for."""


def hex_of(digest: bytes) -> str:
    """Return a hash as answers spell it."""
    return f"0x{digest.hex()}"


def to_message(kind: type[Message], asked: Struct) -> bytes:
    """Encode a request; what its message has no field for is that of a message within it.

    Raises:
        HttpError: a cursor cannot be read.
    """
    return kind(**_values(cast("Descriptor", kind.DESCRIPTOR), asked)).SerializeToString()


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON has it."""
    kind = cast("Hashable", type(message))
    found = {**_required(kind)}
    for field, name, convert, has_presence, is_list in _conversions(kind):
        if has_presence and not message.HasField(field):
            continue
        value = getattr(message, field)
        if is_list and value:
            found[name] = [convert(each) for each in value]
        elif value or has_presence:
            found[name] = convert(value)
    return found


def to_lines(page: Message) -> Iterator[dict[str, Any]]:
    """Yield the lines of a page: its items, then an object for each other field or entry."""
    for name, value in to_json(page).items():
        if name in ITEMS:
            yield from value
        else:
            yield from ({name: each} for each in (value if isinstance(value, list) else [value]))


@cache
def _required(kind: type[Message]) -> dict[str, Any]:
    return REQUIRED.get(kind.DESCRIPTOR.name, {})


@cache
def _conversions(kind: type[Message]) -> list[tuple[str, str, Callable[[Any], Any], bool, bool]]:
    """Return for each field both names, how it becomes JSON, its presence and if it is a list."""
    return [
        (each.name, name_of(each), _converter(each), each.has_presence, each.is_repeated)
        for each in cast("Descriptor", kind.DESCRIPTOR).fields
        if each.name not in STATUS
    ]


def name_of(field: FieldDescriptor) -> str:
    """Return the name of a field in JSON."""
    return "cursor" if field.name == "pagination_cursor" else field.camelcase_name


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
        raise bad_request(
            "the cursor is none of this node's: pass it as it was sent, or leave it out"
        ) from None


def _write_cursor(cursor: bytes) -> str:
    return urlsafe_b64encode(cursor).decode().rstrip("=")


def _same(value: Any) -> Any:  # noqa: ANN401 - whatever the field holds
    return value


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


def _sds_json(found: SdsStoredMessage) -> dict[str, Any]:
    said = {**to_json(found.stored), "messageId": found.entry.message_id}
    claimed = decode(found.stored.message.payload)
    if claimed is not None:
        said["proven"] = claimed.proven
    return said
