"""Requests of ``/api/v1`` into what the domain takes."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as BinasciiError
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from store.domain.ports import HistoryEntry, TopicFilter
from store.domain.query import check_count, filter_by
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
    """An ASGI application that gives one answer, whoever asks."""

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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


def topic_filter(request: schemas.Topics | schemas.Channel, call: Call) -> TopicFilter:
    """Return the topics of a request, with the rights of the caller.

    Raises:
        RequestError: see `store.domain.query.filter_by`.
    """
    return filter_by(
        request.pubsub_topic, request.content_topics, call.client.topics, call.node.limits
    )


def digest(text: str) -> bytes:
    """Return the bytes of a hash that the type has checked."""
    return bytes.fromhex(text.lower().removeprefix("0x"))


def history(name: str, entries: Sequence[schemas.Entry], limit: int) -> list[HistoryEntry]:
    """Return the entries of a request.

    Raises:
        RequestError: there are more than ``limit``.
    """
    check_count(name, len(entries), limit)
    return [
        HistoryEntry(
            each.message_id.encode(),
            None if each.retrieval_hint is None else digest(each.retrieval_hint),
        )
        for each in entries
    ]


def read_cursor(text: str) -> bytes:
    """Return the bytes of an opaque cursor.

    Raises:
        HttpError: it is none.
    """
    try:
        return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (BinasciiError, ValueError):
        raise bad_request(
            "the cursor is none of this node's: pass it as it was sent, or leave it out"
        ) from None


def write_cursor(cursor: bytes) -> str:
    """Return an opaque cursor as text."""
    return urlsafe_b64encode(cursor).decode().rstrip("=")
