"""A caller of a node's HTTP listener that checks answers against the node's own description."""

from __future__ import annotations

import base64
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from openapi_schema_validator import OAS31Validator

from tests.support.node import NodeProcess

PUBSUB: Final = "/waku/2/rs/1/0"
TIMEOUT_S: Final = 90.0

_numbers = itertools.count()


@dataclass
class Api:
    """The listener of a node."""

    client: httpx.Client
    document: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, node: NodeProcess, token: str | None = None, **more: Any) -> Api:  # noqa: ANN401
        """Return a caller as a client with a token, or without."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        scheme = "https" if "verify" in more else "http"
        client = httpx.Client(
            base_url=f"{scheme}://{node.http}", headers=headers, timeout=TIMEOUT_S, **more
        )
        return cls(client, client.get("/openapi.json").json())

    def get(self, path: str, **parameters: object) -> httpx.Response:
        """Send a request, and check that its answer is as the description says."""
        response = self.client.get(path, params=parameters)  # type: ignore[arg-type]
        self.check("get", path, response)
        return response

    def post(self, path: str, request: object, **headers: str) -> httpx.Response:
        """Send a request with a body, and check its answer likewise."""
        response = self.client.post(path, json=request, headers=headers)
        self.check("post", path, response)
        return response

    def publish(self, *messages: dict[str, Any], **more: object) -> list[dict[str, Any]]:
        """Publish a batch, and give its results."""
        response = self.post("/api/v1/messages", {"messages": messages, **more})
        assert response.status_code == 200, response.text
        results: list[dict[str, Any]] = response.json()["results"]
        return results

    def lines(self, response: httpx.Response) -> list[dict[str, Any]]:
        """Return the lines of an answer."""
        assert response.status_code == 200, response.text
        return [json.loads(each) for each in response.text.splitlines()]

    def check(self, method: str, path: str, response: httpx.Response) -> None:
        """Compare an answer with the description."""
        described = self.document["paths"][path][method]["responses"][str(response.status_code)]
        kind = response.headers["content-type"]
        schema = described["content"][kind]["schema"]
        if kind == "text/plain":
            assert response.text, "an error without a sentence"
            return
        text = response.text
        items = text.splitlines() if kind == "application/x-ndjson" else [text]
        for item in items:
            self.require(schema, json.loads(item))

    def require(self, schema: dict[str, Any], item: object) -> None:
        """Compare a part of an answer with a schema of the description."""
        whole = {**schema, "components": self.document["components"]}
        errors = [each.message for each in OAS31Validator(whole).iter_errors(item)]
        assert not errors, (errors, item)


def message(content_topic: str, payload: bytes | None = None, **more: object) -> dict[str, Any]:
    """Return a message of now to publish, unlike any other."""
    number = next(_numbers)
    return {
        "pubsubTopic": PUBSUB,
        "contentTopic": content_topic,
        "payload": base64.b64encode(payload or b"payload %d" % number).decode(),
        "timestamp": str(time.time_ns() + number),
        **more,
    }


def failed(response: httpx.Response) -> tuple[int, str, str]:
    """Return status, code and sentence of an error."""
    error = response.json()["error"]
    assert error["requestId"] == response.headers["x-request-id"]
    return response.status_code, error["code"], error["message"]
