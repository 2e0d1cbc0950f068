from collections.abc import Iterable

import pytest
from google.protobuf.message import Message

from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.interop.vectors import Case, case_name, load

VECTORS = load("store_query")
KINDS: dict[str, type[StoreQueryRequest | StoreQueryResponse]] = {
    "StoreQueryRequest": StoreQueryRequest,
    "StoreQueryResponse": StoreQueryResponse,
}
ALWAYS_SHOWN = {
    "StoreQueryRequest": [
        "request_id",
        "include_data",
        "content_topics",
        "message_hashes",
        "pagination_forward",
    ],
    "StoreQueryResponse": ["request_id", "messages"],
    "WakuMessage": ["payload", "content_topic"],
}
TEXT_NUMBERS = {"time_start", "time_end", "pagination_limit", "timestamp"}


def _shown(name: str, value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Message):
        return _fields(value)
    if isinstance(value, str | bool | int):
        return str(value) if name in TEXT_NUMBERS else value
    assert isinstance(value, Iterable)
    return [_shown(name, element) for element in value]


def _fields(message: Message) -> dict[str, object]:
    """Return the message in the vectors' notation."""
    names = {field.name for field, _ in message.ListFields()}
    names |= set(ALWAYS_SHOWN.get(message.DESCRIPTOR.name, []))
    return {name: _shown(name, getattr(message, name)) for name in names}


@pytest.mark.parametrize("case", VECTORS["request"], ids=case_name)
def test_requests_read_and_write_the_same_bytes(case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    request = StoreQueryRequest.FromString(raw)
    assert _fields(request) == case["fields"]
    assert request.SerializeToString() == raw


@pytest.mark.parametrize("case", VECTORS["response"], ids=case_name)
def test_responses_read_and_write_the_same_bytes(case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    response = StoreQueryResponse.FromString(raw)
    assert _fields(response) == case["fields"]
    assert response.SerializeToString() == raw
