"""Requests of ``/api/v1`` as their types, and errors as it sends them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from store.http import schemas
from store.http.exchange import CallerGoneError, Exchange
from store.http.failure import HttpError, bad_request
from store.http.limits import COUNTED_BODY_BYTES, MAX_QUOTED_CHARS, QUOTES_OF_ENTRY
from store.serving.call import REQUEST_IDS, Call
from store.serving.failure import over_limit

TOKEN_PARAMETER: Final = "access_token"  # noqa: S105 - its name
"""The parameter that carries a token where a browser cannot send headers (RFC 6750, 2.3)."""

_T = TypeVar("_T", bound=Struct)


async def refuse(exchange: Exchange, failure: HttpError) -> None:
    """Send an error."""
    detail = schemas.ErrorDetail(failure.name, failure.sentence, exchange.request_id)
    body = schemas.encode(schemas.Error(detail))
    await exchange.respond(body, status=failure.status, headers=failure.headers)


class OpenEndpoint:
    """An ASGI application that gives one answer to every caller."""

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        exchange.request_id = next(REQUEST_IDS)
        try:
            await self._answer(exchange)
        except CallerGoneError:
            exchange.abort()


def read(kind: type[_T], call: Call, exchange: Exchange, body: bytes) -> _T:
    """Read a request from the body of a POST or from the parameters of a GET.

    Raises:
        HttpError: it is not as the type says.
        CallFailure: it has far more parts than the node's limits allow.
    """
    try:
        if exchange.method == "POST":
            _check_parts(call, body)
            return schemas.decode(kind, body)
        return schemas.from_parameters(kind, _parameters(kind, exchange))
    except msgspec.ValidationError as error:
        # It may quote a name or a value that is as long as the body.
        raise bad_request(f"the request is wrong: {str(error)[:MAX_QUOTED_CHARS]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from None


def _check_parts(call: Call, body: bytes) -> None:
    """Refuse a large body that would become millions of objects; every part of one is quoted."""
    limits = call.node.limits
    most = QUOTES_OF_ENTRY * max(
        *(limits.batch_messages, limits.query_hashes, limits.sds_entries),
        *(limits.causal_heads, limits.causal_known_ids),
    )
    if len(body) > COUNTED_BODY_BYTES and body.count(b'"') > most:
        raise over_limit(
            f"the body has more than {most:,} quotation marks: send fewer entries in one request"
        )


def _parameters(kind: type[Struct], exchange: Exchange) -> dict[str, Any]:
    lists, found = schemas.repeatable(kind), {}
    for name, values in exchange.parameters.items():
        if name == TOKEN_PARAMETER:
            continue
        if name not in lists and len(values) > 1:
            raise bad_request(f"the parameter `{name[:64]}` is given twice: send it once")
        found[name] = values if name in lists else values[0]
    return found
