"""The OpenAPI 3.1 description, made of the types of requests and the messages of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import msgspec
from google.protobuf.descriptor import Descriptor
from msgspec import Struct

from store.http.call import JSON, Operation, refuse
from store.http.codec import Error, answer_type, line_types, request_type

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
    requests = [request_type(each.types[0]) for each in operations]
    answers = {each.served.name: _answers(each) for each in operations}
    kinds: list[type[Struct]] = [Error, *requests, *chain.from_iterable(answers.values())]
    described, components = msgspec.json.schema_components(
        kinds,
        schema_hook=lambda _flag: {"type": "boolean"},
        ref_template="#/components/schemas/{name}",
    )
    references = dict(zip(kinds, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        shown = [references[kind] for kind in answers[each.served.name]]
        answer = shown[0] if len(shown) == 1 else {"anyOf": shown}
        found = _operation(each, answer, references, components)
        verb, path = each.route.split()
        paths.setdefault(path, {})[verb.lower()] = found
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


def _answers(each: Operation) -> list[type[Struct]]:
    """Return the types of an answer, or of its lines."""
    answer = each.types[1]
    if issubclass(answer, Struct):
        return [answer]
    message = cast("Descriptor", answer.DESCRIPTOR)
    if each.answer_type == JSON:
        return [answer_type(message)]
    # The cursor of an event is its ID.
    is_hidden = {"cursor"} if each.served.endless else set()
    return [kind for name, kind in line_types(message) if name not in is_hidden]


def _operation(
    each: Operation,
    answer: Mapping[str, Any],
    references: Mapping[type[Struct], Any],
    components: Mapping[str, Any],
) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": each.served.name, "summary": each.summary}
    if each.route.startswith("GET "):
        asked = components[request_type(each.types[0]).__name__]["properties"]
        found["parameters"] = [_parameter(name, given) for name, given in asked.items()]
    else:
        body = {"application/json": {"schema": references[request_type(each.types[0])]}}
        found["requestBody"] = {"required": True, "content": body}
    failed: dict[str, Any] = {"application/json": {"schema": references[Error]}}
    if each.refuse is not refuse:
        failed = {"text/plain": {"schema": {"type": "string"}}}
    found["responses"] = {
        "200": {
            "description": "Success.",
            "content": {each.answer_type.decode(): {"schema": answer}},
        },
        **{code: {"description": why, "content": failed} for code, why in _ERRORS.items()},
    }
    return found


def _parameter(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    about = {key: given[key] for key in given if key == "description"}
    schema = {key: given[key] for key in given if key != "description"}
    return {"name": name, "in": "query", "schema": schema, **about}
