import pytest

from storenode.sds.codec import SdsMetadata, decode, encode
from tests.interop.vectors import Case, case_name, hex_or_none, int_or_none, load

VECTORS = load("sds_message")
ENCODED: list[Case] = VECTORS["encode"]
DECODE_ONLY = {case["name"]: case for case in VECTORS["decode_only"]}
HEX_ID = "5950b220023ae23d7df91a16008402c6ab734a6c9b2322da6cd25b718d74c4a"


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


def _decoded(name: str) -> SdsMetadata:
    found = decode(bytes.fromhex(DECODE_ONLY[name]["bytes"]))
    assert found is not None
    return found


@pytest.mark.parametrize("digit", "13579bdf")
def test_a_legacy_history_of_one_hex_id_is_read(digit: str) -> None:
    found = _decoded(f"legacy-string-hex-first-{digit}")
    assert found.parents == [((digit + HEX_ID).encode(), None)]
    assert found.channel_id == b"channel-1"
    assert found.lamport == 1_763_625_600_123


@pytest.mark.parametrize(
    ("name", "parent"),
    [("legacy-string-short-dep1", b"dep1"), ("legacy-string-decimal-1", b"1")],
)
def test_a_legacy_history_of_a_short_id_is_read(name: str, parent: bytes) -> None:
    assert _decoded(name).parents == [(parent, None)]


def test_a_legacy_history_of_two_hex_ids_is_read() -> None:
    parents = _decoded("legacy-strings-hex-ids").parents
    raw = bytes.fromhex(DECODE_ONLY["legacy-strings-hex-ids"]["bytes"])
    assert [(len(parent), hint) for parent, hint in parents] == [(64, None), (64, None)]
    assert all(b"\x5a\x40" + parent in raw for parent, _ in parents)
    assert parents[1][0] == b"b" + HEX_ID.encode()


def test_a_negative_int32_is_the_largest_lamport_timestamp() -> None:
    assert _decoded("int32-negative-lamport").lamport == 2**64 - 1


def test_fields_may_come_in_any_order() -> None:
    expected = DECODE_ONLY["out-of-order"]["proto_decode"]["decoded"]
    assert _decoded("out-of-order") == _metadata(expected)


def test_a_truncated_message_is_not_an_sds_message() -> None:
    assert decode(bytes.fromhex(DECODE_ONLY["truncated"]["bytes"])) is None


def test_every_decoding_case_is_covered() -> None:
    covered = {f"legacy-string-hex-first-{digit}" for digit in "13579bdf"}
    covered |= {"legacy-string-short-dep1", "legacy-string-decimal-1", "legacy-strings-hex-ids"}
    assert DECODE_ONLY.keys() == covered | {"int32-negative-lamport", "out-of-order", "truncated"}
