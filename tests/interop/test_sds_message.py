import pytest

from storenode.sds.codec import SdsMetadata, decode, encode
from tests.interop.vectors import Case, case_name, hex_or_none, int_or_none, load

VECTORS = load("sds_message")
ENCODED: list[Case] = VECTORS["encode"]
HEX_ID = "5950b220023ae23d7df91a16008402c6ab734a6c9b2322da6cd25b718d74c4a"
LEGACY = {
    **{f"legacy-string-hex-first-{digit}": [digit + HEX_ID] for digit in "13579bdf"},
    "legacy-string-short-dep1": ["dep1"],
    "legacy-string-decimal-1": ["1"],
    "legacy-strings-hex-ids": [
        "bd5f2f2ab7bb787362555e1d14bc0c603394b3ed1e880bff356b1671a8152305",
        "b" + HEX_ID,
    ],
}


def _metadata(fields: Case) -> SdsMetadata:
    return SdsMetadata(
        fields["channel_id"].encode(),
        fields["message_id"].encode(),
        int_or_none(fields.get("lamport_timestamp")),
        fields["sender_id"].encode(),
        [
            (entry["message_id"].encode(), hex_or_none(entry.get("retrieval_hint")))
            for entry in fields["causal_history"]
        ],
    )


@pytest.mark.parametrize(
    "case", [case for case in ENCODED if case["fields"]["message_id"]], ids=case_name
)
def test_messages_of_another_implementation_are_read(case: Case) -> None:
    assert decode(bytes.fromhex(case["bytes"])) == _metadata(case["fields"])


def test_the_empty_message_is_not_an_sds_message() -> None:
    nameless = [case for case in ENCODED if not case["fields"]["message_id"]]
    assert [decode(bytes.fromhex(case["bytes"])) for case in nameless] == [None]


@pytest.mark.parametrize("case", VECTORS["decode_only"], ids=case_name)
def test_odd_bytes_are_read_by_our_rules(case: Case) -> None:
    found, name = decode(bytes.fromhex(case["bytes"])), case["name"]
    if name == "truncated":
        assert found is None
        return
    assert found is not None
    if name == "out-of-order":
        assert found == _metadata(case["proto_decode"]["decoded"])
    elif name == "int32-negative-lamport":
        assert found.lamport == 2**64 - 1
    else:
        assert found.parents == [(parent.encode(), None) for parent in LEGACY[name]]


def _is_plain(case: Case) -> bool:
    fields = case["fields"]
    senders = [entry for entry in fields["causal_history"] if "sender_id" in entry]
    return not senders and not fields["repair_request"]


@pytest.mark.parametrize("case", [case for case in ENCODED if _is_plain(case)], ids=case_name)
def test_messages_without_repair_are_written_as_the_same_bytes(case: Case) -> None:
    fields = case["fields"]
    written = encode(
        fields["channel_id"],
        fields["message_id"],
        sender_id=fields["sender_id"],
        lamport=int_or_none(fields.get("lamport_timestamp")),
        parents=[
            (entry["message_id"], hex_or_none(entry.get("retrieval_hint")))
            for entry in fields["causal_history"]
        ],
        bloom_filter=hex_or_none(fields.get("bloom_filter")),
        content=hex_or_none(fields.get("content")),
    )
    assert written.hex() == case["bytes"]
