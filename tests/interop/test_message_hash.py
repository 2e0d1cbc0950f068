import pytest

from store.domain.admission import Verdict
from storenode.message.hashing import message_hash
from storenode.message.rules import Policy
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.interop.vectors import Case, case_name, hex_or_none, int_or_none, load
from tests.support.admission import admit

VECTORS = load("message_hash")
CASES: list[Case] = VECTORS["cases"]


def _has_agreed_hash(case: Case) -> bool:
    timestamp = int_or_none(case["timestamp"])
    return timestamp is not None and timestamp != 0 and -(2**63) <= timestamp < 2**63


HASHED = [case for case in CASES if _has_agreed_hash(case)]
REFUSED = [case for case in CASES if not _has_agreed_hash(case)]


def _hash(case: Case) -> bytes:
    return message_hash(
        case["pubsub_topic"],
        bytes.fromhex(case["payload"]),
        case["content_topic"],
        hex_or_none(case["meta"]),
        int(case["timestamp"]),
    )


def _entry(case: Case) -> WakuMessageAndTopic:
    item = WakuMessageAndTopic(pubsub_topic=case["pubsub_topic"])
    item.message.payload = bytes.fromhex(case["payload"])
    item.message.content_topic = case["content_topic"]
    if case["meta"] is not None:
        item.message.meta = bytes.fromhex(case["meta"])
    if case["timestamp"] is not None:
        item.message.timestamp = int(case["timestamp"])
    return item


@pytest.mark.parametrize("case", HASHED, ids=case_name)
def test_the_hash_is_that_of_other_implementations(case: Case) -> None:
    assert _hash(case).hex() == case["hash"]


@pytest.mark.parametrize("case", HASHED, ids=case_name)
def test_admission_computes_the_same_hash_for_every_verdict(case: Case) -> None:
    admission = admit([_entry(case)], int(case["timestamp"]), Policy(max_drift_ns=0))
    assert [digest.hex() for digest in admission.hashes] == [case["hash"]]


@pytest.mark.parametrize(
    "case", [case for case in REFUSED if case["timestamp"] is None], ids=case_name
)
def test_a_message_without_timestamp_is_refused_before_hashing(case: Case) -> None:
    admission = admit([_entry(case)], 1, Policy(max_drift_ns=None))
    assert admission.verdicts == [Verdict.REJECTED]
    assert admission.hashes == [b""]


@pytest.mark.parametrize(
    "case", [case for case in REFUSED if case["timestamp"] is not None], ids=case_name
)
def test_a_timestamp_that_wraps_elsewhere_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="has no hash"):
        _hash(case)


@pytest.mark.parametrize("case", VECTORS["js_date_inputs"], ids=case_name)
def test_dates_give_the_hash_of_their_nanoseconds(case: Case) -> None:
    spec = next(case for case in CASES if case["name"] == "spec-meta-12")
    dated = {**spec, "timestamp": case["equivalent_ns"]}
    if int(case["equivalent_ns"]) == 0:
        with pytest.raises(ValueError, match="timestamp 0 has no hash"):
            _hash(dated)
    else:
        assert _hash(dated).hex() == case["hash"]
