"""The OpenAPI 3.1 description, made of the types of requests and the messages of answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import Struct

from store.http.codec import HASHES, ITEMS, STATUS, Error, is_required, name_of, request_type
from store.http.endpoint import Operation
from store.http.exchange import JSON
from storenode.wire.storenode.v1.store_pb2 import SdsStoredMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

_REFERENCES: Final = "#/components/schemas/{name}"
_TYPES: Final = {FieldDescriptor.TYPE_BOOL: "boolean", FieldDescriptor.TYPE_STRING: "string"}
_HASH: Final = {"type": "string", "description": "A message hash: 0x and 64 hexadecimal digits."}
_SDS: Final = {
    "type": "object",
    "properties": {
        "messageId": {"type": "string", "description": "The SDS message ID that was asked for."},
        "proven": {
            "type": "boolean",
            "description": "Whether that ID is the hash of what the message says. Any other message"
            " may have been put under the ID by somebody else.",
        },
    },
    "required": ["messageId"],
}
_ERRORS: Final = {
    "400": "The request is wrong.",
    "401": "No token, or one that is not known.",
    "403": "The client lacks the right, or a page of another site asks.",
    "404": "The cursor is not known to this node.",
    "408": "The body has not come in time.",
    "410": "The cursor is not one of this database.",
    "413": "The request is larger, or asks for more, than a limit allows.",
    "415": "The body is not JSON.",
    "421": "The node is not called by this name.",
    "429": "Too much at one time, or lately: retry after `Retry-After` seconds.",
    "500": "The node failed: its log has the request ID.",
    "503": "The node is not ready: retry after `Retry-After` seconds.",
}


def description(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the whole document."""
    requests = [request_type(each.types[0]) for each in operations if not each.parameters]
    kinds: dict[type[Struct], None] = dict.fromkeys([Error, *requests])
    kinds |= {each.types[1]: None for each in operations if issubclass(each.types[1], Struct)}
    described, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    references = dict(zip(kinds, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        found = _operation(each, references, components)
        paths.setdefault(each.path, {})[each.method.lower()] = found
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "storenode",
            "version": version,
            "description": "Publishes, reads and follows messages. `/store/v3/messages` is that of"
            " nwaku's REST API. Times are Unix nanoseconds.",
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    each: Operation, references: Mapping[type[Struct], Any], components: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": each.served.name, "summary": each.summary}
    if each.method == "GET":
        found["parameters"] = _parameters(each, components)
    else:
        body = {"application/json": {"schema": references[request_type(each.types[0])]}}
        found["requestBody"] = {"required": True, "content": body}
    if each.parameters:
        failed: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        failed = {"application/json": {"schema": references[Error]}}
    if issubclass(each.types[1], Struct):
        schema = references[each.types[1]]
    elif each.answer_type == JSON:
        schema = _reference(cast("Descriptor", each.types[1].DESCRIPTOR), components)
    else:
        schema = {"anyOf": list(_lines(each, components))}
    found["responses"] = {
        "200": {
            "description": "Success.",
            "content": {each.answer_type.decode(): {"schema": schema}},
        },
        **{code: {"description": why, "content": failed} for code, why in _ERRORS.items()},
    }
    return found


def _lines(each: Operation, components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas of the lines of a page, as `store.http.convert.to_lines` makes them."""
    page = cast("Descriptor", each.types[1].DESCRIPTOR)  # type: ignore[union-attr]
    for field in page.fields:
        schema, name = _value(field, components), name_of(field)
        if field.name in ITEMS:
            yield schema
        elif each.served.endless and field.name == "cursor":
            continue  # the ID of the event
        else:
            yield {"type": "object", "properties": {name: schema}, "required": [name]}


def _reference(message: Descriptor, components: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of a message, which is added to the components."""
    if message.full_name not in components:
        components[message.full_name] = {}
        components[message.full_name] = _schema(message, components)
    return {"$ref": _REFERENCES.format(name=message.full_name)}


def _schema(message: Descriptor, components: dict[str, Any]) -> dict[str, Any]:
    if message is SdsStoredMessage.DESCRIPTOR:
        return {"allOf": [_reference(WakuMessageKeyValue.DESCRIPTOR, components), _SDS]}
    properties, required = {}, []
    for field in message.fields:
        if field.name not in STATUS:
            schema, name = _value(field, components), name_of(field)
            properties[name] = {"type": "array", "items": schema} if field.is_repeated else schema
            if is_required(field):
                required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _value(field: FieldDescriptor, components: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _reference(field.message_type, components)
    if field.enum_type is not None:
        return {"enum": list(field.enum_type.values_by_name)}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _HASH if field.name in HASHES else {"type": "string", "contentEncoding": "base64"}
    if field.type == FieldDescriptor.TYPE_SINT64:
        return {"type": "string", "description": "Unix time in nanoseconds, in decimal digits."}
    return {"type": _TYPES.get(field.type, "integer")}


def _parameters(each: Operation, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}
        for name, what in each.parameters.items()
    ]
    if each.parameters:
        return found
    for name, given in components[request_type(each.types[0]).__name__]["properties"].items():
        schema = {key: value for key, value in given.items() if key != "description"}
        parameter = {"name": name, "in": "query", "schema": schema}
        if "description" in given:
            parameter["description"] = given["description"]
        found.append(parameter)
    return found
