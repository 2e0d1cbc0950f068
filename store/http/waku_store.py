"""``GET /store/v3/messages``, as nwaku's REST API serves it.

What its clients see is nwaku's: names of the parameters, what is ignored (empty values, times of 0
and less, parameters that it does not know), topics that are encoded twice, pages of 20 to 100,
errors as text, and its rules of a query (``StoreQueryRequest.nwaku_rules``).
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import unquote

from msgspec import UNSET, Meta, Struct, UnsetType, convert, defstruct, field

from store.domain.query import NWAKU_PAGE_MESSAGES
from store.http.call import HttpCall, HttpError, HttpExchange
from store.http.codec import encode, hex_of
from store.serving.failure import malformed
from store.serving.methods import reads
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS
from storenode.wire.waku.store.v3.store_pb2 import (
    StoreQueryRequest,
    StoreQueryResponse,
    WakuMessageKeyValue,
)

MAX_WAKU_PAGE_MESSAGES: Final = 100
"""``pageSize`` of ``/store/v3/messages`` at most, as nwaku has it."""

PARAMETERS: Final = {
    "peerAddr": "Not served: this node answers from its own store. Leave it out.",
    "includeData": "`true`: send the messages. `false`, the default: send their hashes only.",
    "pubsubTopic": "Messages of this pubsub topic, which may be encoded twice. Empty: of any.",
    "contentTopics": "Messages of any of these content topics, separated by commas; they may be"
    " encoded twice. Empty: of any.",
    "startTime": "From this timestamp on, inclusive, in Unix nanoseconds.",
    "endTime": "To this timestamp, inclusive, in Unix nanoseconds.",
    "hashes": "Messages with these hashes, in hexadecimal with or without 0x, separated by commas;"
    " topics and times select among them.",
    "cursor": "`paginationCursor` of the page before.",
    "ascending": "`true`, the default: the oldest page first. Else the newest page first.",
    "pageSize": f"Messages of the page: {NWAKU_PAGE_MESSAGES} unless given, and at most"
    f" {MAX_WAKU_PAGE_MESSAGES}.",
}
WakuParameters: Final = defstruct(
    "WakuParameters",
    [(name, Annotated[str, Meta(description=what)], "") for name, what in PARAMETERS.items()],
)
"""The type of the parameters, for the description."""

_TRUE: Final = frozenset({"y", "yes", "true", "1", "on"})
_FALSE: Final = frozenset({"n", "no", "false", "0", "off"})


class WakuMessage(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A message, with every number as a number."""

    payload: bytes
    content_topic: str
    meta: bytes = b""
    version: int
    timestamp: int
    ephemeral: bool
    rate_limit_proof: bytes = field(default=b"", name="proof")


class WakuEntry(Struct, rename="camel", kw_only=True):
    """A hash, and the message where data were asked for."""

    message_hash: str
    message: WakuMessage | UnsetType = UNSET
    pubsub_topic: str | UnsetType = UNSET


class WakuStoreResponse(Struct, rename="camel", kw_only=True):
    """A ``StoreQueryResponse`` as JSON."""

    request_id: str = ""
    status_code: int
    status_desc: str
    messages: list[WakuEntry]
    pagination_cursor: str | UnsetType = UNSET


async def messages(call: HttpCall, _body: bytes) -> None:
    """Send a page of messages."""
    page = StoreQueryResponse.FromString(await reads.answer_query(call, wanted(call)))
    cursor = page.pagination_cursor
    answer = WakuStoreResponse(
        status_code=page.status_code,
        status_desc=page.status_desc,
        messages=[_entry(each) for each in page.messages],
        pagination_cursor=hex_of(cursor) if cursor else UNSET,
    )
    await call.answer(encode(answer))


async def refuse(exchange: HttpExchange, failure: HttpError) -> None:
    """Send an error."""
    body = failure.sentence.encode()
    await exchange.respond(body, b"text/plain", status=failure.status, headers=failure.headers)


def wanted(exchange: HttpExchange) -> StoreQueryRequest:
    """Read the parameters of a URL; raise `CallError` where they are wrong."""
    given = {name: exchange.parameters.get(name, [""])[-1] for name in PARAMETERS}
    if given["peerAddr"]:
        raise malformed(
            "peerAddr is not served: this node answers from its own store, so leave it out"
        )
    topics = unquote(given["contentTopics"])
    end_ns = _time(given["endTime"])  # inclusive, as nwaku's REST API has it
    return StoreQueryRequest(
        include_data=_flag(given["includeData"]),
        pubsub_topic=unquote(given["pubsubTopic"]) or None,
        content_topics=topics.split(",") if topics else [],
        time_start=_time(given["startTime"]),
        time_end=None if end_ns is None else min(end_ns + 1, MAX_TIMESTAMP_NS),
        message_hashes=[_hash(each) for each in given["hashes"].split(",") if each],
        pagination_cursor=_hash(given["cursor"]) if given["cursor"] else None,
        pagination_forward=given["ascending"] in ("", "true"),
        pagination_limit=_page_size(given["pageSize"]),
        nwaku_rules=True,
    )


def _time(text: str) -> int | None:
    """Return a time, or None unless it is greater than 0."""
    if not text:
        return None
    value = _integer(text, "time", -(2**63), 2**63 - 1)
    return min(value, MAX_TIMESTAMP_NS) if value > 0 else None


def _page_size(text: str) -> int | None:
    if not text:
        return None
    wanted = _integer(text, "page size", -(2**63), 2**64 - 1)
    # As an unsigned number, a negative one is large.
    return MAX_WAKU_PAGE_MESSAGES if wanted < 0 else min(wanted, MAX_WAKU_PAGE_MESSAGES)


def _integer(text: str, what: str, least: int, most: int) -> int:
    digits = text.removeprefix("-").removeprefix("+").replace("_", "")
    if not digits.isascii() or not digits.isdecimal():
        raise malformed(f"{what} parsing error: invalid integer: {text[:100]}")
    sign, digits = -1 if text.startswith("-") else 1, digits.lstrip("0") or "0"
    # Numbers of 64 bits have 20 digits at most.
    if len(digits) > 20 or not least <= (value := sign * int(digits)) <= most:
        raise malformed(f"{what} parsing error: Parsed integer outside of valid range")
    return value


def _flag(text: str) -> bool:
    word = text.lower().replace("_", "")
    if text and word not in _TRUE | _FALSE:
        raise malformed(f"include data parsing error: cannot interpret as a bool: {text[:100]}")
    return word in _TRUE


def _hash(text: str) -> bytes:
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if not digits.isascii() or len(digits) != 2 * len(found):
        raise malformed(
            f"Exception converting hex string to bytes: {text[:100]} is not a hex string"
        )
    if len(found) != HASH_BYTES:
        raise malformed(f"waku message hash parsing error: invalid hash length: {len(found)}")
    return found


def _entry(item: WakuMessageKeyValue) -> WakuEntry:
    found = WakuEntry(message_hash=hex_of(item.message_hash))
    if item.HasField("message"):
        found.message = convert(item.message, WakuMessage, from_attributes=True)
        found.pubsub_topic = item.pubsub_topic
    return found
