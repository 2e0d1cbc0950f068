"""The OpenAPI 3.1 description, made of the types that requests are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from store.http import schemas
from store.http.endpoint import Operation

_REFERENCES: Final = "#/components/schemas/{name}"
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
    kinds: dict[type[Struct], None] = {schemas.Error: None}
    for each in operations:
        kinds |= dict.fromkeys(each.answers)
        if each.request is not None:
            kinds[each.request] = None
    described, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    references = dict(zip(kinds, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(
            each, references, components
        )
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
    each: Operation, references: Mapping[type[Struct], Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": each.name, "summary": each.summary}
    if each.method == "GET":
        found["parameters"] = _parameters(each, components)
    else:
        assert each.request is not None
        body = {"application/json": {"schema": references[each.request]}}
        found["requestBody"] = {"required": True, "content": body}
    items = [references[kind] for kind in each.answers]
    schema = items[0] if len(items) == 1 else {"anyOf": items}
    if each.parameters:
        failed: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        failed = {"application/json": {"schema": references[schemas.Error]}}
    found["responses"] = {
        "200": {
            "description": "Success.",
            "content": {each.answer_type.decode(): {"schema": schema}},
        },
        **{code: {"description": why, "content": failed} for code, why in _ERRORS.items()},
    }
    return found


def _parameters(each: Operation, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "query", "description": what, "schema": {"type": "string"}}
        for name, what in each.parameters.items()
    ]
    if each.request is None:
        return found
    for name, given in components[each.request.__name__]["properties"].items():
        schema = {key: value for key, value in given.items() if key != "description"}
        parameter = {"name": name, "in": "query", "schema": schema}
        if "description" in given:
            parameter["description"] = given["description"]
        found.append(parameter)
    return found
