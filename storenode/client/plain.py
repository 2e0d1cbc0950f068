"""Protobuf messages as plain values for JSON, and back.

Names are those of the schema, numbers are numbers, bytes are lower-case hex, enumerations are
names; bytes are read with and without ``0x``. Fields with presence appear when they are set, all
others always.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from storenode.client.messages import hash_of
from storenode.common.errors import ArgumentError
from storenode.message.text import parse_hex
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

Plain = dict[str, Any]
_M = TypeVar("_M", bound=Message)

_INTEGERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)


def to_plain(message: Message) -> Plain:
    """Return the fields of a message as values for JSON."""
    plain: Plain = json.loads(to_json(message))
    return plain


def to_json(message: Message) -> str:
    """Return the fields of a message as one line of JSON in ASCII."""
    parts = []
    for name, head, has_presence, value_of in _plan(message.DESCRIPTOR):
        if not has_presence or message.HasField(name):
            parts.append(head + value_of(getattr(message, name)))
    return f"{{{', '.join(parts)}}}"


def message_from_plain(plain: object) -> WakuMessageAndTopic:
    """Read a message to publish from what ``scan --json`` prints for one.

    Raises:
        ArgumentError: A field is unknown or has a wrong type, or ``message_hash`` is not the
            message's hash.
    """
    if not isinstance(plain, Mapping):
        raise ArgumentError("it is not a JSON object")
    fields = dict(plain)
    claimed = fields.pop("message_hash", None)
    item = _from_plain(WakuMessageAndTopic(), fields)
    if not item.HasField("message"):
        raise ArgumentError('the field "message" is missing')
    if claimed is not None:
        _check_hash(item, claimed)
    return item


def _check_hash(item: WakuMessageAndTopic, claimed: object) -> None:
    try:
        found = hash_of(item)
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    if _bytes("message_hash", claimed) != found:
        raise ArgumentError(
            '"message_hash" is not the hash of the message: leave it out if it changed'
        )


@cache
def _plan(kind: Descriptor) -> tuple[tuple[str, str, bool, Callable[[Any], str]], ...]:
    """Return the fields of a schema message, each with the writer of its value."""
    return tuple(
        (each.name, f"{encode_basestring_ascii(each.name)}: ", each.has_presence, _writer(each))
        for each in kind.fields
    )


def _writer(field: FieldDescriptor) -> Callable[[Any], str]:
    value_of = _value_writer(field)
    if field.is_repeated:
        return lambda values: f"[{', '.join(map(value_of, values))}]"
    return value_of


def _value_writer(field: FieldDescriptor) -> Callable[[Any], str]:
    if field.message_type is not None:
        return to_json
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: json.dumps(names.get(number, number))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: f'"{value.hex()}"'
    if field.type == FieldDescriptor.TYPE_STRING:
        return encode_basestring_ascii
    return int.__repr__ if field.cpp_type in _INTEGERS else json.dumps


def _from_plain(message: _M, plain: Mapping[Any, Any]) -> _M:
    known = cast("Mapping[str, FieldDescriptor]", message.DESCRIPTOR.fields_by_name)
    for name, value in plain.items():
        if name not in known:
            raise ArgumentError(f"the field {name!r} is unknown: {', '.join(known)} are known")
        field = known[name]
        if field.message_type is not None:
            if not isinstance(value, Mapping):
                raise ArgumentError(f"the field {name!r} is not a JSON object")
            target = getattr(message, name)
            target.SetInParent()
            _from_plain(target, value)
        else:
            _set_scalar(message, field, value)
    return message


def _set_scalar(message: Message, field: FieldDescriptor, value: object) -> None:
    if field.type == FieldDescriptor.TYPE_BYTES:
        scalar: object = _bytes(field.name, value)
    elif field.cpp_type in _INTEGERS and (isinstance(value, bool) or not isinstance(value, int)):
        raise ArgumentError(f"the field {field.name!r} is not a whole number")
    elif field.type == FieldDescriptor.TYPE_BOOL and not isinstance(value, bool):
        raise ArgumentError(f"the field {field.name!r} is not true or false")
    else:
        scalar = value
    try:
        setattr(message, field.name, scalar)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the field {field.name!r} has a wrong value") from error


def _bytes(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise ArgumentError(f"the field {name!r} is not text with hexadecimal digits")
    try:
        return parse_hex(value)
    except ValueError as error:
        raise ArgumentError(f"the field {name!r} is not hexadecimal") from error
