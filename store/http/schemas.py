"""Types of the requests of ``/api/v1``, one for each, and of answers that no message is.

Requests are checked against them, and become messages by the names of their fields. Parameters of a
URL are the fields of the type that a POST takes as its body. 64-bit numbers may come as decimal
strings.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from storenode.message.limits import MAX_TIMESTAMP_NS

_T = TypeVar("_T", bound=Struct)

_LARGEST_UINT32: Final = 2**32 - 1

Nanoseconds = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_TIMESTAMP_NS,
        description="Unix time in nanoseconds, as a number or a decimal string.",
        extra_json_schema={"type": ["integer", "string"], "format": "int64"},
    ),
]
Count = Annotated[int, Meta(ge=0, le=_LARGEST_UINT32)]
Hash = Annotated[
    str,
    Meta(
        pattern="^(0[xX])?[0-9a-fA-F]{64}$",
        description="A message hash: 64 hexadecimal digits, with or without 0x.",
    ),
]
Digits = Annotated[
    str,
    Meta(description="Unix time in nanoseconds, as a decimal string."),
]
Covers = Annotated[bool, Meta(description="True: the answer says how complete it is.")]
Base64 = Annotated[bytes, Meta(description="Base64.")]


class _Request(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


class NoParameters(_Request):
    """A request without parameters."""


class TopicSelection(_Request):
    """A choice of messages by topic."""

    pubsub_topic: Annotated[
        str | None, Meta(description="Messages of this pubsub topic. Unset: of any.")
    ] = None
    content_topics: Annotated[
        list[str], Meta(description="Messages of any of these content topics. None: of any.")
    ] = []
    include_data: Annotated[
        bool, Meta(description="False: hashes alone, which is far cheaper.")
    ] = True


class Range(TopicSelection):
    """A choice of messages by topic and time."""

    time_start: Annotated[
        Nanoseconds | None, Meta(description="From this timestamp on, inclusive.")
    ] = None
    time_end: Annotated[
        Nanoseconds | None, Meta(description="Before this timestamp, exclusive.")
    ] = None
    coverage: Covers = False


class Query(Range):
    """A request for a page of messages, by topic and time or by hash."""

    message_hashes: Annotated[
        list[Hash], Meta(description="Messages with these hashes; times must be unset.")
    ] = field(name="hashes", default_factory=list)
    pagination_cursor: Annotated[
        Hash | None, Meta(description="`cursor` of the page before. Unset: the first page.")
    ] = field(name="cursor", default=None)
    pagination_limit: Annotated[
        Count, Meta(description="Messages of the page. 0: the node chooses.")
    ] = field(name="limit", default=0)
    pagination_forward: Annotated[
        bool, Meta(description="True: the oldest messages first. False: the newest page first.")
    ] = field(name="forward", default=False)


class Scan(Range):
    """A request for all messages of a time range, oldest first."""

    cursor: Annotated[
        str, Meta(description='Go on after the line `{"cursor": ...}` that was read last.')
    ] = ""
    page_size: Annotated[
        Count, Meta(description="Messages between two cursors. 0: the node chooses.")
    ] = 0


class Steps(_Request):
    """A request for the coverage of the store, by hour or day."""

    pubsub_topic: Annotated[
        str | None, Meta(description="With a topic nothing is counted: counts are of all messages.")
    ] = None
    content_topics: list[str] = []
    time_start: Annotated[Nanoseconds | None, Meta(description="Unset: a day before the end.")] = (
        None
    )
    time_end: Annotated[Nanoseconds | None, Meta(description="Unset: now.")] = None
    step: Literal["HOUR", "DAY"] = "HOUR"
    channel_id: Annotated[
        str, Meta(description="An SDS channel: count the parents that its messages name and lack.")
    ] = ""


class Follow(TopicSelection):
    """A request for messages as they are committed."""

    cursor: Annotated[
        str,
        Meta(description="Go on after this event ID. The header `Last-Event-ID` goes before it."),
    ] = ""
    from_beginning: Annotated[
        bool, Meta(description="Without a cursor. True: begin with the oldest message held.")
    ] = False


class SdsReference(_Request):
    """An SDS message ID and, where it is known, the hash of the message."""

    message_id: str
    retrieval_hint: Annotated[
        Hash | None, Meta(description="Selects one of several messages with the same ID.")
    ] = None


class ChannelSelection(_Request):
    """A choice of messages by SDS channel and topic."""

    channel_id: str
    pubsub_topic: str | None = None
    content_topics: list[str] = []
    coverage: Covers = False
    prefer_proven: Annotated[
        bool,
        Meta(
            description="Of the messages that claim an ID, those that it proves come first,"
            " whatever their age; a hint to another selects them, too."
        ),
    ] = False


class SdsParameters(ChannelSelection, kw_only=True):
    """A request for SDS messages of a channel, by ID."""

    entries: list[SdsReference]


class HistoryParameters(ChannelSelection, kw_only=True):
    """A request for SDS messages of a channel and what they depend on."""

    heads: list[SdsReference]
    known_ids: Annotated[
        list[str], Meta(description="What the caller has: not sent, nor are their parents.")
    ] = []
    max_messages: Annotated[Count, Meta(description="0: the node's limit.")] = 0
    max_depth: Annotated[Count, Meta(description="Generations to go back. 0: unlimited.")] = 0


class NewMessage(_Request):
    """A message to publish."""

    pubsub_topic: str
    content_topic: str
    payload: Base64
    timestamp: Annotated[
        int,
        Meta(
            ge=-(2**63),
            le=MAX_TIMESTAMP_NS,
            description="Unix time in nanoseconds, as a number or a decimal string; a message whose"
            " time is not greater than 0 is rejected.",
            extra_json_schema={"type": ["integer", "string"], "format": "int64"},
        ),
    ]
    version: Count | UnsetType = UNSET
    meta: Base64 | UnsetType = UNSET
    rate_limit_proof: Base64 | UnsetType = UNSET
    ephemeral: bool | UnsetType = UNSET


class Publish(_Request):
    """A batch of messages to store."""

    messages: list[NewMessage]
    min_confirms: Annotated[
        Count, Meta(description="Other stores that must confirm each message first.")
    ] = 0
    confirm_timeout: (
        Annotated[float, Meta(ge=0, le=300, description="How long to wait for that. Unset: 5 s.")]
        | None
    ) = field(name="confirmTimeoutS", default=None)


class NodeSummary(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The node. All but `ready` is for callers that may read every topic."""

    ready: bool
    version: str | UnsetType = UNSET
    node_id: str | UnsetType = UNSET
    store_id: str | UnsetType = UNSET
    messages: int | UnsetType = UNSET
    oldest_timestamp: Digits | UnsetType = UNSET
    newest_timestamp: Digits | UnsetType = UNSET


class ErrorDetail(Struct, rename="camel"):
    """The reason for which a request failed."""

    code: Annotated[str, Meta(description="The name of the gRPC status code.")]
    message: Annotated[str, Meta(description="What was wrong, and what to do.")]
    request_id: str


class Error(Struct):
    """The body of every error."""

    error: ErrorDetail


_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def decode(kind: type[_T], body: bytes) -> _T:
    """Read a body.

    Raises:
        msgspec.ValidationError: it is not of this type.
        msgspec.DecodeError: it is no JSON.
    """
    return msgspec.json.decode(body, type=kind, strict=False)


def from_parameters(kind: type[_T], given: dict[str, Any]) -> _T:
    """Read the parameters of a URL; lists are those that may be given more than once.

    Raises:
        msgspec.ValidationError: they are not of this type.
    """
    return msgspec.convert(given, kind, strict=False)


def repeatable(kind: type[Struct]) -> frozenset[str]:
    """Return the names of the parameters that may be given more than once."""
    return frozenset(
        each.encode_name
        for each in msgspec.structs.fields(kind)
        if isinstance(each.default, list) or each.default_factory is list
    )
